"""Frames larger than memory: overlapping tiles, each an exact reconstruction problem of its own, blended into a file.

A detector column t is lit by the scene columns t - s_c alone, s_c = d_c - min d, 0 <= s_c <= span. Of a block of scene
columns [a, b) the detector columns [a + span, b) are therefore explained by the block and nothing else; those beside
them also hold light of the neighbors and get the row weight 0, which leaves them out exactly. At the border of the
frame nothing lies outside, and all columns count. A block is its tile and, on every side, a margin of 2 `span` columns:
with the first span every pixel of the tile keeps all its detector pixels, with the second so do the pixels that share
one with it. `reach` pixels more are for the prior.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import CANDIDATE_ITERS, PRIOR_STRENGTH, NoiseModel, reconstruct_auto
from cassi.choice.by_name import SOLVERS, TV_WEIGHT, gaussian_variance, solve_as_told, solve_gaussian
from cassi.errors import InputError
from cassi.files.spectral_libraries import as_spectral_prior
from cassi.kernels.dispatch import pick_device
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.building import camera_of
from cassi.optics.detector import black_level_of, brightness
from cassi.optics.measurement import check_arrays
from cassi.optics.single_disperser import CASSI
from cassi.priors.gaussian_spectra import SpectralPrior, smooth_spectral_prior
from cassi.solvers.loop import Loop, Record, relative_norm
from cassi.solvers.subspace_tv import subspace_tv
from cassi.version import PROGRAM

if TYPE_CHECKING:
    from cassi.optics.measurement import Measurement

__all__ = ["Tile", "TiledResult", "reconstruct_tiled", "solve_tiled", "tile_grid", "tiled_solver"]

Camera = CASSI | BlurredCASSI
Solve = Callable[[Camera, Tensor], Tensor]
"""The cube (C, h, w) of a block from its camera, whose row weights leave out foreign light, and its measurement."""

REACH = 32  # pixels beyond which a prior hardly feels its surroundings
STRIP = 64  # rows of the residual image computed at a time


@dataclass(frozen=True, eq=False)
class Tile:
    """One tile: the block of the scene that is solved for, and the part of it that is kept.

    Attributes:
        block: rows and columns of the frame that are solved for.
        kept: rows and columns of the frame that the tile contributes to, within the block.
        window: weights (h, w) of `kept`; over all tiles they sum to 1 at every pixel.
    """

    block: tuple[slice, slice]
    kept: tuple[slice, slice]
    window: Tensor


@dataclass(frozen=True, eq=False)
class TiledResult:
    """What is known of a cube that lies in a file.

    Attributes:
        path: the file.
        shape: (C, H, W) of the cube in it.
        history: one Record a tile, its residual over the detector pixels it was solved from.
        residual: |y - Phi x| / |y| over the good detector pixels of the frame.
        seconds: wall time.
        choice: what was chosen, once for all tiles, and on what evidence; plain values.
    """

    path: Path
    shape: tuple[int, int, int]
    history: tuple[Record, ...]
    residual: float
    seconds: float
    choice: Mapping[str, Any] = field(default_factory=dict)


def tile_grid(A: Camera, tile: int, *, reach: int = REACH) -> list[Tile]:
    """Cut a frame into tiles of about equal size, at most `tile` pixels wide and high, with margins and windows.

    Args:
        A: the camera of the whole frame.
        tile: size [pixel], at least 1.
        reach: of the prior [pixel], at least 0; half of it is blended.

    Raises:
        ValueError: tile below 1 or reach below 0.

    Example:
        >>> A = CASSI.from_step(torch.ones(8, 40), step=1, num_bands=3)
        >>> [(t.block[1].start, t.block[1].stop) for t in tile_grid(A, 20, reach=4)]
        [(0, 28), (12, 40)]
    """
    if tile < 1 or reach < 0:
        raise ValueError(f"tile must be at least 1 and reach at least 0 [pixel], got {tile} and {reach}")
    axes = [
        list(_axis(length, tile, reach, high - low))
        for length, (low, high) in zip(A.cube_shape[-2:], _light_reach(A), strict=True)
    ]
    return [
        Tile((row[0], column[0]), (row[1], column[1]), torch.outer(row[2], column[2]))
        for row in axes[0]
        for column in axes[1]
    ]


def solve_tiled(
    A: Camera,
    y: Tensor,
    solve: Solve,
    add: Callable[[slice, slice, Tensor], object],
    *,
    tile: int,
    reach: int = REACH,
    progress: bool = False,
) -> tuple[Record, ...]:
    """Solve tile by tile and hand over the parts of the cube, weighted so that their sum is the cube.

        x = sum_k window_k x_k,    sum_k window_k = 1

    Args:
        A: the camera of the whole frame.
        y: measurement (H, W'), weighted as the operator.
        solve: any solver, with settings that are the same for all tiles: weights, scale and basis chosen in a tile
            would show as seams.
        add: called as add(rows, columns, values) with values (C, h, w) to be added to the cube there.
        tile, reach: as for `tile_grid`.
        progress: show a progress bar over the tiles.

    Returns:
        One Record a tile, its residual over the detector pixels it was solved from.

    Raises:
        ValueError: y not (H, W'), or tile or reach too small.

    Example:
        >>> A = CASSI.from_step(torch.ones(8, 40), step=1, num_bands=3)
        >>> y, x = A.forward(torch.ones(3, 8, 40)), torch.zeros(3, 8, 40)
        >>> _ = solve_tiled(A, y, lambda a, b: a.pinv(b), lambda r, c, v: x[:, r, c].add_(v), tile=20, reach=4)
        >>> bool(torch.allclose(x, A.pinv(y)))
        True
    """
    if tuple(y.shape) != A.measurement_shape:
        raise ValueError(f"y must be one snapshot {A.measurement_shape}, got {tuple(y.shape)}")
    tiles = tile_grid(A, tile, reach=reach)
    loop = Loop(len(tiles), tol=0.0, monitor=None, progress=progress, name="tiles")
    for k in loop:
        one = tiles[k]
        a, b = crop(A, y, one)
        x = solve(a, b)
        residual = relative_norm(b - a.forward(x), b)
        rows, columns = (
            slice(kept.start - block.start, kept.stop - block.start)
            for kept, block in zip(one.kept, one.block, strict=True)
        )
        values = x[:, rows, columns] * one.window.to(x)
        add(*one.kept, values)
        loop.record(values, residual=residual, change=0.0)
    return loop.result(y).history


def crop(A: Camera, y: Tensor, tile: Tile) -> tuple[Camera, Tensor]:
    """The camera and measurement of one block: detector pixels that hold light from outside have the row weight 0."""
    rows, columns = tile.block
    (low_i, high_i), (low_j, high_j) = _light_reach(A)
    height, width = A.cube_shape[-2:]
    detector = slice(columns.start, columns.stop + A.measurement_shape[-1] - width)
    first_i = rows.start + high_i if rows.start > 0 else 0
    last_i = rows.stop + low_i if rows.stop < height else height
    first_j = columns.start + high_j if columns.start > 0 else 0
    last_j = columns.stop + low_j if columns.stop < width else detector.stop
    present = y.new_ones(A.measurement_shape) if A.weights is None else A.weights
    weights = torch.zeros_like(y[rows, detector])
    inside = slice(first_i - rows.start, last_i - rows.start), slice(first_j - columns.start, last_j - columns.start)
    weights[inside] = present[rows, detector][inside]
    own = replace(A, mask=A.mask[..., rows, columns], weights=weights)
    return own, torch.where(weights > 0, y[rows, detector], 0)


def reconstruct_tiled(
    measurement: Measurement,
    output: str | os.PathLike[str],
    *,
    tile: int = 512,
    reach: int = REACH,
    solver: str = "auto",
    num_iters: int | None = None,
    tv_weight: float | None = None,
    spectral_prior: SpectralPrior | Sequence[str | os.PathLike[str]] | None = None,
    black_level: float | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    attributes: Mapping[str, object] | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> TiledResult:
    """Reconstruct a frame larger than memory: in overlapping tiles, written to an HDF5 file one by one.

    Scale, noise, spectral basis and number of iterations are chosen once, "auto" from the central tile, and are the
    same everywhere. The memory taken depends on the tile, and on the measurement, but not on the cube.

    Args:
        measurement: one snapshot with its mask and shifts.
        output: .h5 or .hdf5 file to make; beside `/cube` it holds `/wavelengths`, `/history` (a line a tile),
            `/measurement`, and `/residual`.
        tile: size of a tile [pixel]; margins of twice the dispersion and of `reach` come on top.
        reach: how far a prior carries information [pixel].
        solver, num_iters, tv_weight, device, seed: as for `cassi.reconstruct`.
        spectral_prior, black_level: as for `cassi.reconstruct`.
        attributes: further provenance by name.
        overwrite: replace an existing file.
        progress: show a progress bar over the tiles.

    Returns:
        TiledResult.

    Raises:
        InputError: a stack of snapshots, an unknown solver, settings that it does not take, or tile or reach too small.
        OutputError: the file cannot be written; nothing is left behind.

    Example:
        >>> from cassi.optics.measurement import Measurement
        >>> A = CASSI.from_step(torch.ones(8, 40), step=1, num_bands=3)
        >>> y = A.forward(torch.ones(3, 8, 40)).numpy()
        >>> m = Measurement(y=y, mask=A.mask.numpy(), shifts=A.shifts)
        >>> path = os.path.join(tempfile.mkdtemp(), "cube.h5")
        >>> reconstruct_tiled(m, path, tile=20, reach=4, solver="least-squares").shape
        (3, 8, 40)
    """
    from cassi.files.cube_parts import cube_in_parts

    start = time.perf_counter()
    m = measurement
    if m.y.ndim != 2:
        raise InputError(f"tiles are for single snapshots (H, W'), got {m.y.shape}; give one frame at a time")
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver!r}, expected one of {', '.join(SOLVERS)}")
    if tv_weight is not None and solver not in TV_WEIGHT:
        raise InputError(f"{solver} takes no TV weight; leave it out or choose another solver")
    if spectral_prior is not None and solver not in ("auto", "gaussian"):
        raise InputError(f"{solver} takes no spectral prior; leave it out or choose auto or gaussian")
    if tile < max(1, reach) or reach < 0:
        raise InputError(
            f"tiles of {tile} px with {reach} px around them are all border; take {max(1, 2 * reach)} px or more"
        )
    check_arrays(m)
    on = pick_device(device)
    A, y = camera_of(m, on), torch.as_tensor(m.y, dtype=torch.float32, device=on)
    good = None if m.bad_pixels is None else torch.as_tensor(~m.bad_pixels, device=on)
    A = A if good is None else A.weighted(good.to(A.dtype))
    black = black_level_of(A, y) if black_level is None else black_level
    y = y - black if good is None else torch.where(good, y - black, 0)
    level = brightness(A, y)
    gain = None if m.gain is None else m.gain * level
    prior = as_spectral_prior(spectral_prior, A.num_bands, m.wavelengths)
    solve, choice = tiled_solver(
        A, y / level, solver, tile=tile, reach=reach, num_iters=num_iters, tv_weight=tv_weight,
        wavelengths=m.wavelengths, prior=prior, gain=gain, read_noise=m.read_noise, seed=seed,
    )  # fmt: skip
    choice |= {"black_level": black, "level": level, "tile": tile, "reach": reach}
    squared = 0.0
    with cube_in_parts(output, A.cube_shape, wavelengths=m.wavelengths, overwrite=overwrite) as parts:

        def add(rows: slice, columns: slice, values: Tensor) -> None:
            parts.add(rows, columns, (values * level).cpu().numpy())

        history = solve_tiled(A, y / level, solve, add, tile=tile, reach=reach, progress=progress)
        residual_image = np.empty_like(m.y)
        for first in range(0, A.height, STRIP):  # rows do not mix: a strip is a camera of its own
            rows = slice(first, min(first + STRIP, A.height))
            weights = None if A.weights is None else A.weights[rows]
            strip = replace(A, mask=A.mask[..., rows, :], weights=weights)
            misfit = y[rows] - strip.forward(torch.from_numpy(parts.read(rows)).to(on))
            squared += float(misfit.double().square().sum())
            residual_image[rows] = misfit.cpu().numpy()
        total = float(y.double().norm())
        residual = math.sqrt(squared) / total if total else float(squared > 0)
        seconds = time.perf_counter() - start
        parts.put("measurement", m.y)
        parts.put("residual", residual_image)
        for name in Record._fields:
            parts.put(f"history/{name}", np.array([getattr(record, name) for record in history]))
        parameters = {
            "solver": solver, "num_iters": num_iters, "tv_weight": tv_weight, "tile": tile, "reach": reach,
            "device": str(device), "seed": seed, "shifts": list(m.shifts), "gain": m.gain, "read_noise": m.read_noise,
        }  # fmt: skip
        parts.state(
            {
                "version": PROGRAM,
                "input_name": m.source,
                "input_sha256": m.sha256,
                "unit": m.unit,
                "scale": m.scale,
                "notes": list(m.notes),
                "status": "max_iters",
                "residual": residual,
                "seconds": seconds,
                "choice": choice,
                "parameters": parameters,
                **(attributes or {}),
            }
        )
    return TiledResult(Path(output), A.cube_shape, history, residual, seconds, choice)


def tiled_solver(
    A: Camera,
    y: Tensor,
    solver: str,
    *,
    tile: int,
    reach: int = REACH,
    num_iters: int | None = None,
    tv_weight: float | None = None,
    wavelengths: np.ndarray | None = None,
    prior: SpectralPrior | None = None,
    gain: float | None = None,
    read_noise: float | None = None,
    seed: int = 0,
) -> tuple[Solve, dict[str, Any]]:
    """A solver for blocks whose settings are those of the frame, "auto" as chosen on the central tile.

    Args:
        A, y: camera and measurement of the whole frame; y at mean level 1 for the weights to mean what they say.
        solver: one of `cassi.running.front_door.SOLVERS`.
        gain: electrons per unit of this y.
        tile, reach: as for `tile_grid`.
        prior: spectra to expect, at the level of y ("auto", "gaussian").
        Others: as for `cassi.reconstruct`.

    Returns:
        The solver, and what was chosen: plain values.

    Example:
        >>> A = CASSI.from_step(torch.ones(8, 40), step=1, num_bands=3)
        >>> solve, choice = tiled_solver(A, A.forward(torch.ones(3, 8, 40)), "gap-tv", tile=20, reach=4)
        >>> choice["solver"]
        'gap-tv'
    """
    if solver == "auto":
        central = crop(A, y, _central(tile_grid(A, tile, reach=reach)))
        return _automatic(A, y, central, wavelengths, prior, gain, read_noise, num_iters, seed)
    if solver == "gaussian":
        return _gaussian(A, y, wavelengths, prior, gain, read_noise, num_iters)
    return _told(A, wavelengths, solver, num_iters, tv_weight)


def _axis(length: int, tile: int, reach: int, light: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Block, kept part and window of each tile along one axis."""
    count = math.ceil(length / tile)
    edges = [round(k * length / count) for k in range(count + 1)]
    half = min(reach // 2, min(stop - start for start, stop in pairwise(edges)) // 2)
    j = torch.arange(length, dtype=torch.float64) + 0.5

    def rise(edge: int) -> Tensor:
        """0 to 1 around an edge within the frame, smooth; 1 from the first edge on, 0 before the last."""
        if edge in (0, length):
            return torch.full_like(j, float(edge == 0))
        if half == 0:
            return (j > edge).double()
        t = ((j - edge) / (2 * half) + 0.5).clamp(0, 1)
        return t * t * (3 - 2 * t)

    for start, stop in pairwise(edges):
        kept = slice(max(0, start - half), min(length, stop + half))
        block = slice(max(0, start - 2 * light - reach), min(length, stop + 2 * light + reach))
        yield block, kept, (rise(start) - rise(stop))[kept]


def _light_reach(A: Camera) -> tuple[tuple[int, int], tuple[int, int]]:
    """Least and greatest displacement of light from scene to detector pixel, down and to the right."""
    reach = [(0, 0), (0, A.measurement_shape[-1] - A.cube_shape[-1])]
    if isinstance(A, BlurredCASSI):
        for axis, psf in enumerate((A.psf_rows, A.psf)):
            if psf is not None:  # its tap t moves light by t - M // 2
                taps = psf.shape[-1]
                reach[axis] = (reach[axis][0] - taps // 2, reach[axis][1] + taps - 1 - taps // 2)
    return reach[0], reach[1]


def _central(tiles: list[Tile]) -> Tile:
    return tiles[len(tiles) // 2] if len(tiles) % 2 else max(tiles, key=_near_center(tiles))


def _near_center(tiles: list[Tile]) -> Callable[[Tile], float]:
    """How near a tile is to the center of the frame, as a key."""
    height, width = (max(t.block[k].stop for t in tiles) for k in (0, 1))

    def nearness(t: Tile) -> float:
        rows, columns = t.kept
        return -float(abs(rows.start + rows.stop - height) + abs(columns.start + columns.stop - width))

    return nearness


def _automatic(
    A: Camera,
    y: Tensor,
    central: tuple[Camera, Tensor],
    wavelengths: np.ndarray | None,
    prior: SpectralPrior | None,
    gain: float | None,
    read_noise: float | None,
    num_iters: int | None,
    seed: int,
) -> tuple[Solve, dict[str, Any]]:
    """What "auto" chooses on the central tile, as a solver for all tiles."""
    library = None if prior is None else prior.covariance
    found = reconstruct_auto(
        *central, wavelengths=wavelengths, gain=gain, read_noise=read_noise, library=library,
        quality="fast", num_iters=num_iters, seed=seed,
    )  # fmt: skip
    choice = dict(found.choice)
    basis = cast(Tensor, found.basis)
    noise = NoiseModel(choice["noise"]["alpha"], choice["noise"]["beta"], choice["noise"]["source"], ())
    share = choice["noise_share"]
    iterations = choice["iterations"] + (CANDIDATE_ITERS if num_iters is None else 0)  # no tile has a candidate's start
    level = brightness(A, y)
    choice["iterations"] = iterations

    def solve(a: Camera, b: Tensor) -> Tensor:
        result, _ = subspace_tv(
            a,
            b,
            basis,
            variance=noise.variance(b) * share,
            tv_weight=level,
            prior_strength=PRIOR_STRENGTH * brightness(a, b) / level,  # its unit is the level of the frame
            num_iters=iterations,
        )
        return result.x.clamp_(min=0)

    return solve, choice


def _gaussian(
    A: Camera,
    y: Tensor,
    wavelengths: np.ndarray | None,
    prior: SpectralPrior | None,
    gain: float | None,
    read_noise: float | None,
    num_iters: int | None,
) -> tuple[Solve, dict[str, Any]]:
    """Least squares with Gaussian spectra; where the noise is unknown, its variance is that of the whole frame."""
    expected = prior or smooth_spectral_prior(A.num_bands if wavelengths is None else wavelengths)
    frame = gaussian_variance(y, gain, read_noise)

    def solve(a: Camera, b: Tensor) -> Tensor:
        variance = frame if gain is None else gaussian_variance(b, gain, read_noise)
        return solve_gaussian(a, b, expected, variance=variance, num_iters=num_iters).result.x

    return solve, {"solver": "gaussian", "noise": float(frame.mean().sqrt())}


def _told(
    A: Camera, wavelengths: np.ndarray | None, solver: str, num_iters: int | None, tv_weight: float | None
) -> tuple[Solve, dict[str, Any]]:
    """A solver by name, with the weights it would have for the whole frame."""
    misfit = float(A.gram_diag().mean())

    def solve(a: Camera, b: Tensor) -> Tensor:
        weight = tv_weight
        if solver in ("admm-tv", "fista-tv"):  # relative to the mean of gram_diag, here of the frame
            weight = (TV_WEIGHT[solver] if weight is None else weight) * misfit / float(a.gram_diag().mean())
        return solve_as_told(a, b, wavelengths, solver, num_iters, weight, None, False).result.x

    return solve, {"solver": solver, "num_iters": num_iters, "tv_weight": tv_weight}
