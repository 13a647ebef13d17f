"""Spectral bases against NumPy and SciPy."""

import math

import numpy as np
import pytest
import scipy.fft
import torch
from cases import F64
from messages import refused

from cassi.priors.spectral_basis import analyse, principal_basis, smooth_basis, synthesise


def orthonormal(rows: torch.Tensor) -> bool:
    return torch.allclose(rows @ rows.T, torch.eye(len(rows), dtype=rows.dtype), atol=1e-12)


@pytest.mark.parametrize("bands", [1, 2, 5, 28])
@pytest.mark.parametrize("K", [1, 3, 40])
def test_equal_spacing_is_the_dct(bands, K):
    """Row k is SciPy's orthonormal DCT-II vector k, for a count, and for equally spaced wavelengths alike."""
    expected = scipy.fft.dct(np.eye(bands), type=2, norm="ortho", axis=0)[:K]
    found = smooth_basis(bands, K)
    assert found.shape == (min(K, bands), bands) and found.dtype == F64
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    assert torch.equal(smooth_basis(np.int64(bands), K), found)
    np.testing.assert_allclose(smooth_basis(450 + 7.5 * np.arange(bands), K).numpy(), expected, atol=1e-10)


def test_unordered_wavelengths_permute_the_columns():
    lam, order = np.array([400.0, 410, 425, 470, 500, 610, 700]), np.random.default_rng(0).permutation(7)
    torch.testing.assert_close(smooth_basis(lam[order].tolist(), 4), smooth_basis(lam, 4)[:, order])


def test_unequal_spacing_holds_functions_smooth_in_wavelength():
    """A cosine over wavelength is in the span of the basis over wavelength, not in that over the band number."""
    lam = np.concatenate([np.linspace(400, 450, 20), np.linspace(500, 1000, 8)])
    rows = smooth_basis(lam, 6)
    assert orthonormal(rows)
    cosine = np.cos(2 * np.pi * (1 / 56 + 27 / 28 * (lam - 400) / 600))  # the second cosine, written out
    torch.testing.assert_close(rows.T @ (rows @ torch.from_numpy(cosine)), torch.from_numpy(cosine))
    by_index = smooth_basis(28, 6).numpy()
    assert np.linalg.norm(cosine - by_index.T @ (by_index @ cosine)) > 0.01 * np.linalg.norm(cosine)


@pytest.mark.parametrize(("make", "given", "K"), [
        (smooth_basis, 0, 3), (smooth_basis, 3, 0),
        (smooth_basis, [500.0, 500.0, 600.0], 2), (smooth_basis, [500.0, math.inf], 2),
        (principal_basis, torch.ones(2, 3), 2),
        (principal_basis, torch.full((2, 2), math.nan), 2),
])  # fmt: skip
def test_what_has_no_basis(make, given, K):
    refused(make, given, K, error=ValueError)


def test_principal_basis_is_brightness_and_the_eigenvectors_of_the_rest():
    rng, C, K = np.random.default_rng(1), 9, 4
    covariance = np.cov(rng.random((200, C)).cumsum(1).T)
    found = principal_basis(torch.from_numpy(covariance), K).numpy()
    flat = np.full(C, C**-0.5)
    np.testing.assert_allclose(found[0], flat, atol=1e-12)
    centering = np.eye(C) - np.outer(flat, flat)
    values, vectors = np.linalg.eigh(centering @ covariance @ centering)
    strongest = vectors[:, np.argsort(values)[::-1][: K - 1]].T
    np.testing.assert_allclose(np.abs((found[1:] * strongest).sum(1)), 1, atol=1e-10)  # the same up to sign, in order


@pytest.mark.parametrize(("C", "K"), [(1, 1), (1, 4), (5, 5), (5, 9), (6, 3)])
@pytest.mark.parametrize("rank", [0, 1, 9])
def test_principal_basis_is_orthonormal_whatever_the_rank(C, K, rank):
    factor = np.random.default_rng(2).standard_normal((C, rank))
    rows = principal_basis(torch.from_numpy(factor @ factor.T), K)
    assert rows.shape == (min(K, C), C) and orthonormal(rows)
    torch.testing.assert_close(rows[0], torch.full((C,), C**-0.5, dtype=F64))


def test_analyse_and_synthesise_are_an_adjoint_pair_and_span_the_subspace(generator):
    B = smooth_basis(6, 3)
    x = torch.randn(2, 6, 4, 5, dtype=F64, generator=generator)
    z = torch.randn(2, 3, 4, 5, dtype=F64, generator=generator)
    assert math.isclose(float((analyse(x, B) * z).sum()), float((x * synthesise(z, B)).sum()), rel_tol=1e-12)
    torch.testing.assert_close(analyse(synthesise(z, B), B), z)
    np.testing.assert_allclose(synthesise(z, B)[1, :, 2, 3].numpy(), B.numpy().T @ z[1, :, 2, 3].numpy())
    assert analyse(x.float(), B).dtype == torch.float32
