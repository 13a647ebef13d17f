"""`cassi.reconstruct`: one call from a measurement to a cube; `cassi.running.pipeline` lists the calls below it."""

import inspect
import os
import sys
import warnings
from dataclasses import fields, replace
from typing import Unpack

import numpy as np

from cassi.kernels.caller import undisturbed
from cassi.kernels.dispatch import unused_gpu
from cassi.keywords import Keywords
from cassi.optics.measurement import Measurement
from cassi.optics.protocol import Camera
from cassi.running.arguments import Array, as_numpy, load, open_files
from cassi.running.pipeline import Listener, reconstruct_measurement
from cassi.running.progress import expected_steps, reporting
from cassi.running.result import Reconstruction
from cassi.running.scene import prepare_camera
from cassi.settings import Settings
from cassi.solvers.loop import Monitor
from cassi.types import PathLike, Progress


@undisturbed
def reconstruct(
    measurement: Array | Measurement | PathLike,
    mask: Array | Camera | PathLike | None = None,
    *,
    monitor: Monitor | None = None,
    progress: bool | Progress = False,
    **settings: Unpack[Keywords],
) -> Reconstruction:
    """Turn a CASSI snapshot into a spectral cube: x such that y = Phi x, with nothing to tune.

    The measurement is divided by its brightness, sum |y| / sum Phi 1 (the mean of the cube that would explain it), the
    cube multiplied by it: a measurement times any positive constant gives the cube times that constant, and a weight
    means the same for counts as for values in [0, 1]. Computed in float32, or as a camera that is given.

    Args:
        measurement: y, (H, W'), or (N, H, W') for N snapshots through one mask; finite, any unit. Or a file, read by
            `cassi.files.frames.read_scene`. Or a `cassi.optics.measurement.Measurement`, which has mask, shifts
            and the rest.
        mask: coded aperture (H, W), or (C, H, W) with one per band [transmission], or its file beside the file of a
            measurement. Or the camera itself (`cassi.optics.protocol`), which has shifts, blur and device.
        monitor: called each iteration with (Record, cube of brightness 1; "auto" and "subspace": its spectral
            coefficients); return True to stop.
        progress: show one bar over all steps; or a function that is called with the name of each step and the share of
            it that is done.
        settings: the fields of `cassi.settings.Settings`: num_bands, step, wavelengths, solver, quality, device ...

    Returns:
        The `Reconstruction`.

    Warns:
        UserWarning: a mask that does not fit the snapshot (`Reconstruction.check`), and what else speaks against it or
            the cube (`cassi.running.concerns`).

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
    wanted = open_files(Settings(**settings))  # before anything is measured or read: what is wrong shows first
    if wanted.device == "auto" and (reason := unused_gpu()):
        warn_caller(reason)
    mask = mask if isinstance(mask, Camera) else as_numpy(mask)
    if isinstance(mask, np.ndarray | str | os.PathLike | None):
        m = load(measurement, mask, wanted)
        if isinstance(wanted.white, str | os.PathLike):
            wanted = replace(wanted, white=load(wanted.white, mask, wanted))
        with reporting(progress, expected_steps(wanted, m.num_scenes)) as report:
            return reconstruct_measurement(m, wanted, Listener(report, warn=warn_caller, monitor=monitor))
    scene = prepare_camera(mask, measurement, wanted)  # type: ignore[arg-type]
    if scene.doubt:
        warn_caller(scene.doubt)
    with reporting(progress, expected_steps(wanted, scene.num_scenes, search=False)) as report:
        return reconstruct_measurement(scene, wanted, Listener(report, warn=warn_caller, monitor=monitor))


def warn_caller(text: str) -> None:
    """A UserWarning at the line outside of this package that called it."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("cassi."):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, stacklevel=depth)


def list_settings(function: object) -> None:
    """Let `help` and editors show the settings of a function with their defaults."""
    given = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    own = [parameter for parameter in given if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    settings = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default) for f in fields(Settings)]
    function.__signature__ = inspect.Signature([*own, *settings])  # type: ignore[attr-defined]


list_settings(reconstruct)
