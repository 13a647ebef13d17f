"""Figures of the worth of each choice of a camera; see `cassi.running.design`."""

from collections.abc import Mapping, Sequence

import numpy as np

from cassi.looking.style import MUTED, PALETTE, Figure, plots, styled

LABELS = {
    "step": "dispersion between bands [pixel]",
    "mask_element": "side of a mask element [pixel]",
    "bands": "bands",
    "electrons": "electrons in the brightest pixel",
}


@styled
def choices_figure(rows: Sequence[Mapping[str, float]], *, value: str = "psnr", label: str = "PSNR [dB]") -> Figure:
    """A panel for each choice of which there is more than one value.

    Dots and the thick line are means over all other choices; a thin line joins cameras that differ in this alone.

    Args:
        rows: of each camera its choices, by the names in `LABELS`, and what it reached.
        value, label: which of these is shown, and what it is called.
    """
    varied = [name for name in LABELS if len({row[name] for row in rows}) > 1] or ["step"]
    figure, panels = plots(max(3.4, 4.8 / len(varied)), 3.5, columns=len(varied), title="What each choice is worth")
    for axes, name, color in zip(panels, varied, PALETTE, strict=False):
        others = [other for other in LABELS if other != name]
        lines: dict[tuple[float, ...], list[tuple[float, float]]] = {}
        for row in rows:
            lines.setdefault(tuple(row[other] for other in others), []).append((row[name], row[value]))
        for line in lines.values():
            axes.plot(*np.array(sorted(line)).T, color=MUTED, linewidth=0.6, alpha=0.45)
        ticks = sorted({row[name] for row in rows})
        means = [np.mean([row[value] for row in rows if row[name] == tick]) for tick in ticks]
        axes.plot(ticks, means, "o-", color=color, linewidth=2.2, markersize=5, zorder=3)
        if name == "electrons":
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        axes.set_xlabel(LABELS[name])
    panels[0].set_ylabel(label)
    low, high = (f(row[value] for row in rows) for f in (min, max))
    for axes in panels:
        axes.set_ylim(low - 0.05 * (high - low) - 0.1, high + 0.05 * (high - low) + 0.1)
        axes.tick_params(labelleft=axes is panels[0])
    return figure
