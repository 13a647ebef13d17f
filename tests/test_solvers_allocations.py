"""No iteration of a solver allocates a cube, and what a run holds at its peak is known."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from benchmarks.textbook_shift_sum import data_step_naive
from benchmarks.timing import allocations, peak_memory
from torch import Tensor

from cassi import CASSI, admm_tv, gap, gap_tv

BANDS, HEIGHT, WIDTH = 16, 64, 64
CUBE = 4 * BANDS * HEIGHT * WIDTH


@pytest.fixture(scope="module")
def camera() -> tuple[CASSI, Tensor]:
    generator = torch.Generator().manual_seed(0)
    A = CASSI.from_step(torch.rand(HEIGHT, WIDTH, generator=generator), step=1, num_bands=BANDS)
    return A, A.forward(torch.rand(*A.cube_shape, generator=generator))


def cubes_allocated(run: Callable[[], object]) -> int:
    run()  # what is made once, such as compiled code, is made
    return sum(size >= CUBE for size in allocations(run))


@pytest.mark.parametrize(
    "solve", [gap_tv, partial(gap_tv, accelerate=False), admm_tv], ids=["gap", "gap plain", "admm"]
)
def test_an_iteration_allocates_no_cube_and_the_peak_is_known(solve, camera):
    """Two cubes, the dual, which is two more, small workspaces."""
    run = partial(solve, *camera, tv_weight=0.1)
    once, often = (cubes_allocated(partial(run, num_iters=n)) for n in (1, 6))
    assert once >= 3  # two cubes and the dual: the count sees them
    assert often == once
    assert 4 <= peak_memory(partial(run, num_iters=4), torch.device("cpu")) / CUBE <= 5


def test_the_count_can_tell(camera):
    A, y = camera

    def run(n: int) -> None:
        gap(A, y, lambda x, k: 0.5 * x, num_iters=n)

    assert cubes_allocated(partial(run, 6)) == cubes_allocated(partial(run, 1)) + 5
    x = A.pinv(y)
    assert cubes_allocated(lambda: data_step_naive(x, y, A.mask, A.shifts, A.gram_diag())) == 4


def test_the_operator_allocates_its_result_alone_and_the_gradient_keeps_no_cube(camera):
    A, y = camera
    x = A.pinv(y)
    assert [cubes_allocated(run) for run in (lambda: A.forward(x), lambda: A.adjoint(y), lambda: A.pinv(y))] == [
        0,
        1,
        1,
    ]
    x.requires_grad_()
    assert cubes_allocated(lambda: torch.autograd.grad(A.forward(x), x, y)) == 1
