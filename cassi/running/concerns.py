"""Concerns about a measurement, a result or a reflectance: warnings of the program, notes of the result.

`OF_MEASUREMENT`, `OF_RESULT` and `OF_REFLECTANCE` list the tests. Each returns a sentence with the settings that are
its cure, or None where all is well.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from cassi.errors import Note, counted
from cassi.evidence.judge import MAX_IMPRINT, POOR_FIT
from cassi.optics.measurement import MAX_TRANSMISSION, MaskCheck, Measurement
from cassi.running.result import CONCERN, Reconstruction
from cassi.running.white import MAX_REFLECTANCE, WEAK

MAX_NEGATIVE = 0.05  # of the light; with the right black level real captures, noise and all, have 0.01
MAX_EXCLUDED = 0.1  # of the detector pixels: half of them saturated cost 9 dB
SURE = 6.0  # standard errors of a bend
MAX_RATIO = 1.5  # times as bright, for its mask, as another shot of the scene
# Residuals of good runs are up to 0.05; 0.07 is the noise of pixels of 1 / 0.07^2 = 200 electrons.
MAX_RESIDUAL, MIN_RESIDUAL = 0.07, 0.05
TIMES_NOISE = 2.0
MAX_BEND = 0.05  # 0.00 to 0.035 in good runs, 0.06 to 0.4 with y^(1/1.5), unless noise or a grey mask hide it
MAX_BRIGHT = 0.001  # share of the values of a reflectance above `MAX_REFLECTANCE`
# What puts right a mask that does not fit, by the kind of the misfit.
CURES = {"displaced": ("align",), "bands or blur": ("align",), "reversed": ("step",), "bands": ("num_bands", "step")}

Subject = TypeVar("Subject")


class Reflectance(NamedTuple):
    """A cube (C, H, W) [reflectance], and the light that it was divided by, likewise."""

    light: Tensor
    cube: Tensor
    wavelengths: np.ndarray | None


def concerns_of(tests: Iterable[Callable[[Subject], Note | None]], subject: Subject) -> tuple[Note, ...]:
    """The concerns about a measurement or a result by these tests."""
    return tuple(Note(concern, CONCERN) for test in tests if (concern := test(subject)) is not None)


def misfit(check: MaskCheck) -> Note:
    """The verdict on a mask that does not fit, and the settings that put it right."""
    return Note(check.verdict, check.kind, ("turn_mask",) if check.turn else CURES.get(check.kind, ()))


def _good(m: Measurement) -> np.ndarray:
    return m.y if m.bad_pixels is None else m.y[..., ~m.bad_pixels]


def _excluded(m: Measurement) -> Note | None:
    """Too few pixels are left: what the others saw is guessed from those around them."""
    if m.bad_pixels is None or (share := m.bad_pixels.mean()) <= MAX_EXCLUDED:
        return None
    saturated = int(m.origin.get("saturated", 0)) / m.bad_pixels.size
    text = (
        f"{share:.0%} of the detector pixels are excluded{f', {saturated:.0%} as saturated' if saturated else ''}: "
        "what they saw is guessed from their neighbors; expose for less light, or check the level of saturation and "
        "the map of bad pixels"
    )
    return Note(text, cures=("saturation", "bad_pixels"))


def _below_zero(m: Measurement) -> Note | None:
    """sum max(-y, 0) > 0.05 sum max(y, 0),  over the good pixels: noise alone takes little of the light below 0."""
    y = _good(m)
    below, above = (float(np.maximum(sign * y, 0).sum(dtype=np.float64)) for sign in (-1, 1))
    text = (
        f"negative values make up {below / (below + above or 1):.0%} of |y|: the black level is too high or was "
        "subtracted twice, or the snapshot is mostly noise; check the black level"
    )
    return Note(text, cures=("black_level",)) if below > MAX_NEGATIVE * above else None


def _shots_differ(m: Measurement) -> Note | None:
    """Shots of one scene by different exposures: the light of each, relative to its mask, sum y_k / sum m_k."""
    if m.shots is None:
        return None
    good = [shot.y if shot.bad_pixels is None else shot.y * ~shot.bad_pixels for shot in m.each_shot]
    light = [float(y.sum(dtype=np.float64) / np.abs(mask).sum()) for y, mask in zip(good, m.mask, strict=True)]
    low, high = int(np.argmin(light)), int(np.argmax(light))
    if light[low] <= 0 or light[high] <= MAX_RATIO * light[low]:
        return None
    return Note(
        f"shot {high + 1} is {light[high] / light[low]:.2g} times as bright as shot {low + 1}, their masks taken into "
        "account: shots of one scene need one exposure and one light; scale them alike"
    )


def _noisy(m: Measurement) -> Note | None:
    """A gain that cannot be: its noise exceeds the signal."""
    noise = _stated_noise(m)
    if noise is None or not noise > 1:
        return None
    signal = float(np.sqrt(np.mean(np.square(_good(m), dtype=np.float64))))
    return Note(
        f"by gain and read noise, {m.gain:.4g} electrons per unit of the measurement and {m.read_noise or 0:g} "
        f"electrons, noise exceeds signal ({noise * signal:.3g} against {signal:.3g}, {m.unit}); check both, or leave "
        "them out"
    )


def _mask_unit(m: Measurement) -> Note | None:
    """A mask of floats in percent or counts, which keeps its unit: the cube's is the unit of y over the mask's."""
    text = (
        f"the mask's largest value is {(highest := np.abs(m.mask).max()):.4g}, where a transmission is at most 1: the "
        "cube comes out that many times too small; divide the mask by its largest value"
    )
    return Note(text) if highest > MAX_TRANSMISSION else None


OF_MEASUREMENT = _excluded, _below_zero, _shots_differ, _noisy, _mask_unit


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


def _is_default(result: Reconstruction) -> bool:
    """Whether the default solver has ended by itself; another leaves more of the snapshot, and an imprint, anyway."""
    return result.parameters.get("solver") == "auto" and result.status != "stopped"


def _is_complete(result: Reconstruction) -> bool:
    """Whether no more than noise should be left: the default solver, with all its iterations."""
    return _is_default(result) and result.parameters.get("num_iters") is None


def _is_seen_singly(result: Reconstruction) -> bool:
    """Whether a detector pixel sees one scene pixel, as in a mosaic: what it leaves unexplained speaks of no camera,
    and held-out pixels, which set the noise where none is stated, show how well the scene interpolates."""
    return result.measurement is not None and not any(result.measurement.shifts)


def _poor(result: Reconstruction) -> Note | None:
    much = "leaves much of the snapshot unexplained"
    text = (
        f"the cube {much if result.residual < 1 else 'explains less than a black cube would'} (residual "
        f"{result.residual:.0%}): the solver diverged, there is little but noise or less than was given, or the camera "
        "is another; check mask, bands, gain, blur and solver"
    )
    return Note(text) if result.residual > POOR_FIT else None


def _unexplained(result: Reconstruction) -> Note | None:
    """More than the noise that is stated for the camera, or than the noise of weak light."""
    m, residual = result.measurement, result.residual
    noise = None if m is None else _stated_noise(m, result.outcomes[0].black_level)
    limit = MAX_RESIDUAL if noise is None else max(TIMES_NOISE * noise, MIN_RESIDUAL)
    if not (_is_complete(result) and limit < residual <= POOR_FIT) or (noise is None and _is_seen_singly(result)):
        return None
    beside = f"{residual / noise:.1f} times its noise" if noise else f"as noise below {residual**-2:.0f} electrons"
    text = (
        f"the cube leaves {residual:.0%} of the snapshot unexplained, {beside}: the bands lie elsewhere or unevenly, "
        "the mask is blurred, pixels are dead, or light is scarce; check shifts, blur and bad pixels"
    )
    return Note(text, cures=("shifts", "psf", "bad_pixels"))


def _disputed(result: Reconstruction) -> Note | None:
    camera = result.camera
    return None if camera is None or not camera.disputed else Note(camera.detector, cures=("bad_pixels",))


def _bent(result: Reconstruction) -> Note | None:
    """Counts that are no linear measure of light, where nothing else is wrong with the fit."""
    bend = result.bend if _is_complete(result) and not _is_seen_singly(result) else None
    if bend is None or abs(bend) <= MAX_BEND or concerns_of((_poor, _unexplained, _disputed), result):
        return None
    return Note(
        f"the residual bends with brightness ({bend:+.2f}, good: within {MAX_BEND:g}): the counts do not rise with the "
        "light, as with the gamma curve of 8-bit cameras or near saturation; record linear counts, or undo the curve"
    )


def _unpredicted(result: Reconstruction) -> Note | None:
    error = 0.0 if result.outcomes[0].evidence is None else result.outcomes[0].evidence.held_out_error
    text = f"the cube does not predict held-out pixels: their error is {error:.0%}"
    return Note(text) if error > POOR_FIT >= result.residual else None


def _imprinted(result: Reconstruction) -> Note | None:
    imprint = result.imprint if _is_default(result) else None
    if imprint is None or imprint <= MAX_IMPRINT:
        return None
    what = f"the mask's pattern is left in the cube (imprint {imprint:.2f}, good: below {MAX_IMPRINT:g})"
    return Note(f"{what}: the mask does not fit the snapshot, or noise was fitted; calibrate the camera again")


def _unresolved(result: Reconstruction) -> Note | None:
    """Bands whose fine texture is not the scene's (`cassi.evidence.texture`)."""
    nm = result.wavelengths
    names = ", ".join(f"{b + 1}" if nm is None else f"{nm[b]:.0f}" for b in result.unresolved)
    refined = result.camera is None or not result.camera.accepted
    refined &= result.measurement is not None and result.measurement.mask_error is not None  # as its file states
    several = "more captures" if refined else "several captures"
    cure = "" if _is_seen_singly(result) else f", or learn the mask from {several} (calibrate refine)"
    text = (
        f"fine texture is not resolved at {f'band {names}' if nm is None else f'{names} nm'}: light is weak there, and "
        f"no other band shows it; trust coarser detail alone{cure}"
    )
    return Note(text) if _is_complete(result) and names else None


