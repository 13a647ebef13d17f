"""What speaks against a measurement or a result, in sentences: warnings of the program, notes of the result."""

import math

import numpy as np
import torch
from torch import Tensor

from cassi.choice.doubts import CONCERN, bend_warnings, fit_warnings, imprint_warnings, texture_warnings
from cassi.errors import Note
from cassi.optics.measurement import MAX_TRANSMISSION, Measurement
from cassi.running.result import Reconstruction

MAX_NEGATIVE = 0.05  # of the light; with the right black level real captures, noise and all, have 0.01
MAX_EXCLUDED = 0.1  # of the detector pixels: half of them saturated cost 9 dB
SURE = 6.0  # standard errors of a bend
MAX_RATIO = 1.5  # times as bright, for its mask, as another shot of the scene


def measurement_concerns(m: Measurement) -> tuple[str, ...]:
    """All that speaks against a measurement before it is reconstructed, but for a mask that does not fit."""
    concerns = (_excluded(m), _below_zero(m), _shots_differ(m), _noisy(m), _mask_unit(m))
    return tuple(Note(text, CONCERN) for text in concerns if text is not None)


def _good(m: Measurement) -> np.ndarray:
    return m.y if m.bad_pixels is None else m.y[..., ~m.bad_pixels]


def _excluded(m: Measurement) -> str | None:
    """Too few pixels are left: what the others saw is guessed from those around them."""
    share = 0.0 if m.bad_pixels is None else float(m.bad_pixels.mean())
    if share <= MAX_EXCLUDED:
        return None
    saturated = int(m.origin.get("saturated", 0))
    of_these = f", {saturated / m.bad_pixels.size:.0%} as saturated" if saturated and m.bad_pixels is not None else ""
    text = (
        f"{share:.0%} of the detector pixels are excluded{of_these}: what they saw is guessed from their neighbors; "
        "expose for less light, or check the level of saturation and the map of bad pixels"
    )
    return Note(text, cures=("saturation", "bad_pixels"))


def _below_zero(m: Measurement) -> str | None:
    """sum max(-y, 0) > 0.05 sum max(y, 0),  over the good pixels: noise alone takes little of the light below 0."""
    y = _good(m)
    below, above = (float(np.maximum(sign * y, 0).sum(dtype=np.float64)) for sign in (-1, 1))
    if not below > MAX_NEGATIVE * above:
        return None
    text = (
        f"negative values make up {below / (below + above):.0%} of |y|: the black level is too high or was "
        "subtracted twice, or the snapshot is mostly noise; check the black level"
    )
    return Note(text, cures=("black_level",))


def _shots_differ(m: Measurement) -> str | None:
    """Shots of one scene by different exposures: the light of each over that of its mask, sum y_k / sum m_k."""
    if m.shots is None:
        return None
    good = [one.y if one.bad_pixels is None else one.y * ~one.bad_pixels for one in m.each_shot]
    light = [float(y.sum(dtype=np.float64) / np.abs(mask).sum()) for y, mask in zip(good, m.mask, strict=True)]
    low, high = int(np.argmin(light)), int(np.argmax(light))
    if light[low] <= 0 or light[high] <= MAX_RATIO * light[low]:
        return None
    return (
        f"shot {high + 1} is {light[high] / light[low]:.2g} times as bright as shot {low + 1}, their masks taken into "
        "account: shots of one scene need one exposure and one light; scale them alike"
    )


def _mask_unit(m: Measurement) -> str | None:
    """A mask of floats in percent or counts, which keeps its unit: the cube's is that of y over that of the mask."""
    highest = float(np.abs(m.mask).max())
    if highest <= MAX_TRANSMISSION:
        return None
    return (
        f"the mask's largest value is {highest:.4g}, where a transmission is at most 1: the cube comes out that many "
        "times too small; divide the mask by its largest value"
    )


def _noisy(m: Measurement) -> str | None:
    """A gain that cannot be: its noise exceeds the signal."""
    noise = _stated_noise(m)
    if noise is None or not noise > 1:
        return None
    signal = float(np.sqrt(np.mean(np.square(_good(m), dtype=np.float64))))
    return (
        f"by gain and read noise, {m.gain:.4g} electrons per unit of the measurement and {m.read_noise or 0:g} "
        f"electrons, noise exceeds signal ({noise * signal:.3g} against {signal:.3g}, {m.unit}); check both, or leave "
        "them out"
    )


def _stated_noise(m: Measurement, black: float = 0.0) -> float | None:
    """sqrt(mean(max(y, 0) / gain + (read noise / gain)^2) / mean(y^2)),  over the good pixels, y less a black level;
    None where the gain is unknown."""
    if m.gain is None or not m.gain > 0:
        return None
    y = _good(m) - np.float32(black)
    gain, dark = float(m.gain), float(m.read_noise or 0) / float(m.gain)  # Python's numbers overflow in silence
    noise = math.sqrt(float(np.mean(np.maximum(y, 0))) / gain + dark * dark)
    signal = float(np.sqrt(np.mean(np.square(y, dtype=np.float64))))
    return noise / signal if signal > 0 else math.inf


def result_concerns(result: Reconstruction) -> tuple[str, ...]:
    """All that speaks against a result, but for a wrong mask, of which the rest follows.

    Another solver or a short run leave more of the snapshot, and an imprint, anyway.
    """
    finished = result.parameters.get("solver") == "auto" and result.status != "stopped"
    fits = result.check is None or result.check.matches
    if not fits:
        return ()
    m = result.measurement
    noise = None if m is None else _stated_noise(m, result.outcomes[0].black_level)
    long = finished and result.parameters.get("num_iters") is None
    poor = fit_warnings(result.residual, noise, finished=long)
    if result.camera is not None and result.camera.disputed:
        poor = (*poor, Note(result.camera.detector, CONCERN, cures=("bad_pixels",)))
    if not finished:
        return poor
    texture = texture_warnings(result.unresolved, result.wavelengths) if long else ()
    return (*(poor or bend_warnings(result.bend if long else None)), *imprint_warnings(result.imprint), *texture)


def bend_of(y: Tensor, residual: Tensor) -> float | None:
    """How the residual bends with the light: its correlation with (Phi x)^2, both without their fit by a line.

    Negative where counts rise less than the light, as by a gamma curve. Over the pixels that were not excluded, whose
    residual is 0; 0 within `SURE` standard errors, None for a few pixels.
    """
    known = residual != 0
    r, light = residual[known].double(), (y - residual)[known].double()
    if len(r) < SURE**2:
        return None
    light = light / light.abs().mean().clamp(min=torch.finfo(torch.float64).tiny)
    line = torch.stack([torch.ones_like(light), light], 1)
    both = torch.stack([light.square(), r], 1)
    a, b = (both - line @ torch.linalg.lstsq(line, both).solution).unbind(1)
    size = float(a.norm() * b.norm())
    bend = float(a @ b) / size if size > 0 else 0.0
    return bend if abs(bend) * math.sqrt(len(r)) > SURE else 0.0
