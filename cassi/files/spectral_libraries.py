"""What spectra to expect, from cubes in files."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch

from cassi.errors import InputError
from cassi.files.cubes import read_cube
from cassi.priors.gaussian_spectra import SpectralPrior, library_spectral_prior, resampling


def as_spectral_prior(
    given: SpectralPrior | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    num_bands: int,
    wavelengths: Sequence[float] | np.ndarray | None = None,
) -> SpectralPrior | None:
    """The prior as given, or mean and covariance of the spectra in files of cubes, each counting alike.

    Where file and measurement both know their wavelengths (C,) [nm], the spectra are interpolated linearly; otherwise
    the file must have as many bands as the measurement. At mean level 1.

    Raises:
        InputError: a prior or a file of another number of bands; a file that cannot be read, does not cover the
            wavelengths, or whose mean is not positive.
    """
    if given is None:
        return None
    if isinstance(given, SpectralPrior):
        if len(given.mean) != num_bands:
            raise InputError(f"the spectral prior has {len(given.mean)} bands, the measurement {num_bands}")
        return given
    priors = []
    for path in [given] if isinstance(given, str | os.PathLike) else given:
        cube, known = read_cube(path)
        R = None
        try:
            if known is not None and wavelengths is not None:
                R = resampling(known, wavelengths)
            elif cube.shape[-3] != num_bands:
                raise ValueError(
                    f"has {cube.shape[-3]} bands, the measurement {num_bands}; "
                    "give the wavelengths of both, or a cube with as many bands"
                )
            priors.append(library_spectral_prior([torch.from_numpy(cube)], resample=[R]))
        except ValueError as error:
            raise InputError(f"{path}: {error}") from error
    if not priors:
        raise InputError("a spectral prior needs at least one file")
    mean = torch.stack([prior.mean for prior in priors]).mean(0)
    moment = torch.stack([prior.covariance + torch.outer(prior.mean, prior.mean) for prior in priors]).mean(0)
    return SpectralPrior(mean, moment - torch.outer(mean, mean))
