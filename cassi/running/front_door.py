"""One call from a measurement to a spectral cube: measurement and settings checked, frame by frame solved."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import AutoResult, reconstruct_auto, visibility
from cassi.choice.by_name import (
    GAUSSIAN_SAMPLES,
    SOLVERS,
    TV_WEIGHT,
    Solver,
    gaussian_variance,
    solve_as_told,
    solve_gaussian,
)
from cassi.choice.refine import EFFORTS, Quality
from cassi.errors import InputError
from cassi.files.spectral_libraries import as_spectral_prior
from cassi.kernels.dispatch import pick_device
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.building import camera_of
from cassi.optics.detector import black_level_of, unit_level
from cassi.optics.measurement import check_arrays
from cassi.optics.single_disperser import CASSI
from cassi.priors.gaussian_spectra import SpectralPrior, smooth_spectral_prior
from cassi.solvers.loop import Monitor, Record, relative_norm

if TYPE_CHECKING:
    import xarray

    from cassi.optics.measurement import Measurement

__all__ = ["SOLVERS", "Reconstruction", "pick_device", "reconstruct", "write_result"]

Array = Tensor | np.ndarray


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """A spectral cube and how it came about.

    Attributes:
        cube: (C, H, W), or (N, C, H, W) for a stack of snapshots, float32, in the unit of the measurement per unit of
            mask transmission; on the device it was computed on.
        wavelengths: (C,) float64 [nm], or None where unknown.
        history: one Record an iteration; for a stack the frames' records one after the other, each from iteration 1.
        status: "converged", "max_iters" or "stopped"; for a stack the least finished of its frames'.
        residual: |y - Phi x| / |y| over the good detector pixels, y less its black level.
        residual_image: y - Phi x like the measurement, in its unit; 0 at bad pixels.
        seconds: wall time of the computation.
        choice: what was chosen, and on what evidence; plain values, one entry a decision.
        parameters: every argument of the call, as given or by default; plain values.
        unit: of the cube, in words.
        uncertainty: like `cube`, in its unit, where the solver estimates it, else None.
        visibility: with it, (C, H, W): how much of each voxel the snapshot alone determines, 0 to 1
            (`cassi.choice.automatic.visibility`); the rest comes from the prior. None for cameras with blur.
    """

    cube: Tensor
    wavelengths: np.ndarray | None
    history: tuple[Record, ...]
    status: str
    residual: float
    residual_image: Tensor
    seconds: float
    choice: Mapping[str, Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ""
    uncertainty: Tensor | None = None
    visibility: Tensor | None = None

    def to_xarray(self) -> xarray.DataArray:
        """The cube as a labelled array with dimensions (frame,) wavelength or band, y, x (needs xarray).

        Raises:
            ImportError: xarray is not installed.
        """
        try:
            import xarray
        except ImportError as error:
            raise ImportError(f'to_xarray needs xarray: python -m pip install -e ".[formats]" ({error})') from error
        known = self.wavelengths is not None
        band = "wavelength" if known else "band"
        values = self.cube.detach().cpu().numpy()
        labels = self.wavelengths if known else np.arange(1, values.shape[-3] + 1)
        return xarray.DataArray(
            values,
            dims=("frame", band, "y", "x")[-values.ndim :],
            coords={band: (band, labels, {"units": "nm"} if known else {})},
            name="cube",
            attrs={"unit": self.unit, "status": self.status, "residual": self.residual, "seconds": self.seconds},
        )


def reconstruct(
    measurement: Array | Measurement,
    mask: Array | None = None,
    *,
    shifts: Sequence[float] | None = None,
    step: float | None = None,
    num_bands: int | None = None,
    wavelengths: str | Sequence[float] | Array | None = None,
    solver: Solver | str = "auto",
    num_iters: int | None = None,
    tv_weight: float | None = None,
    quality: Quality | str = "default",
    budget: float | None = None,
    uncertainty: bool = False,
    spectral_prior: SpectralPrior | Sequence[str | os.PathLike[str]] | None = None,
    psf: float | Array | None = None,
    bad_pixels: Array | None = None,
    black_level: float | None = None,
    gain: float | None = None,
    read_noise: float | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> Reconstruction:
    """Turn a CASSI snapshot into a spectral cube: x such that y = Phi x, with nothing to tune.

    The measurement is divided by its level, sum |y| / sum Phi 1 (the mean of the cube that would explain it), and the
    cube multiplied by it: a measurement times any positive constant gives the cube times that constant, and a weight
    means the same for counts as for values in [0, 1]. Computed in float32.

    Args:
        measurement: y, (H, W'), or (N, H, W') for N snapshots through one mask; finite, any unit. Or a
            `cassi.files.Measurement`, which brings mask, shifts and the rest along.
        mask: coded aperture (H, W), or (C, H, W) with one per band [transmission].
        shifts: displacement of each band on the detector [pixel], C numbers; between pixels `BlurredCASSI` is used.
        step: displacement between neighboring bands [pixel], instead of shifts.
        num_bands: C. What is not given of step and num_bands follows from W' - W.
        wavelengths: (C,) band centers [nm], or a text such as "450:650:28" (`cassi.optics.wavelengths`); "auto" and
            "subspace" take spectra to be smooth over them.
        solver: "auto" (subspace TV, everything chosen from held-out pixels), "subspace" (the same with settings of
            one's own, for clean data), "gaussian" (least squares with Gaussian spectra as a prior), "least-squares",
            "gap-tv", "admm-tv", "fista-tv".
        num_iters: iterations; the solver's own default if not given.
        tv_weight: weight of the total variation, > 0, relative to the cube's mean level, or to the mean level times the
            mean of gram_diag ("admm-tv", "fista-tv"). Not for "auto", which chooses, or "least-squares".
        quality: "fast", "default", or "best", about ten times as long ("auto" only).
        budget: seconds in which to be done; None is no limit. With it the result depends on the machine's speed.
        uncertainty: estimate the standard deviation of each voxel too ("auto", which takes about twice as long, and
            "gaussian", up to 17 times).
        psf: blur of the instrument along the dispersion: standard deviation of a Gaussian [pixel], > 0, or the
            point-spread function's taps (M,), or (C, M) with one per band, see `BlurredCASSI`. None is no blur.
        spectral_prior: spectra to expect, at mean level 1, see `cassi.priors.gaussian_spectra`; or files of cubes to
            learn them from ("auto", where they compete with smooth spectra, and "gaussian").
        bad_pixels: (H, W') bool, True where the detector says nothing; these pixels are left out exactly.
        black_level: taken off y first, in its unit; None takes off what the pixels tell that hardly any light can
            reach, where they clearly tell something (`choice["black_level"]`), 0 nothing.
        gain: electrons per unit of y, where known.
        read_noise: standard deviation [electron], where known.
        device: "auto" (CUDA where there is one), "cpu", "cuda", "cuda:1" ...
        seed: of the random choices a solver makes.
        monitor: called each iteration with (Record, cube at mean level 1; "auto" and "subspace": its spectral
            coefficients); return True to stop.
        progress: show a progress bar.

    Returns:
        The `Reconstruction`.

    Raises:
        InputError: (a ValueError) anything that cannot be used: what, expected, got, cure.
        FloatingPointError: the iteration diverged.

    Example:
        >>> mask = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
        >>> y = CASSI.from_step(mask, 2, 4).forward(torch.ones(4, 16, 16))
        >>> result = reconstruct(y, mask, num_bands=4, num_iters=20)
        >>> result.cube.shape
        torch.Size([4, 16, 16])
    """
    start = time.perf_counter()
    parameters = {
        "solver": solver,
        "num_iters": num_iters,
        "tv_weight": tv_weight,
        "quality": quality,
        "budget": budget,
        "uncertainty": uncertainty,
        "spectral_prior": _named(spectral_prior),
        "black_level": black_level,
        "psf": psf if psf is None or isinstance(psf, float | int) else np.asarray(_plain(psf)).tolist(),
        "device": str(device),
        "seed": seed,
    }
    if isinstance(spectral_prior, str | os.PathLike):
        spectral_prior = (spectral_prior,)
    _check_settings(solver, num_iters, tv_weight, quality, budget, uncertainty, black_level)
    if spectral_prior is not None and solver not in ("auto", "gaussian"):
        raise InputError(f"{solver} takes no spectral prior; leave it out or choose auto or gaussian")
    on = pick_device(device)
    m = _as_measurement(measurement, mask, shifts, step, num_bands, wavelengths)
    overrides = {"bad_pixels": bad_pixels, "gain": gain, "read_noise": read_noise}
    m = replace(m, **{name: _plain(value) for name, value in overrides.items() if value is not None})
    check_arrays(m)
    if read_noise is not None and m.gain is None:
        raise InputError(
            "the read noise is in electrons and needs the gain too (--gain) [electrons per unit of the measurement]"
        )
    A = camera_of(m, on, psf)
    good = None if m.bad_pixels is None else torch.as_tensor(~m.bad_pixels, device=on).to(A.dtype)
    if good is not None:
        A = A.weighted(good)
    y = torch.as_tensor(m.y, dtype=torch.float32, device=on)
    frames = y.reshape(-1, *y.shape[-2:])
    black = [black_level_of(A, frame) if black_level is None else float(black_level) for frame in frames]
    y = y - y.new_tensor(black).view(*y.shape[:-2], 1, 1)
    if good is not None:
        y = torch.where(good > 0, y, 0)
    prior = as_spectral_prior(spectral_prior, A.num_bands, m.wavelengths)
    solved = [
        _solve(
            A,
            frame,
            wavelengths=m.wavelengths,
            solver=solver,
            num_iters=num_iters,
            tv_weight=tv_weight,
            quality=quality,
            budget=budget,
            uncertainty=uncertainty,
            prior=prior,
            gain=m.gain,
            read_noise=m.read_noise,
            seed=seed,
            monitor=monitor,
            progress=progress,
        )
        for frame in y.reshape(-1, *y.shape[-2:])
    ]
    solved = [_told_of_black(one, b, black_level is None) for one, b in zip(solved, black, strict=True)]
    single = y.ndim == 2
    cube = solved[0].result.x if single else torch.stack([one.result.x for one in solved])
    spreads = [one.uncertainty for one in solved if one.uncertainty is not None]
    residual_image = y - A.forward(cube)
    order = ("stopped", "max_iters", "converged")
    return Reconstruction(
        cube=cube,
        wavelengths=m.wavelengths,
        history=tuple(record for one in solved for record in one.result.history),
        status=min((one.result.status for one in solved), key=order.index),
        residual=relative_norm(residual_image, y),
        residual_image=residual_image,
        seconds=time.perf_counter() - start,
        choice=solved[0].choice if single else {"frames": [one.choice for one in solved]},
        parameters=parameters | {"shifts": list(m.shifts), "gain": m.gain, "read_noise": m.read_noise},
        unit=m.unit,
        uncertainty=None if not spreads else spreads[0] if single else torch.stack(spreads),
        visibility=visibility(A) if spreads and isinstance(A, CASSI) else None,
    )


def write_result(
    path: str | os.PathLike[str],
    measurement: Measurement,
    result: Reconstruction,
    *,
    attributes: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a reconstruction with the measurement it came from and its provenance, whole or not at all.

    Beside `/cube`, `/wavelengths` and `/history`: `/measurement`, `/residual` (y - Phi x), and `/truth` and
    `/uncertainty` and `/visibility` where they are known. The suffix chooses the format, see `cassi.files.write_cube`.

    Args:
        path: the file to make.
        measurement: what was reconstructed.
        result: its reconstruction.
        attributes: further provenance by name (command line, name of the mask's file ...).
        overwrite: replace an existing file.

    Raises:
        OutputError: the file exists, its folder does not, or the disk is full; nothing is left behind.
    """
    from cassi.files import write_cube
    from cassi.version import PROGRAM

    datasets = {
        "measurement": measurement.y,
        "residual": result.residual_image.cpu().numpy(),
        "truth": measurement.cube,
        "uncertainty": _plain(result.uncertainty),
        "visibility": _plain(result.visibility),
    }
    write_cube(
        path,
        result.cube.cpu().numpy(),
        wavelengths=result.wavelengths,
        history=result.history,
        datasets={name: values for name, values in datasets.items() if values is not None},
        attributes={
            "version": PROGRAM,
            "input_name": measurement.source,
            "input_sha256": measurement.sha256,
            "unit": result.unit,
            "scale": measurement.scale,
            "notes": list(measurement.notes),
            "status": result.status,
            "residual": result.residual,
            "seconds": result.seconds,
            "choice": json.dumps(dict(result.choice)),
            "parameters": json.dumps(dict(result.parameters)),
            **(attributes or {}),
        },
        overwrite=overwrite,
    )


def _check_settings(
    solver: str,
    num_iters: int | None,
    tv_weight: float | None,
    quality: str,
    budget: float | None,
    uncertainty: bool,
    black_level: float | None,
) -> None:
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver!r}, expected one of {', '.join(SOLVERS)}")
    if quality not in EFFORTS:
        raise InputError(f"unknown quality {quality!r}, expected one of {', '.join(EFFORTS)}")
    if quality != "default" and solver != "auto":
        raise InputError(
            f'quality {quality!r} is a choice of solver "auto", got solver {solver!r}; leave one of them out'
        )
    if uncertainty and solver not in ("auto", "gaussian"):
        raise InputError(
            f'only solvers "auto" and "gaussian" estimate the uncertainty, got solver {solver!r}; leave one of them out'
        )
    for name, value in (("TV weight", tv_weight), ("black level", black_level), ("budget", budget)):
        if value is not None and not isinstance(value, int | float | np.number):
            raise InputError(f"the {name} must be a number, got {value!r}")
    if num_iters is not None and not (isinstance(num_iters, int | np.integer) and num_iters >= 1):
        raise InputError(f"the number of iterations must be a whole number, at least 1, got {num_iters!r}")
    if tv_weight is not None and not (math.isfinite(tv_weight) and tv_weight > 0):
        raise InputError(f"the TV weight must be positive, got {tv_weight}")
    if tv_weight is not None and solver not in TV_WEIGHT:
        raise InputError(f"{solver} takes no TV weight; leave it out or choose subspace, gap-tv, admm-tv or fista-tv")
    if black_level is not None and not math.isfinite(black_level):
        raise InputError(f"the black level must be a finite number in the unit of the measurement, got {black_level}")
    if budget is not None and not budget > 0:
        raise InputError(f"the budget must be a positive number of seconds, got {budget}")


def _plain(value: Array | float | None) -> Any:
    """A tensor as an array in memory; anything else as it is."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _as_measurement(
    measurement: Array | Measurement,
    mask: Array | None,
    shifts: Sequence[float] | None,
    step: float | None,
    num_bands: int | None,
    wavelengths: str | Sequence[float] | Array | None,
) -> Measurement:
    """The arrays of a call as a Measurement; one from a file passes through, with other wavelengths if given."""
    from cassi.files.wavelength_files import parse_wavelengths
    from cassi.optics.geometry import infer_shifts
    from cassi.optics.measurement import Measurement
    from cassi.optics.wavelengths import check_wavelengths

    if isinstance(measurement, Measurement):
        given = {"mask": mask, "shifts": shifts, "step": step, "num_bands": num_bands}
        twice = [name for name, value in given.items() if value is not None]
        if twice:
            raise InputError(f"the measurement brings its own mask and shifts along; leave out {', '.join(twice)}")
        m = measurement
    else:
        if mask is None:
            raise InputError("a mask is needed beside the measurement: (H, W), or (C, H, W) with one per band")
        y_array, mask_array = (np.asarray(_plain(values)) for values in (measurement, mask))
        for name, values, axes in (
            ("measurement", y_array, "(H, W') or (N, H, W')"),
            ("mask", mask_array, "(H, W) or (C, H, W)"),
        ):
            if values.dtype.kind not in "fiub" or values.ndim not in (2, 3) or 0 in values.shape:
                raise InputError(f"the {name} must be {axes}, real and not empty, got {values.dtype} {values.shape}")
        if shifts is not None and step is not None:
            raise InputError("shifts and step say the same; give one of them")
        stored = None if shifts is None else np.asarray(shifts, dtype=np.float64).reshape(-1)
        if stored is not None and not np.isfinite(stored).all():
            raise InputError("the shifts hold NaN or Inf")
        if num_bands is not None and not 1 <= num_bands <= 10_000:
            raise InputError(f"the number of bands must lie in 1..10000, got {num_bands}")
        bands = num_bands if stored is None or num_bands is None else _same_count(stored.size, num_bands)
        if mask_array.shape[-2] != y_array.shape[-2]:
            raise InputError(
                f"the mask has {mask_array.shape[-2]} rows and the measurement {y_array.shape[-2]}; crop both alike"
            )
        m = Measurement(
            y=y_array.astype(np.float32),
            mask=mask_array.astype(np.float32),
            shifts=infer_shifts(y_array.shape, mask_array.shape, stored, step, bands, []),
            unit="as the measurement",
        )
    if wavelengths is None:
        return m
    if isinstance(wavelengths, str):
        return replace(m, wavelengths=parse_wavelengths(wavelengths, len(m.shifts)))
    return replace(m, wavelengths=check_wavelengths(np.asarray(_plain(wavelengths)), len(m.shifts), "wavelengths"))  # type: ignore[arg-type]


def _same_count(stored: int, num_bands: int) -> int:
    if stored != num_bands:
        raise InputError(f"{stored} shifts were given for {num_bands} bands; give one per band")
    return num_bands


def _told_of_black(found: AutoResult, black: float, estimated: bool) -> AutoResult:
    """The result with the black level among its choices, where there was one."""
    if not black:
        return found
    choice = {**found.choice, "black_level": black}
    if estimated and "reason" in choice:
        choice["reason"] += (
            f" A black level of {black:.3g}, told from the pixels that hardly any light can reach, was taken off."
        )
    return replace(found, choice=choice)


def _solve(
    A: CASSI | BlurredCASSI,
    y: Tensor,
    *,
    wavelengths: np.ndarray | None,
    solver: str,
    num_iters: int | None,
    tv_weight: float | None,
    quality: str,
    budget: float | None,
    uncertainty: bool,
    prior: SpectralPrior | None,
    gain: float | None,
    read_noise: float | None,
    seed: int,
    monitor: Monitor | None,
    progress: bool,
) -> AutoResult:
    """Reconstruct one snapshot at mean level 1; the cube is in the unit of y again."""
    level = unit_level(A, y)
    y = y / level
    if solver == "auto":
        found = reconstruct_auto(
            A,
            y,
            wavelengths=wavelengths,
            gain=None if gain is None else gain * level,
            read_noise=None if gain is None else read_noise,
            library=None if prior is None else prior.covariance,
            quality=quality,  # type: ignore[arg-type]
            num_iters=num_iters,
            budget=budget,
            uncertainty=uncertainty,
            seed=seed,
            monitor=monitor,
            progress=progress,
        )
    elif solver == "gaussian":
        found = solve_gaussian(
            A,
            y,
            prior or smooth_spectral_prior(A.num_bands if wavelengths is None else wavelengths),
            variance=gaussian_variance(y, None if gain is None else gain * level, read_noise),
            num_iters=num_iters,
            samples=GAUSSIAN_SAMPLES if uncertainty else 0,
            seed=seed,
            monitor=monitor if budget is None else _until(budget, monitor),
            progress=progress,
        )
    else:
        watch = monitor if budget is None else _until(budget, monitor)
        found = solve_as_told(A, y, wavelengths, solver, num_iters, tv_weight, watch, progress)
    spread = found.uncertainty
    return AutoResult(
        replace(found.result, x=found.result.x * level),
        {**found.choice, "level": level},
        None if spread is None else spread * level,
    )


def _named(given: SpectralPrior | Sequence[str | os.PathLike[str]] | None) -> list[str] | str | None:
    """A spectral prior as a plain value, for the record."""
    if given is None or isinstance(given, SpectralPrior):
        return None if given is None else "given as numbers"
    return [os.path.basename(path) for path in given]


def _until(budget: float, monitor: Monitor | None) -> Monitor:
    """A monitor that also stops when the time is up."""

    def watch(record: Record, cube: Tensor) -> bool:
        asked = monitor is not None and bool(monitor(record, cube))
        return asked or record.seconds >= budget

    return watch
