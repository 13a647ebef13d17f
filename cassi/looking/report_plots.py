"""The drawings of a report: Bokeh figures without data, which the page's own script fills and colors."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cassi.errors import InputError

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

FONT = "system-ui"
RESIDUAL, CHANGE, PASSING = "#4285d6", "#e2711d", "#8a8f98"


def bokeh_script() -> str:
    """BokehJS, without its widgets, tables and formulas.

    Raises:
        InputError: Bokeh is not installed.
    """
    try:
        from bokeh.resources import Resources
    except ImportError as error:
        raise InputError(f'the report needs Bokeh: python -m pip install "cassi[report]" ({error})') from error
    return str(Resources(mode="inline", components=["bokeh"], minified=True).js_raw[0])


def drawings(
    scene: tuple[int, int],
    snapshots: dict[str, tuple[int, int]],
    *,
    convergence: bool,
    band_label: str,
    value_label: str,
) -> dict[str, object]:
    """All figures of a page as one Bokeh document, with the elements they go to, for `Bokeh.embed.embed_items`.

    Args:
        scene: (H, W) of the cube.
        snapshots: (H, W') of "measurement" and "residual", of those that are shown.
        convergence: draw the curves of the solver too.
        band_label, value_label: axes of the spectra.
    """
    return _drawings(scene, tuple(snapshots.items()), convergence, band_label, value_label)


@lru_cache(maxsize=8)  # they hold no data: results of one size and unit have the same, and they take half a second
def _drawings(
    scene: tuple[int, int],
    snapshots: tuple[tuple[str, tuple[int, int]], ...],
    convergence: bool,
    band_label: str,
    value_label: str,
) -> dict[str, object]:
    from bokeh.document import Document

    figures = {"picture": _picture("picture", scene), "band": _picture("band", scene)}
    _mark(figures["picture"], figures["band"])
    figures["spectra"] = _spectra(band_label, value_label)
    figures.update({name: _picture(name, shape) for name, shape in snapshots})
    if convergence:
        figures["convergence"] = _curves()
    document = Document()
    with document.models.freeze():  # all are gone through once, not again with each that is added
        for figure in figures.values():
            document.add_root(figure)
    roots = {figure.id: f"plot-{name}" for name, figure in figures.items()}
    return {"document": document.to_json(deferred=False), "roots": roots}


def _picture(name: str, shape: tuple[int, int]) -> Figure:
    """A picture with row 0 at the top; one pixel is one unit, so that floor(y), floor(x) are row and column."""
    from bokeh.models import BoxSelectTool, LinearColorMapper, PanTool, Range1d, ResetTool, WheelZoomTool
    from bokeh.palettes import Greys256
    from bokeh.plotting import figure

    height, width = shape
    plot = figure(
        name=name,
        x_range=Range1d(0, width, bounds=(0, width)),
        y_range=Range1d(height, 0, bounds=(0, height)),
        tools=[],
        toolbar_location="above",
        toolbar_inner=True,
        sizing_mode="stretch_both",
        min_border=0,
    )
    _bare(plot)
    plot.axis.visible = False
    plot.grid.visible = False
    plot.add_tools(PanTool(), WheelZoomTool(), ResetTool())
    plot.toolbar.active_drag = None
    if name in ("picture", "band"):
        box = BoxSelectTool(persistent=False, description="Mean spectrum of a box")
        plot.add_tools(box)
        plot.toolbar.active_drag = box
    if name == "picture":
        plot.image_rgba(image=[np.zeros((1, 1), np.uint32)], x=0, y=0, dw=width, dh=height)
    else:
        colors = LinearColorMapper(palette=list(Greys256), low=0, high=1, nan_color="#00000000", name=f"{name}-colors")
        plot.image(image=[np.zeros((1, 1), np.float32)], x=0, y=0, dw=width, dh=height, color_mapper=colors)
    return plot


def _mark(*plots: Figure) -> None:
    """Show in each picture where spectra were taken and where the cursor is; move the pictures together."""
    from bokeh.models import ColumnDataSource, Text

    boxes = ColumnDataSource({name: [] for name in ("left", "right", "top", "bottom", "color")}, name="boxes")
    points = ColumnDataSource({name: [] for name in ("x", "y", "color")}, name="points")
    numbers = ColumnDataSource({name: [] for name in ("x", "y", "text", "color")}, name="numbers")
    cursor = ColumnDataSource({name: [] for name in ("x", "y")}, name="cursor")
    label = Text(
        x="x",
        y="y",
        text="text",
        text_color="white",
        text_font={"value": FONT},
        text_font_size="12px",
        text_font_style="bold",
        text_baseline="middle",
        background_fill_color="color",
        padding=2,
        border_radius=4,
        x_offset=9,
        y_offset=-9,
    )
    for plot in plots:
        plot.x_range, plot.y_range = plots[0].x_range, plots[0].y_range
        for color, width, alpha in (("black", 4, 0.6), ("color", 2, 1.0)):  # a dark rim, to be seen on any color
            plot.quad("left", "right", "top", "bottom", source=boxes, fill_color=None, line_color=color,
                      line_width=width, line_alpha=alpha)  # fmt: skip
            plot.scatter("x", "y", source=points, size=13, fill_color=None, line_color=color,
                         line_width=width, line_alpha=alpha)  # fmt: skip
        plot.add_glyph(numbers, label)
        for color, width in (("black", 3), ("white", 1)):
            plot.scatter("x", "y", source=cursor, marker="cross", size=22, line_color=color, line_width=width)


def _spectra(band_label: str, value_label: str) -> Figure:
    from bokeh.models import ColumnDataSource, PlainText, Span
    from bokeh.plotting import figure

    plot = figure(
        name="spectra",
        height=340,
        sizing_mode="stretch_width",
        tools="pan,xwheel_zoom,reset",
        toolbar_location="above",
        toolbar_inner=True,
        min_border_right=12,
    )
    _bare(plot)
    plot.toolbar.active_drag = None
    _quiet(plot)
    # PlainText: no text from the input is read as a formula
    plot.xaxis.axis_label = PlainText(text=band_label)
    plot.yaxis.axis_label = PlainText(text=value_label)
    spread, truth, kept = (
        ColumnDataSource({"xs": [], "ys": [], "color": []}, name=name) for name in ("spread", "truth", "kept")
    )
    dots = ColumnDataSource({"x": [], "y": [], "color": []}, name="dots")
    passing = ColumnDataSource({"x": [], "y": []}, name="passing")
    plot.add_layout(Span(location=0, dimension="height", line_width=6, line_alpha=0.35, name="here", level="underlay"))
    plot.patches("xs", "ys", source=spread, fill_color="color", fill_alpha=0.16, line_color=None)
    plot.line("x", "y", source=passing, line_color=PASSING, line_width=1.5)
    plot.multi_line("xs", "ys", source=truth, line_color="color", line_width=1.6, line_dash=[5, 4])
    plot.multi_line("xs", "ys", source=kept, line_color="color", line_width=2.2)
    plot.scatter("x", "y", source=dots, fill_color="color", line_color=None, size=5)
    return plot


def _curves() -> Figure:
    from bokeh.models import ColumnDataSource
    from bokeh.plotting import figure

    plot = figure(
        name="convergence",
        height=260,
        sizing_mode="stretch_width",
        y_axis_type="log",
        tools="hover",
        tooltips=[
            ("iteration", "@iteration"),
            ("seconds", "@seconds{0.00}"),
            ("residual", "@residual{0.00e+0}"),
            ("change", "@change{0.00e+0}"),
        ],
        toolbar_location=None,
        min_border_right=12,
    )
    _bare(plot)
    _quiet(plot)
    source = ColumnDataSource({name: [] for name in ("iteration", "seconds", "residual", "change")}, name="history")
    for name, color in (("residual", RESIDUAL), ("change", CHANGE)):
        plot.line("iteration", name, source=source, line_color=color, line_width=2.2, legend_label=name)
        plot.scatter("iteration", name, source=source, fill_color=color, line_color=None, size=4, legend_label=name)
    plot.xaxis.axis_label = "iteration"
    plot.add_layout(plot.legend[0], "above")
    plot.legend.orientation = "horizontal"
    plot.legend.padding = 0
    plot.legend.background_fill_alpha = 0
    plot.legend.border_line_color = None
    plot.legend.label_text_font = FONT
    return plot


def _bare(plot: Figure) -> None:
    """No frame and no ground of its own: those are the page's, light or dark."""
    plot.outline_line_color = None
    plot.background_fill_color = None
    plot.border_fill_color = None
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.toolbar.active_scroll = None


def _quiet(plot: Figure) -> None:
    """Thin lines and the page's type."""
    plot.xgrid.visible = False
    plot.axis.axis_label_text_font = FONT
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_text_font_size = "13px"
    plot.axis.major_label_text_font = FONT
    plot.axis.major_label_text_font_size = "12px"
    plot.axis.minor_tick_line_color = None
    plot.axis.major_tick_in = 0
    plot.yaxis.axis_line_color = None
    plot.yaxis.major_tick_line_color = None
