"""Wavelengths of the bands: named presets with their sources, and checks."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from cassi.errors import InputError

MIN_WAVELENGTH = 100.0  # [nm]; glass, quartz and air absorb what is shorter


class Preset(NamedTuple):
    """A published list of bands: `wavelengths` [nm], and `source`, the publication."""

    wavelengths: tuple[float, ...]
    source: str


# fmt: off
_TSA_NET_28 = (
    453.3, 457.6, 462.1, 466.8, 471.6, 476.5, 481.6, 486.9, 492.4, 498.0, 503.9, 509.9, 516.2, 522.7,
    529.5, 536.5, 543.8, 551.4, 558.6, 567.5, 575.3, 584.3, 594.4, 604.2, 614.4, 625.1, 636.3, 648.1,
)
_MST_28 = (
    453.5, 457.5, 462.0, 466.0, 471.5, 476.5, 481.5, 487.0, 492.5, 498.0, 504.0, 510.0, 516.0, 522.5,
    529.5, 536.5, 544.0, 551.5, 558.5, 567.5, 575.5, 584.5, 594.5, 604.0, 614.5, 625.0, 636.5, 648.0,
)
_SMEM_24 = (
    454.4, 459.5, 464.9, 470.5, 476.2, 482.1, 488.4, 494.8, 501.5, 508.5, 515.8, 523.4, 531.4, 539.7,
    548.4, 557.5, 567.0, 577.0, 587.6, 598.7, 610.3, 622.6, 635.6, 649.3,
)
# fmt: on

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "tsa-net-28": Preset(
            _TSA_NET_28, "TSA-Net (Meng, Ma, Yuan, ECCV 2020), by github.com/caiyuanhao1998/MST/issues/92"
        ),
        "mst-28": Preset(
            _MST_28, "MST (Cai et al., CVPR 2022), visualization/show_simulation.m of github.com/caiyuanhao1998/MST"
        ),
        "smem-24": Preset(
            _SMEM_24, "snapshot multispectral endomicroscopy (Meng, Qiao, Ma, Yu, Xu, Yuan, Opt. Lett. 2020)"
        ),
        "cave-31": Preset(
            tuple(float(w) for w in range(400, 701, 10)), "CAVE multispectral image database (Yasuma et al. 2008)"
        ),
    }
)


def check_wavelengths(values: np.ndarray, num_bands: int, name: str, *, of: str = "bands") -> np.ndarray:
    """Return the list as (C,) float64 [nm]; values below 10 are taken as micrometers.

    InputError: not `num_bands` values, or values that are not finite, all different and above 100 nm.
    """
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    if values.size != num_bands:
        raise InputError(f"{name}: {values.size} values for {num_bands} {of}; give one for each")
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise InputError(f"{name}: wavelengths must be positive and finite [nm]")
    if np.unique(values).size < values.size:
        raise InputError(f"{name}: wavelengths must all differ, one is repeated; give one for each of the {of}")
    # No optical band is near 10 nm: such numbers are micrometers. Rounding turns 0.45 um into exactly 450 nm.
    values = np.round(values * 1e3, 9) if 1e-3 * MIN_WAVELENGTH < values.max() < 10 else values
    if values.min() < MIN_WAVELENGTH:
        raise InputError(f"{name}: no lens transmits {values.min():g} to {values.max():g} nm; give wavelengths in nm")
    return values
