"""The blurred camera: what is its alone; `test_optics_contract.py` has the rest."""

import math

import pytest
import torch
from messages import refused

from cassi import admm_tv, gap_tv
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.psf import gaussian_psf


def test_where_the_light_goes_by_hand():
    point = torch.zeros(1, 1, 3)
    point[0, 0, 1] = 1
    mask = torch.ones(1, 3)
    assert BlurredCASSI(mask, (0.25,)).forward(point).tolist() == [[0.0, 0.75, 0.25, 0.0]]
    psf = torch.tensor([1.0, 2.0, 5.0])
    assert BlurredCASSI(mask, (0,), psf=psf).forward(point).tolist() == [[0.125, 0.25, 0.625]]
    assert BlurredCASSI(mask, (0,), psf=psf[:2]).forward(point)[0].tolist() == pytest.approx([1 / 3, 2 / 3, 0])


def scene(bands=4, side=64):
    """Discs and stripes of smooth spectra."""
    i, j = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    t = torch.linspace(0, 1, bands)[:, None, None]
    cube = 0.2 + 0.3 * t * (torch.sin(i / 5) > 0)
    for row, column, radius, peak in ((18, 20, 11, 0.1), (44, 40, 14, 0.9), (20, 48, 8, 0.5), (50, 12, 7, 0.3)):
        inside = (i - row) ** 2 + (j - column) ** 2 < radius**2
        cube = torch.where(inside, 0.15 + 0.8 * torch.exp(-((t - peak) ** 2) / 0.1), cube)
    return cube


@pytest.mark.parametrize("solve", [gap_tv, admm_tv])
@pytest.mark.parametrize(
    "optics", [{"shifts": (0.0, 1.5, 3.0, 4.5)}, {"shifts": (0, 2, 4, 6), "psf": gaussian_psf(1.0)}]
)
def test_noise_that_the_camera_cannot_make_is_not_amplified(solve, optics):
    """3 % of noise has parts that a blur nearly erases: divided by what is left of them they would be everything."""
    x = scene()
    A = BlurredCASSI((torch.rand(64, 64, generator=torch.Generator().manual_seed(1)) > 0.5).float(), **optics)
    y = A @ x
    y += 0.03 * y.mean() * torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    found = solve(A, y, tv_weight=0.03).x
    assert float((y - A @ found).norm() / y.norm()) < 0.1
    assert float((found - x).square().mean().sqrt()) < 0.2


def test_gaussian_psf():
    psf = gaussian_psf(1.5)
    t = torch.arange(len(psf)) - len(psf) // 2
    assert len(psf) % 2 == 1 and torch.equal(psf, psf.flip(0)) and float(psf.sum()) == pytest.approx(1, abs=1e-15)
    assert float((psf * t**2).sum()) == pytest.approx(1.5**2 + 1 / 12, rel=1e-2)  # a pixel adds 1/12 to the variance


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda m: BlurredCASSI(m.int(), (0, 1)), TypeError),
        (lambda m: BlurredCASSI(m, ()), ValueError),
        (lambda m: BlurredCASSI(m, (0, math.nan)), ValueError),
        (lambda m: BlurredCASSI(m[0], (0, 1)), ValueError),
        (lambda m: BlurredCASSI(m[None], (0, 1)), ValueError),
        (lambda m: BlurredCASSI(m, (0, 1), psf=torch.ones(3, 3)), ValueError),
        (lambda m: BlurredCASSI(m, (0, 1), psf=-torch.ones(3)), ValueError),
        (lambda m: BlurredCASSI(m, (0, 1), psf=torch.zeros(3)), ValueError),
        (lambda m: BlurredCASSI(m, (0, 1.5), weights=torch.ones(4, 5)), ValueError),
        (lambda m: BlurredCASSI(m, (0, 1), tol=0.0), ValueError),
        (lambda m: BlurredCASSI(m, (0, 1)).solve(torch.full((4, 6), math.nan), 0.1), FloatingPointError),
        (lambda m: gaussian_psf(0.0), ValueError),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, error):
    refused(call, torch.ones(4, 5), error=error)
