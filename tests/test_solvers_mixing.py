"""Anderson's mixing: exact where it must be, faster where it is used, and each of a batch for itself."""

from functools import partial

import torch

from cassi import CASSI
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.mixing import Mixing
from cassi.solvers.subspace_tv import subspace_tv


def linear_map(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """M with its eigenvalues in (0, 0.99), and b, of v <- M v + b."""
    generator = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    b = torch.randn(n, generator=generator, dtype=torch.float64)
    return (Q * torch.linspace(0.1, 0.99, n, dtype=torch.float64)) @ Q.T, b


def iterated(maps: list[tuple[torch.Tensor, torch.Tensor]], turns: int, mixed: bool = True) -> torch.Tensor:
    v, mixing = torch.zeros(len(maps), len(maps[0][1]), dtype=torch.float64), Mixing()
    for _ in range(turns):
        found = torch.stack([M @ one + b for (M, b), one in zip(maps, v, strict=True)])
        if mixed:
            mixing(found - v, found)
        v = found
    return v


def test_linear_equations_are_solved_in_fewer_turns():
    M, b = linear_map(1, 0)
    torch.testing.assert_close(iterated([(M, b)], 2)[0], b / (1 - M[0]), rtol=1e-12, atol=0)
    M, b = linear_map(4, 0)
    solution = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - M, b)
    plain, mixed = (float((iterated([(M, b)], 40, so)[0] - solution).norm()) for so in (False, True))
    assert mixed < 0.01 * plain


def test_each_of_a_batch_is_mixed_for_itself():
    maps = [linear_map(12, 1), linear_map(12, 2)]
    for one, v in zip(maps, iterated(maps, 10), strict=True):
        torch.testing.assert_close(iterated([one], 10)[0], v, rtol=1e-9, atol=1e-12)


def test_a_linear_prior_settles_in_fewer_iterations():
    generator = torch.Generator().manual_seed(3)
    A = CASSI.from_step(torch.rand(24, 24, generator=generator), step=1, num_bands=6)
    y = A @ torch.rand(6, 24, 24, generator=generator)
    pool = torch.nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    half = {"variance": 1e-2, "nonnegative": False, "denoise": lambda z, k: 0.5 * (z + pool(z))}
    run = partial(subspace_tv, A, y, smooth_basis(6, 4), **half)
    settled, plain, mixed = (run(num_iters=n, mixed=so)[0].x for n, so in ((2000, False), (40, False), (40, True)))
    assert float((mixed - settled).norm()) < 0.1 * float((plain - settled).norm())
    by_columns = partial(subspace_tv, A, y.T.contiguous().T, smooth_basis(6, 4), **half)
    torch.testing.assert_close(by_columns(num_iters=40, mixed=True)[0].x, mixed)