OF_RESULT = _poor, _unexplained, _disputed, _bent, _unpredicted, _imprinted, _unresolved


def _dim(result: Reflectance) -> Note | None:
    """Bands with little light on the reference."""
    light, nm = result.light.mean((1, 2), dtype=torch.float64).numpy(), result.wavelengths
    weak = np.flatnonzero(light < WEAK * light.max())
    if not weak.size:
        return None
    names = ", ".join(f"{k + 1}" if nm is None else f"{nm[k]:.0f} nm" for k in weak[:6]) + ", ..." * (weak.size > 6)
    return Note(
        f"the reference has little light in {weak.size} of {counted(light.size, 'band')} ({names}): "
        f"{light[weak].min() / light.max():.1%} of the brightest band, reflectance there is mostly noise; use a lamp "
        "with light in them, or leave them out"
    )


def _too_bright(result: Reflectance) -> Note | None:
    """Values that no surface has."""
    share = sum(int((band > MAX_REFLECTANCE).sum()) for band in result.cube) / result.cube.numel()
    text = (
        f"{share:.1%} of the values are above {MAX_REFLECTANCE:g}, which no matt surface reflects: exposure or light "
        "of scene and reference differ, or there are highlights"
    )
    return Note(text) if share > MAX_BRIGHT else None


OF_REFLECTANCE = _dim, _too_bright


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
