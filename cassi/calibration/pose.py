"""Find out from one snapshot how the coded aperture really lies: moved, turned, magnified, dispersed otherwise.

The misfit of a camera is what is left of the snapshot after the likeliest scene has been taken out. The scene is a
Gaussian random field: few smooth spectra, each with an image of power spectrum 1 / (f^2 + f_0^2), which makes the
misfit a quadratic form, known in closed form up to conjugate gradients and differentiable in the camera's pose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from scipy import fft, ndimage
from torch import Tensor

from cassi.calibration.camera_model import beyond, sampled, unseen_pixels
from cassi.calibration.self_calibration import log_rest, regressed
from cassi.errors import InputError
from cassi.kernels.linear import conjugate_gradients
from cassi.kernels.shift_sum import detector_width
from cassi.optics.geometry import cosines
from cassi.optics.psf import local_mean
from cassi.optics.single_disperser import CASSI
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.gap import gap_tv
from cassi.solvers.loop import relative_norm
from cassi.solvers.subspace_tv import subspace_tv

if TYPE_CHECKING:
    from cassi.optics.measurement import Measurement

__all__ = ["Alignment", "align", "align_measurement", "move_mask", "shift_columns"]

ROWS = 256  # rows of the snapshot that are looked at: enough for every parameter, and bounds the time
MARGIN = 4  # pixels at the border of the snapshot left out: what lies beyond the given mask is unknown
NUM_SPECTRA = 8
NOISE = 0.1  # variance of what the model of the scene cannot explain, relative to that of the scene
CORNER = 0.05  # f_0 of the scene's spatial power spectrum [cycles per pixel]
FOLDS = 3  # sets of held-out pixels
FADED = 0.78  # level at an end of the spectrum, of its root mean square, below which nobody knows where it ends
NAMES = ("dx", "dy", "rotation", "scale", "step_factor", "curvature")


@dataclass(frozen=True)
class Alignment:
    """A camera that fits the snapshot better than the one given, or the one given where none does.

    Attributes:
        dx, dy: displacement of the mask to the right, in the band of smallest shift, and downwards [pixel].
        rotation: of the mask about its center, counterclockwise as displayed (rows downwards) [degree].
        scale: magnification of the mask about its center.
        step_factor: the dispersion as a multiple of the one given.
        curvature: how far the middle of the spectrum lies from where even dispersion would put it [pixel].
        misfit_before, misfit_after: relative error at pixels held out of a reconstruction, with the camera as given and
            as estimated (the estimate even where it was not accepted).
        accepted: whether the estimate improves that error; if not, everything above is the camera as given.
        message: the outcome in words.
        mask: the mask as it lies, (H, W), or (C, H, W) where one per band was given.
        shifts: displacement of each band [pixel], C real numbers.
        nominal_shifts: the shifts given; they fix the width of the detector.
    """

    dx: float
    dy: float
    rotation: float
    scale: float
    step_factor: float
    curvature: float
    misfit_before: float
    misfit_after: float
    accepted: bool
    message: str
    mask: Tensor
    shifts: tuple[float, ...]
    nominal_shifts: tuple[float, ...]

    @property
    def whole_shifts(self) -> tuple[int, ...]:
        """Whole-pixel displacements nearest to `shifts` that spread over the same detector as the nominal ones."""
        nominal = np.rint(self.nominal_shifts).astype(int)
        low, high = int(nominal.min()), int(nominal.max())
        whole = np.clip(np.rint(self.shifts).astype(int), low, high)
        # the detector is as wide as it is: the outermost bands mark its ends
        whole[nominal.argmin()], whole[nominal.argmax()] = low, high
        return tuple(int(d) for d in whole)

    @property
    def remainders(self) -> tuple[float, ...]:
        """What `whole_shifts` leave of `shifts` [pixel]: by so much `operator` moves each band of the cube."""
        return tuple(d - n for d, n in zip(self.shifts, self.whole_shifts, strict=True))

    def operator(self) -> CASSI:
        """The camera, for a cube whose band c is moved by remainders[c] to the right; see `register`.

            y[i, j + n_c] += m_c[i, j - f_c] x_c[i, j - f_c],   d_c = n_c + f_c,   n_c whole

        Whole shifts keep Phi Phi^T diagonal; the rest of the displacement is in a mask per band. Its detector is that
        of the camera given.
        """
        remainders = torch.tensor(self.remainders)
        if bool((remainders.abs() < 1e-6).all()):
            return CASSI(self.mask, self.whole_shifts)
        bands = self.mask.expand(len(self.shifts), *self.mask.shape[-2:])
        return CASSI(_without_ringing(shift_columns(bands, self.remainders), self.mask), self.whole_shifts)

    def register(self, cube: Tensor) -> Tensor:
        """Undo the sub-pixel displacement of the bands of a cube (..., C, H, W) reconstructed with `operator`."""
        if max(abs(f) for f in self.remainders) < 1e-6:
            return cube
        return shift_columns(cube, tuple(-f for f in self.remainders))


def align(
    y: Tensor,
    mask: Tensor,
    shifts: Sequence[float],
    *,
    max_shift: float = 2.5,
    max_rotation: float = 0.7,
    max_scale_error: float = 0.01,
    max_step_error: float = 0.04,
    max_curvature: float = 0.0,
    bad_pixels: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Alignment:
    """Estimate the pose of the coded aperture and the dispersion from a snapshot of an unknown scene.

    With theta the pose, Phi(theta) the camera and Sigma the covariance of the scene, the estimate minimizes

        F(theta) = y^T (Phi(theta) Sigma Phi(theta)^T + sigma^2)^{-1} y
                 = min_x |y - Phi(theta) x|^2 / sigma^2 + x^T Sigma^{-1} x

    by L-BFGS with the exact gradient, within the bounds. It starts from a coarse search on blurred images, in which
    blocks of the snapshot are regressed on the blurred mask seen through a few smooth spectra. The estimate is accepted
    only if short reconstructions with it, by GAP-TV and by `subspace_tv`, both predict held-out pixels clearly better
    than with the camera as given: by more than the standard error over three sets of such pixels. So must, by GAP-TV,
    the dispersion against moving the mask alone. It is also kept as given where its estimate is at its bound, and where
    the step would become smaller but the spectrum of the likeliest scene fades out at one end: less light there looks
    just like a smaller step.

    Rotation and dy are determined best; dx and the step trade against each other (what counts is where the brightest
    bands lie); the curvature is weakly determined by one snapshot, so it stays 0 unless asked for.

    Args:
        y: snapshot (H, W'), floating point, any unit.
        mask: coded aperture (H, W) as believed to lie, or (C, H, W); with one per band, their mean is what is moved to
            find the pose, and every one is moved in the result.
        shifts: displacement d_c of each band as believed [pixel], C numbers.
        max_shift: bound on |dx| and |dy| [pixel].
        max_rotation: bound on the rotation [degree].
        max_scale_error: bound on |scale - 1|.
        max_step_error: bound on |step_factor - 1|.
        max_curvature: bound on the curvature [pixel]. A bound of 0 holds its parameter fixed.
        bad_pixels: (H, W') bool, pixels to leave out.
        generator: draws the held-out pixels; seed 0 if not given.

    Returns:
        The `Alignment`, on the CPU, where all of it is computed; check `accepted`.

    Raises:
        ValueError: shapes that do not fit, a negative bound, or a picture smaller than 32 x 32.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> mask = torch.rand(64, 64, generator=generator)
        >>> A = CASSI.from_step(mask, step=1, num_bands=4)
        >>> y = A.forward(torch.ones(4, 64, 64))
        >>> round(align(y, mask, A.shifts, max_rotation=0, max_step_error=0).dx, 1)
        0.0
    """
    y, mask = y.detach().cpu(), mask.detach().cpu()
    bad_pixels = None if bad_pixels is None else bad_pixels.cpu()
    displacements = tuple(float(d) for d in shifts)
    _check(y, mask, displacements, bad_pixels)
    bounds = (max_shift, max_shift, max_rotation, max_scale_error, max_step_error, max_curvature)
    for name, bound in zip(NAMES, bounds, strict=True):
        if not (math.isfinite(bound) and bound >= 0):
            raise ValueError(f"the bound on {name} must be >= 0, got {bound}; 0 holds it fixed")
    single = mask if mask.ndim == 2 else mask.mean(0)
    snapshot = _Snapshot(y, bad_pixels)
    geometry = _Geometry(single.shape, displacements, snapshot)
    free = tuple(k for k in range(6) if bounds[k] > 0 and (k < 4 or geometry.span > 0))
    limits = np.array(bounds) * geometry.units
    limits[0] += limits[4] / 2 if limits[0] else 0.0
    start = _coarse(snapshot, single, geometry, limits, free)
    full = _descend(_FieldMisfit(snapshot, single, geometry), start, limits, free, steps=25)[0]
    poses = [geometry.pose(full)]
    if 4 in free or 5 in free:
        still = np.where(np.arange(6) < 4, full, 0)
        kept = _descend(_FieldMisfit(snapshot, single, geometry), still, limits, [k for k in free if k < 4], steps=25)[
            0
        ]
        poses.insert(0, geometry.pose(kept))
        spectrum = _FieldMisfit(snapshot, single, geometry).spectrum(torch.as_tensor(kept))
        ends = max(1, len(spectrum) // 8)
        faded = min(float(spectrum[:ends].mean()), float(spectrum[-ends:].mean())) < FADED
        if (faded and full[4] < 0) or abs(full[4]) > 0.98 * limits[4]:  # at its bound: it fell and fell
            poses.pop()
    source = generator or torch.Generator().manual_seed(0)
    folds = [torch.rand(y.shape, generator=source) < 0.05 for _ in range(FOLDS)]
    return _judge(y, mask, displacements, bad_pixels, poses, folds, snapshot.rows)


def align_measurement(
    measurement: Measurement, *, max_curvature: float = 0.0, generator: torch.Generator | None = None
) -> tuple[Measurement, Alignment]:
    """`align` for a measurement from a file; of a stack its first frame is looked at.

    Args:
        measurement: with the mask and the shifts as believed.
        max_curvature, generator: see `align`.

    Returns:
        The measurement with mask and shifts of the estimate, its message among the notes, and the `Alignment`, whose
        `register` belongs to the cube reconstructed from it.

    Raises:
        InputError: shapes that do not fit.
    """
    m = measurement
    try:
        found = align(
            torch.as_tensor(m.y[0] if m.y.ndim == 3 else m.y),
            torch.as_tensor(m.mask),
            m.shifts,
            max_curvature=max_curvature,
            bad_pixels=None if m.bad_pixels is None else torch.as_tensor(m.bad_pixels),
            generator=generator,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    notes = (*m.notes, found.message)
    if not found.accepted:
        return replace(m, notes=notes), found
    A = found.operator()
    size = m.mask.shape[-2], m.mask.shape[-1]
    share = beyond(size, *_places(size, found.dx, found.dy, found.rotation, found.scale))
    unseen = unseen_pixels(A.mask.numpy(), [share] * len(A.shifts), A.shifts)
    bad = [pixels for pixels in (m.bad_pixels, unseen) if pixels is not None]
    return replace(
        m,
        mask=A.mask.numpy(),
        shifts=A.shifts,
        bad_pixels=np.logical_or.reduce(bad) if bad else None,
        notes=notes,
    ), found


def move_mask(mask: Tensor, *, dx: float, dy: float, rotation: float = 0.0, scale: float = 1.0) -> Tensor:
    """Turn and magnify a mask about its center, then move it: cubic splines, kept within the values of the mask.

        moved(p) = mask(c + R^{-1} (p - c - (dy, dx)) / scale)

    Args:
        mask: (..., H, W); beyond its border stands its local mean.
        dx, dy: to the right and downwards [pixel].
        rotation: counterclockwise as displayed [degree].
        scale: magnification, > 0.

    Returns:
        Like `mask`.

    Example:
        >>> move_mask(torch.tensor([[0.0, 1.0, 0.0]]), dx=1.0, dy=0.0)
        tensor([[0.1111, 0.0000, 1.0000]])
    """
    height, width = mask.shape[-2:]
    places = _places((height, width), dx, dy, rotation, scale)
    images = mask.detach().cpu().double().reshape(-1, height, width).numpy()
    moved = np.stack([sampled(image, *places) for image in images])
    return _without_ringing(torch.as_tensor(moved).reshape(mask.shape).to(mask), mask)


def _places(
    shape: tuple[int, int], dx: float, dy: float, rotation: float, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a picture that the pixels of the moved one show; see `move_mask`."""
    turn = math.radians(rotation)
    c, s = math.cos(turn) / scale, math.sin(turn) / scale
    i, j = (
        n - (size - 1) / 2 for n, size in zip(np.meshgrid(*map(np.arange, shape), indexing="ij"), shape, strict=True)
    )
    rows, columns = c * (i - dy) + s * (j - dx), c * (j - dx) - s * (i - dy)
    return rows + (shape[0] - 1) / 2, columns + (shape[1] - 1) / 2


def _without_ringing(moved: Tensor, mask: Tensor) -> Tensor:
    """Within the values of the mask, and closed where interpolation left a trace of light: Phi^+ divides by it."""
    kept = moved.clamp(mask.min(), mask.max())
    return torch.where(kept > 1e-3 * mask.max(), kept, 0)


def shift_columns(images: Tensor, displacements: Sequence[float]) -> Tensor:
    """Move band c of (..., C, H, W) by displacements[c] pixels to the right, by cubic splines."""
    stack = images.detach().cpu().double().reshape(-1, *images.shape[-3:]).numpy()
    moved = np.empty_like(stack)
    for target, source in zip(moved, stack, strict=True):
        for c, d in enumerate(displacements):
            ndimage.shift(source[c], (0, d), output=target[c], order=3, mode="nearest")
    return torch.as_tensor(moved).reshape(images.shape).to(images)


def _check(y: Tensor, mask: Tensor, shifts: tuple[float, ...], bad_pixels: Tensor | None) -> None:
    if mask.ndim not in (2, 3) or (mask.ndim == 3 and len(mask) != len(shifts)):
        raise ValueError(f"mask must be (H, W) or (C, H, W) with C = {len(shifts)}, got {tuple(mask.shape)}")
    height, width = mask.shape[-2:]
    columns = detector_width(width, tuple(round(d) for d in shifts))
    if tuple(y.shape) != (height, columns):
        raise ValueError(
            f"y must be {(height, columns)} for a mask of {height} x {width} and these shifts, got {tuple(y.shape)}; "
            "align one snapshot, and give the mask and the shifts it was taken with"
        )
    if min(height, width) < 32:
        raise ValueError(f"a picture of {height} x {width} is too small to align, 32 x 32 is the least")
    if bad_pixels is not None and bad_pixels.shape != y.shape:
        raise ValueError(f"bad_pixels must be {tuple(y.shape)} as y is, got {tuple(bad_pixels.shape)}")


class _Snapshot:
    """The rows that are looked at, in float64, bad pixels filled from around them, normalized to unit mean square."""

    def __init__(self, y: Tensor, bad_pixels: Tensor | None) -> None:
        height = y.shape[0]
        start = max(0, (height - ROWS) // 2)
        self.rows = slice(start, min(height, start + ROWS))
        good = torch.ones_like(y) if bad_pixels is None else (~bad_pixels.bool()).to(y)
        weights = good[self.rows].double().numpy()
        values = torch.where(good > 0, y, 0)[self.rows].double().numpy()
        values = np.where(weights > 0, values, local_mean(values, weights, 2.0))
        rms = math.sqrt(float((values**2).mean()))
        self.y = torch.as_tensor(values / rms if rms > 0 else values)
        self.weights = torch.as_tensor(weights)
        self.weights[:MARGIN] = self.weights[-MARGIN:] = 0
        self.weights[:, :MARGIN] = self.weights[:, -MARGIN:] = 0


class _Geometry:
    """The camera as a function of its pose theta, each entry in pixels at the border of the picture or spectrum.

    The dispersion is stretched about the middle of the spectrum, not about band 0: what a snapshot says about dx and
    about the stretch is then nearly independent, which the descent needs.

    The dispersion acts on rows in the Fourier domain, where a displacement by any real number is a factor:
    K_k(f) = sinc(f s) sum_c B_k(c) exp(-2 pi i f d_c) is the transfer function of the spectrum B_k. The sinc fills the
    gaps s between the bands, as the continuous spectrum of a real scene does, and keeps a regular comb of bands from
    resonating at the spatial frequency 1 / s.
    """

    def __init__(self, mask_shape: torch.Size, shifts: tuple[float, ...], snapshot: _Snapshot) -> None:
        height, width = mask_shape
        self.height, self.width = height, width
        self.shifts = torch.tensor(shifts, dtype=torch.float64)
        self.shifts -= self.shifts.min()
        self.span = float(self.shifts.max())
        self.columns = snapshot.y.shape[1]
        self.length = int(fft.next_fast_len(self.columns + 16, real=True))
        self.frequencies = torch.fft.rfftfreq(self.length, dtype=torch.float64)
        rows, columns = (
            torch.arange(height, dtype=torch.float64)[snapshot.rows],
            torch.arange(width, dtype=torch.float64),
        )
        self.rows = (rows - (height - 1) / 2)[:, None].expand(-1, width)
        self.cols = (columns - (width - 1) / 2)[None, :].expand(len(rows), -1)
        radius = (height + width) / 4
        spread = self.span or 1.0
        self.units = np.array([1, 1, math.radians(1) * radius, radius, spread, 1])

    def physical(self, theta: Tensor) -> Tensor:
        """(dx, dy, rotation [rad], scale - 1, step_factor - 1, curvature)."""
        units = torch.as_tensor(self.units)
        return theta / units * torch.tensor([1, 1, math.pi / 180, 1, 1, 1], dtype=torch.float64)

    def pose(self, theta: np.ndarray) -> np.ndarray:
        """(dx of band 0, dy, rotation [degree], scale, step_factor, curvature)."""
        pose: np.ndarray = theta / self.units + np.array([0, 0, 0, 1, 1, 0])
        pose[0] -= (pose[4] - 1) * self.span / 2
        return pose

    def positions(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Where on the given mask each pixel of the moved one lies, on the rows looked at: (rows, columns)."""
        dx, dy, turn, magnified, _, _ = self.physical(theta)
        u, v = self.rows - dy, self.cols - dx
        rows = (torch.cos(turn) * u + torch.sin(turn) * v) / (1 + magnified) + (self.height - 1) / 2
        cols = (torch.cos(turn) * v - torch.sin(turn) * u) / (1 + magnified) + (self.width - 1) / 2
        return rows, cols

    def transfer(self, theta: Tensor, num_spectra: int) -> Tensor:
        """K_k(f), (num_spectra, F): each smooth spectrum, a cosine over the bands, spread by the dispersion."""
        _, _, _, _, stretch, curvature = self.physical(theta)
        num_bands = len(self.shifts)
        t = self.shifts / (self.span or 1.0)
        shifts = self.shifts + stretch * (self.shifts - self.span / 2) + curvature * 4 * t * (1 - t)
        spectra = torch.as_tensor(cosines(num_bands, num_spectra)).to(torch.complex128)
        phases = torch.exp(-2j * math.pi * self.frequencies * shifts[:, None])
        gap = torch.sinc(self.frequencies * self.span / max(1, num_bands - 1))
        return spectra @ phases * gap / math.sqrt(num_bands)

    def disperse(self, images: Tensor, transfer: Tensor) -> Tensor:
        """Each image (k, h, W), or one for all (1, h, W), through its transfer function: (k, h, W')."""
        spread: Tensor = torch.fft.irfft(torch.fft.rfft(images, n=self.length) * transfer[:, None], n=self.length)
        return spread[..., : self.columns]

    def gather(self, y: Tensor, transfer: Tensor) -> Tensor:
        """The adjoint of `disperse` for one image (h, W') common to all: (k, h, W)."""
        spectrum = torch.fft.rfft(y, n=self.length) * transfer.conj()[:, None]
        gathered: Tensor = torch.fft.irfft(spectrum, n=self.length)
        return gathered[..., : self.width]


def _interpolate(image: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """An image at real positions, linearly: fast, and good enough where it is blurred."""
    height, width = image.shape
    places = torch.stack([2 * cols / (width - 1) - 1, 2 * rows / (height - 1) - 1], dim=-1)
    return F.grid_sample(image[None, None], places[None], padding_mode="border", align_corners=True)[0, 0]


def _splines(mask: Tensor) -> Tensor:
    return torch.as_tensor(ndimage.spline_filter(mask.double().numpy(), order=3, mode="mirror"))


def _evaluate_splines(splines: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """The cubic spline with these coefficients at real positions; differentiable in the positions."""
    height, width = splines.shape
    r, c = rows.detach().floor(), cols.detach().floor()
    row_weights, col_weights = _spline_weights(rows - r), _spline_weights(cols - c)
    r, c = r.long() - 1, c.long() - 1
    value = torch.zeros_like(rows)
    for a in range(4):
        line = (r + a).clamp(0, height - 1) * width
        across = [w * splines.reshape(-1)[line + (c + b).clamp(0, width - 1)] for b, w in enumerate(col_weights)]
        value = value + row_weights[a] * sum(across)
    return value


def _spline_weights(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cubic B-spline at t + 1, t, 1 - t, 2 - t for t in [0, 1)."""
    s = 1 - t
    return s**3 / 6, 2 / 3 - t**2 + t**3 / 2, 2 / 3 - s**2 + s**3 / 2, t**3 / 6


Objective = Callable[[Tensor], tuple[float, Tensor]]
"""theta -> value and gradient."""


def _descend(
    objective: Objective, start: np.ndarray, limits: np.ndarray, free: Sequence[int], steps: int
) -> tuple[np.ndarray, float]:
    """L-BFGS over the free entries of theta within +-limits; the others stay at `start`."""
    from scipy import optimize  # slow to import: not for those who never align

    chosen = list(free)
    if not chosen:
        return start, objective(torch.as_tensor(start))[0]

    def restricted(values: np.ndarray) -> tuple[float, np.ndarray]:
        theta = start.copy()
        theta[chosen] = values
        value, gradient = objective(torch.as_tensor(theta))
        return value, gradient.numpy()[chosen]

    bounds = [(-limits[k], limits[k]) for k in chosen]
    found = optimize.minimize(
        restricted,
        start[chosen],
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": steps, "ftol": 1e-6, "gtol": 1e-4},
    )
    theta = start.copy()
    theta[chosen] = found.x
    return theta, float(found.fun)


def _coarse(
    snapshot: _Snapshot, mask: Tensor, geometry: _Geometry, limits: np.ndarray, free: Sequence[int]
) -> np.ndarray:
    """For several dispersions: the best whole displacement on blurred images, then down from there on sharper ones."""
    blurred = _block_misfit(snapshot, mask, geometry, sigma=1.5, block=24)
    sharper = _block_misfit(snapshot, mask, geometry, sigma=0.8, block=16)
    stretches = np.linspace(-0.8, 0.8, 5) * limits[4] if 4 in free else np.zeros(1)
    places = [np.linspace(-limits[k], limits[k], 2 * math.ceil(limits[k]) + 1) for k in range(2)]
    best, lowest = np.zeros(6), math.inf
    for stretch in stretches:
        starts = [np.array([dx, dy, 0, 0, stretch, 0]) for dx in places[0] for dy in places[1]]
        with torch.no_grad():
            theta = min(starts, key=lambda start: float(blurred(torch.as_tensor(start))))
        theta, _ = _descend(_differentiated(blurred), theta, limits, [k for k in free if k < 3], steps=12)
        theta, value = _descend(_differentiated(sharper), theta, limits, [k for k in free if k not in (3, 5)], steps=15)
        if value < lowest:
            best, lowest = theta, value
    return best


def _differentiated(function: Callable[[Tensor], Tensor]) -> Objective:
    def objective(theta: Tensor) -> tuple[float, Tensor]:
        theta = theta.clone().requires_grad_()
        value = function(theta)
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.detach()), torch.zeros_like(theta) if theta.grad is None else theta.grad

    return objective


def _block_misfit(
    snapshot: _Snapshot, mask: Tensor, geometry: _Geometry, *, sigma: float, block: int
) -> Callable[[Tensor], Tensor]:
    """Mean over blocks of the log of what regression on the dispersed mask leaves of the snapshot, both band-passed.

    Within a block the scene is taken to be constant; the log makes blocks with edges in them count little.
    """

    def band_pass(image: np.ndarray) -> np.ndarray:
        passed: np.ndarray = ndimage.gaussian_filter(image, sigma) - ndimage.gaussian_filter(image, 3 * sigma + 1)
        return passed

    passed = torch.as_tensor(band_pass(mask.double().numpy()))
    border = MARGIN + math.ceil(sigma)

    def blocks(image: Tensor) -> Tensor:
        """(..., h, W') -> (..., blocks, pixels)."""
        inner = image[..., border:-border, border:-border]
        rows, columns = (n // block for n in inner.shape[-2:])
        inner = inner[..., : rows * block, : columns * block]
        tiles = inner.reshape(*inner.shape[:-2], rows, block, columns, block).movedim(-2, -3)
        return tiles.reshape(*inner.shape[:-2], rows * columns, block * block)

    target = blocks(torch.as_tensor(band_pass(snapshot.y.numpy())))
    energy = target.square().sum(-1)
    floor = 1e-4 * energy.mean().clamp(min=1e-30)

    def misfit(theta: Tensor) -> Tensor:
        moved = _interpolate(passed, *geometry.positions(theta))
        transfer = geometry.transfer(theta, num_spectra=5)
        columns = blocks(geometry.disperse(moved[None], transfer)).movedim(0, 1)
        gram = columns @ columns.mT
        ridge = 1e-3 * gram.diagonal(dim1=-2, dim2=-1).mean() + 1e-12
        right = (columns @ target[..., None]).squeeze(-1)
        left = energy - (right * regressed(gram, right, ridge)).sum(-1)
        return log_rest(left, energy, floor).mean()

    return misfit


class _FieldMisfit:
    """log F(theta) of `align`, and its gradient -z^T dK z / F, with K z = y solved by conjugate gradients.

    The solution z is kept from one call to the next, as a start: the first call takes `first` steps, others `steps`.
    """

    def __init__(
        self,
        snapshot: _Snapshot,
        mask: Tensor,
        geometry: _Geometry,
        *,
        dtype: torch.dtype = torch.float32,
        first: int = 100,
        steps: int = 40,
    ) -> None:
        self._geometry, self._splines = geometry, _splines(mask)
        self._weights = snapshot.weights.to(dtype)
        self._y = snapshot.y.to(dtype) * self._weights
        fy = torch.fft.fftfreq(len(self._y))[:, None]
        fx = torch.fft.rfftfreq(geometry.width)[None, :]
        power = 1 / (fy**2 + fx**2 + CORNER**2)
        amplitudes = 1 / (1.0 + torch.arange(min(NUM_SPECTRA, len(geometry.shifts))))
        self._power = (amplitudes[:, None, None] * (power / power.mean())).to(dtype)
        self._z = torch.zeros_like(self._y)
        self._steps, self._later = first, steps

    def __call__(self, theta: Tensor) -> tuple[float, Tensor]:
        theta = theta.clone().requires_grad_()
        mask, transfer = self._camera(theta)
        with torch.no_grad():
            z = self._solve(mask, transfer)
            field = self._covariance(self._adjoint(mask, transfer, z))
            rest = self._weights * self._geometry.disperse(mask * field, transfer).sum(0) + NOISE * z
            # what conjugate gradients have reached: a lower bound of y^T K^{-1} y, whose gradient at this z is exact
            value = float(2 * (self._y * z).sum() - (z * rest).sum())
        if not value > 0:
            return 0.0, torch.zeros_like(theta)
        (-2 * (self._adjoint(mask, transfer, z) * field).sum() / value).backward()  # type: ignore[no-untyped-call]
        gradient = theta.grad if theta.grad is not None else torch.zeros_like(theta)
        self._steps = self._later
        return math.log(value), gradient

    def spectrum(self, theta: Tensor) -> Tensor:
        """Root mean square of each band of the likeliest scene, (C,), of their root mean square."""
        mask, transfer = self._camera(theta)
        field = self._covariance(self._adjoint(mask, transfer, self._solve(mask, transfer))).double().flatten(1)
        spectra = torch.as_tensor(cosines(len(self._geometry.shifts), NUM_SPECTRA))
        power = ((field @ field.mT) @ spectra * spectra).sum(0).clamp(min=0)
        relative: Tensor = (power / power.mean().clamp(min=torch.finfo(power.dtype).tiny)).sqrt()
        return relative

    def _camera(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        mask = _evaluate_splines(self._splines, *self._geometry.positions(theta)).to(self._y)
        return mask, self._geometry.transfer(theta, NUM_SPECTRA).to(self._y.dtype.to_complex())

    def _adjoint(self, mask: Tensor, transfer: Tensor, z: Tensor) -> Tensor:
        return mask * self._geometry.gather(self._weights * z, transfer)

    def _covariance(self, images: Tensor) -> Tensor:
        smoothed: Tensor = torch.fft.irfft2(torch.fft.rfft2(images) * self._power, s=images.shape[-2:])
        return smoothed

    def _solve(self, mask: Tensor, transfer: Tensor) -> Tensor:
        """(Phi Sigma Phi^T + sigma^2) z = y, from the last z."""

        def K(z: Tensor) -> Tensor:
            field = self._covariance(self._adjoint(mask, transfer, z))
            return self._weights * self._geometry.disperse(mask * field, transfer).sum(0) + NOISE * z

        self._z = conjugate_gradients(K, self._y, x0=self._z, num_iters=self._steps, tol=1e-4).x
        return self._z


def _judge(
    y: Tensor,
    mask: Tensor,
    shifts: tuple[float, ...],
    bad_pixels: Tensor | None,
    poses: Sequence[np.ndarray],
    folds: Sequence[Tensor],
    rows: slice,
) -> Alignment:
    """The last of the poses, from simple to complex, that predicts held-out pixels clearly better than those before it.

    Clearly is by more than the standard error of the difference over the folds. Each pose fits the snapshot better than
    the one before it, which alone says little. Poses are compared by a prior that takes each band alone, because
    `Alignment.operator` moves bands against each other by parts of a pixel. It knows so little of the scene that it may
    take a scene for a dispersion: the winner must also do better than the camera as given in a spectral subspace.
    """
    known = torch.ones_like(folds[0]) if bad_pixels is None else ~bad_pixels.bool()

    def errors(camera: Alignment, solve: _Reconstruct) -> np.ndarray:
        A = camera.operator()
        return np.array([_held_out_error(A, y, fold, known, rows, solve) for fold in folds])

    given = Alignment(0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, False, "", mask, shifts, shifts)
    ranked, lowest = [given], errors(given, _band_by_band)
    for camera in (_moved(mask, shifts, pose) for pose in poses):
        found = errors(camera, _band_by_band)
        if _clearly_less(found, lowest):
            ranked, lowest = [*ranked, camera], found
    before = errors(given, _in_subspace)
    for best in ranked[:0:-1] or [_moved(mask, shifts, poses[0])]:
        after = errors(best, _in_subspace)
        if accepted := len(ranked) > 1 and _clearly_less(after, before):
            break
    misfit_before, misfit_after = float(before.mean()), float(after.mean())
    words = (
        f"mask moved by ({best.dx:+.2f}, {best.dy:+.2f}) px, turned by {best.rotation:+.3f} degrees, "
        f"magnified by {100 * (best.scale - 1):+.2f} %, dispersion {100 * (best.step_factor - 1):+.2f} %, "
        f"curvature {best.curvature:+.2f} px; error at held-out pixels {100 * misfit_before:.2f} % before, "
        f"{100 * misfit_after:.2f} % after"
    )
    outcome = "aligned" if accepted else "not aligned, the camera as given does as well or better than"
    chosen = best if accepted else given
    message = f"{outcome}: {words}"
    return replace(chosen, accepted=accepted, misfit_before=misfit_before, misfit_after=misfit_after, message=message)


def _clearly_less(errors: np.ndarray, others: np.ndarray) -> bool:
    """Whether errors on the same folds are smaller by more than the standard error of the difference."""
    gain = others - errors
    return bool(gain.mean() > gain.std(ddof=1) / math.sqrt(len(gain)))


def _moved(mask: Tensor, shifts: tuple[float, ...], pose: np.ndarray) -> Alignment:
    """The camera given, in this pose."""
    dx, dy, rotation, scale, step_factor, curvature = (float(v) for v in pose)
    d = np.array(shifts)
    first = d.min()
    t = (d - first) / (np.ptp(d) or 1.0)
    moved = tuple(float(s) for s in first + (d - first) * step_factor + curvature * 4 * t * (1 - t))
    new = move_mask(mask, dx=dx, dy=dy, rotation=rotation, scale=scale)
    return Alignment(dx, dy, rotation, scale, step_factor, curvature, 0.0, 0.0, True, "", new, moved, shifts)


def _held_out_error(A: CASSI, y: Tensor, held_out: Tensor, known: Tensor, rows: slice, solve: _Reconstruct) -> float:
    """|y - Phi x| / |y| over held-out pixels, x reconstructed from the others of these rows."""
    part = CASSI(A.mask[..., rows, :].to(y), A.shifts)
    target, out, good = y[rows], held_out[rows] & known[rows], known[rows]
    weights = (good & ~out).to(y)
    x = solve(part.weighted(weights), target * weights)
    return relative_norm((target - part.forward(x))[out], target[out])


_Reconstruct = Callable[[CASSI, Tensor], Tensor]


def _band_by_band(A: CASSI, y: Tensor) -> Tensor:
    start = A.pinv(y)
    return gap_tv(A, y, tv_weight=0.05 * float(start.abs().mean()), num_iters=20, x0=start).x


def _in_subspace(A: CASSI, y: Tensor) -> Tensor:
    return subspace_tv(A, y, smooth_basis(A.num_bands, min(NUM_SPECTRA, A.num_bands)), num_iters=40)[0].x
