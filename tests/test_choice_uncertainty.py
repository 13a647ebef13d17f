"""Error bars: a bootstrap of the cube itself, the formula worked out by hand, and true errors that lie within."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from cassi import CASSI
from cassi.choice.automatic import reconstruct_auto
from cassi.choice.plan import Plan
from cassi.choice.stages import Tv
from cassi.choice.uncertainty import Bootstrap, bootstrap, standard_deviation
from cassi.evidence.noise import CameraNoise, NoiseModel
from cassi.optics.detector import detect
from cassi.priors.spectral_basis import smooth_basis
from cassi.settings import Settings
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

C, H, W = 6, 24, 20
SILENT = Plan("smooth-6", smooth_basis(C, C), NoiseModel(0.0, 0.0, "none"), 1.0, (Tv(100),))


def camera() -> CASSI:
    return CASSI.from_step(random_mask(H, W, generator=torch.Generator().manual_seed(2)), step=1, num_bands=C)


def squares(times: int = 1) -> torch.Tensor:
    """One of another spectrum on a flat ground."""
    x = torch.full((C, H, W), 0.5)
    x[:3, 3:9, 6:14] = 1.5
    return x.repeat_interleave(times, 1).repeat_interleave(times, 2)


def test_the_cube_that_is_found_again_has_no_error():
    A, x = replace(camera(), mask_error=0.0), torch.full((C, H, W), 0.5)
    found = bootstrap(A, A @ x, x, SILENT)
    assert float(found.squared.sqrt().max()) < 0.02 * 0.5 and float(found.squared.sqrt().median()) < 0.002


def test_errors_come_back_to_where_they_were_made():
    """What is wrong is wrong at the border of the square, however the rows are laid."""
    A, x = camera(), squares()
    squared = bootstrap(A, A @ x, x, SILENT).squared.sum(0)
    near = torch.zeros(H, W, dtype=torch.bool)
    near[1:11, 4:16] = True
    assert float(squared[near].mean()) > 10 * float(squared[14:].mean())


@pytest.mark.parametrize("wrong", [0.02, 0.05, 0.12])
def test_errors_are_as_large_as_wrong_masks_make_them(wrong):
    """The camera states 2 %; if its mask is wrong by more, held-out pixels say so. Within the steps of s."""
    A, x = (
        CASSI.from_step(random_mask(2 * H, 2 * W, generator=torch.Generator().manual_seed(2)), step=1, num_bands=C),
        squares(2),
    )
    plan = replace(SILENT, noise=NoiseModel(0.0, 1e-4, "known"))
    generator = torch.Generator().manual_seed(4)
    made, simulated = [], []
    for _ in range(3):
        mask = A.mask + wrong * torch.randn(A.mask.shape, generator=generator)
        y = replace(A, mask=mask) @ x
        y += 1e-2 * torch.randn(y.shape, generator=generator)
        made.append((Tv(100).run(A, y, plan.problem(y)).x - x).square().mean())
        simulated.append(bootstrap(A, y, x, plan).squared.mean())
    assert 0.7 < float((sum(simulated) / sum(made)) ** 0.5) < 1.4


def test_a_held_out_error_shows_another_camera():
    A, x = camera(), squares()
    right, wrong = (CASSI(0.1 + mask, A.shifts) for mask in (A.mask, A.mask.flip(-1)))  # light reaches the same pixels
    y = right @ x
    assert bootstrap(wrong, y, x, SILENT).held_out_error > 3 * bootstrap(right, y, x, SILENT).held_out_error


def test_the_formula_by_hand():
    """A ramp of slope g, an error of b everywhere, at a level of 2."""
    x = 0.1 * torch.arange(W).expand(C, H, W).float()
    b, missed = 0.3, 0.05
    made = Bootstrap(torch.full((C, H, W), b**2), missed)
    expected = 2 * 2.1 * math.hypot(b / 2, 0.002) ** 0.6 * math.hypot(0.05, 0.002) ** 0.2 * 0.05**0.33
    np.testing.assert_allclose(standard_deviation(made, x, 2.0).numpy(), expected, rtol=1e-5)


def test_true_errors_lie_within():
    """As many as of a normal distribution, of a scene and a noise on which nothing was chosen; and it says where."""
    generator = torch.Generator().manual_seed(11)
    truth = procedural_scene(96, 96, np.linspace(450, 650, 12).tolist(), generator=generator)
    A = CASSI.from_step(random_mask(96, 96, generator=generator), step=2, num_bands=12)
    noisy = detect(A @ truth, full_well=5e3, read_noise=5.0, generator=generator)
    found = reconstruct_auto(
        A, noisy.y, noise=CameraNoise(noisy.gain, 5.0), settings=Settings(num_iters=150, uncertainty=True)
    )
    error, sigma = (found.result.x - truth).abs(), found.uncertainty
    assert 0.68 - 0.15 < float((error <= sigma).float().mean()) < 0.68 + 0.15
    assert 0.95 - 0.08 < float((error <= 2 * sigma).float().mean()) < 0.95 + 0.05
    ranks = torch.stack([v.flatten().argsort().argsort().double() for v in (error, sigma)])
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.3


def test_it_has_the_unit_of_the_snapshot_and_is_the_same_twice():
    A = camera()
    x = torch.rand(C, H, W, generator=torch.Generator().manual_seed(3))

    def sigma(s: float) -> torch.Tensor:
        plan = Plan("", smooth_basis(C, 4), NoiseModel(0.01 * s, 0.0, ""), 1.0, ())
        return standard_deviation(bootstrap(A, s * (A @ x), s * x, plan, seed=5), s * x, s * float(x.mean()))

    first, again, scaled = sigma(1.0), sigma(1.0), sigma(1000.0)
    assert torch.equal(first, again)
    torch.testing.assert_close(scaled / 1000, first, rtol=1e-2, atol=1e-4)
