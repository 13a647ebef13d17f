"""What must not change a cube, and numbers that cannot be, for every solver."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import two_squares
from messages import refuses

from cassi import CASSI, Reconstruction, gap_tv, reconstruct
from cassi.optics.detector import brightness
from cassi.settings import SOLVERS

H, W, C = 24, 20, 4
MASK = (torch.rand(H, W, generator=torch.Generator().manual_seed(1)) > 0.5).float()
X = torch.rand(C, H, W, generator=torch.Generator().manual_seed(2))
Y = CASSI.from_step(MASK, 2, C) @ X


def solve(solver: str, y=Y, mask=MASK, **more: object) -> Reconstruction:
    ways = {"num_bands": C, "camera": "as-given"} | ({} if solver == "least-squares" else {"num_iters": 8}) | more
    return reconstruct(y, mask, solver=solver, **ways)


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture(scope="module")
def cubes() -> dict[str, torch.Tensor]:
    return {solver: solve(solver).cube for solver in SOLVERS}


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_upside_down(solver):
    """Exact where the solver is linear. Forward differences of total variation are backward ones then, and pixels are
    held out at the same places: the cubes differ, by about half of what either is wrong by."""
    x = two_squares()
    y = CASSI.from_step(MASK, 2, C) @ x
    linear = solver == "least-squares"
    more = {} if linear else {"num_iters": 60}
    up, down = solve(solver, y, **more).cube, solve(solver, y.flip(0), MASK.flip(0), **more).cube.flip(1)
    assert apart(down, up) < (1e-4 if linear else 0.7 * apart(up, x))
    assert apart(down, x) == pytest.approx(apart(up, x), rel=1e-3 if linear else 0.25)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("factor", [1e-20, 1e-10, 1e10, 1e20])
def test_any_unit(cubes, solver, factor):
    assert apart(solve(solver, Y.double().numpy() * factor).cube.double() / factor, cubes[solver]) < 1e-3


@pytest.mark.parametrize("factor", [1, 4095])
def test_the_weight_of_a_function_is_that_of_a_setting_times_the_level(factor):
    """As the docstring of gap_tv says, for fractions of full scale as for counts."""
    A, y = CASSI.from_step(MASK, 2, C), factor * Y
    found = gap_tv(A, y, tv_weight=0.2 * brightness(A, y), num_iters=8).x
    assert apart(solve("gap-tv", y, tv_weight=0.2, black_level=0).cube, found) < 1e-5


@pytest.mark.parametrize("solver", SOLVERS)
def test_twice_and_with_other_threads(cubes, solver, torch_threads):
    assert torch.equal(solve(solver).cube, cubes[solver])
    torch_threads(1 if torch.get_num_threads() > 1 else 2)
    assert apart(solve(solver).cube, cubes[solver]) < 1e-4


@pytest.mark.parametrize("solver", SOLVERS)
def test_four_at_once(cubes, solver):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: solve(solver).cube, range(4)))
    assert all(apart(one, cubes[solver]) < 1e-5 for one in found)


NUMBERS = {
    "faint mask": {"mask": 1e-30 * MASK},
    "bright mask": {"mask": 1e30 * MASK},
    "brightest mask": {"mask": 3e38 * MASK},
    "bright counts": {"y": Y.double().numpy() * 1e300},
    "read noise": {"gain": 1.0, "read_noise": 1e30},
    "gain": {"gain": 1e-300},
    "blur": {"psf": 1e9},
    "large seed": {"seed": 2**70},
    "no time": {"budget": 0.0},
    "time without end": {"budget": math.inf},
    "half a seed": {"seed": 1.5},
    "doubled wavelengths": {"wavelengths": [500.0, 500.0, 550.0, 600.0]},
    "black level": {"black_level": 1e30},
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_that_cannot_be(solver, case):
    change = NUMBERS[case]
    with refuses() as caught:
        solve(solver, **change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("factor", [1e-5, 1e5])
def test_a_mask_in_another_unit(cubes, solver, factor):
    assert apart(factor * solve(solver, mask=factor * MASK).cube, cubes[solver]) < 1e-2
