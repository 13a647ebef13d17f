"""From radiance to reflectance, by a capture of a white reference under the same light."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy import ndimage

from cassi.errors import InputError
from cassi.optics.measurement import REFLECTANCE
from cassi.running.result import Reconstruction

EVEN = 8.0  # standard deviation within which the light on a white reference is even [pixel]
DARK = 0.02  # of the brightest: where less light falls, nothing is said of the scene


def reflectance(result: Reconstruction, white: Reconstruction) -> Reconstruction:
    """The cube in units of what a white reference sends back in its place.

        rho_c = x_c / (G * w_c)         0 where G * w_c < 0.02 max w

    w is the cube of the reference and G a Gaussian of 8 pixels: light changes slowly over a field, noise does not.

    Args:
        result: of the scene.
        white: of the reference, by the same camera; exposure and light as for the scene, else up to a factor.

    Returns:
        The reconstruction with cube and uncertainty [reflectance]; the rest is that of the scene's radiance.

    Raises:
        InputError: cubes of different sizes, stacks, or a reference that is black.
    """
    if result.cube.ndim != 3 or white.cube.shape != result.cube.shape:
        raise InputError(
            f"the white reference must be one snapshot of the scene's size, a cube {tuple(result.cube.shape)}, got "
            f"{tuple(white.cube.shape)}; capture it with the same camera"
        )
    w = white.cube.double().cpu().numpy()
    light = np.stack([ndimage.gaussian_filter(band, EVEN, mode="nearest") for band in w])
    if not light.max() > 0:
        raise InputError("the white reference is black: its cube is 0 everywhere; capture a white board in full light")
    scale = np.where(light >= DARK * light.max(), 1 / np.maximum(light, 1e-300), 0)
    factor = torch.as_tensor(scale, dtype=result.cube.dtype, device=result.cube.device)
    spread = None if result.uncertainty is None else result.uncertainty * factor
    return replace(result, cube=result.cube * factor, uncertainty=spread, unit=REFLECTANCE)
