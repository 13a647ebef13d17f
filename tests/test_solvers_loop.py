"""The loop every solver runs in, its records and its result."""

import math

import pytest
import torch
from messages import refused
from pretend_device import pretend_cuda

from cassi import Record, Result
from cassi.solvers.loop import Loop, overwrite, relative_norm

V = torch.zeros(1)


def run(changes: list[float], *, tol: float = 0.0, monitor=None, num_iters: int | None = None, **values) -> Result:
    """A solver whose changes are given."""
    loop = Loop(len(changes) if num_iters is None else num_iters, tol=tol, monitor=monitor, name="Test")
    for k in loop:
        loop.record(V, residual=values.get("residual", 0.5), change=changes[k])
    return loop.result(V)


def test_it_does_the_iterations_asked_for():
    result = run([0.3, 0.2, 0.1])
    assert [r.iteration for r in result.history] == [1, 2, 3]
    assert [r.change for r in result.history] == [0.3, 0.2, 0.1]
    assert all(isinstance(r, Record) and r.residual == 0.5 for r in result.history)
    seconds = [r.seconds for r in result.history]
    assert seconds == sorted(seconds) and seconds[0] >= 0
    assert result.x is V
    assert result.status == "finished" and "3 iterations" in result.message


def test_it_converges_at_the_first_change_below_tol():
    result = run([0.3, 0.1, 0.09, 0.01], tol=0.1)
    assert (result.status, len(result.history)) == ("converged", 3) and "after 3 iterations" in result.message


def test_the_monitor_may_stop_it():
    seen = []

    def monitor(record: Record, x: torch.Tensor) -> bool:
        seen.append(record)
        assert x is V
        return record.iteration == 2

    result = run([0.3, 0.2, 0.1], monitor=monitor)
    assert result.status == "stopped" and "after 2 iterations" in result.message
    assert tuple(seen) == result.history


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_names_the_solver_and_the_iteration(bad):
    refused(run, [0.1, bad], error=FloatingPointError)
    refused(run, [0.1], error=FloatingPointError, residual=bad)


def test_what_is_refused():
    refused(run, [], error=ValueError, num_iters=0)
    for tol in (-1.0, math.nan):
        refused(run, [0.1], error=ValueError, tol=tol)


def compared(residual: float, change: float) -> tuple[torch.Tensor, ...]:
    """v, v_old, y_v and y of such numbers."""
    one = torch.ones(2, dtype=torch.float64)
    return one + change, one, one + residual, one


def on_device(values: list[tuple[float, float]], **settings) -> tuple[Result | None, list[int], str]:
    """A solver whose tensors lie on a device; the iterations at which numbers were fetched, and its error."""
    fetched, options = [], {"tol": 0.0, "monitor": None, **settings}
    loop = Loop(len(values), name="Test", **options)
    with pretend_cuda() as ledger:
        given = [[t.to("cuda") for t in compared(*pair)] for pair in values]
        ledger.waits.clear()
        try:
            for k in loop:
                before = ledger.waits.total()
                loop.compare(*given[k])
                fetched += [k + 1] * (ledger.waits.total() - before)
            return loop.result(V), fetched, ""
        except FloatingPointError as error:
            return None, fetched, str(error)


def test_numbers_on_a_device_are_fetched_once_in_sixteen_iterations_and_at_the_end():
    values = [(0.5 / k, 0.25 / k) for k in range(1, 41)]
    result, fetched, _ = on_device(values)
    assert fetched == [16, 32, 40]
    assert [(r.iteration, r.residual, r.change) for r in result.history] == [
        (k, pytest.approx(a), pytest.approx(b)) for k, (a, b) in enumerate(values, 1)
    ]
    seconds = [r.seconds for r in result.history]
    assert seconds == sorted(seconds) and result.status == "finished"


def test_who_waits_for_them_does_not_get_them_sooner():
    values = [(0.5, 0.5), (0.4, 0.2), (0.3, 0.01), *[(0.2, 0.2)] * 36]
    result, fetched, _ = on_device(values, tol=0.1)
    assert (result.status, fetched, len(result.history)) == ("converged", [16], 16)
    seen = []

    def monitor(record, x):
        seen.append(record.iteration)
        return record.residual < 0.45

    result, fetched, _ = on_device(values, monitor=monitor)
    assert (result.status, fetched, seen) == ("stopped", [16], [1, 2])
    seen.clear()
    result, fetched, _ = on_device(values, monitor=lambda record, x: seen.append(record.iteration))
    assert (result.status, fetched, seen) == ("finished", [16, 32, 39], list(range(1, 40)))
    monitor.every = 10
    assert on_device([(0.5, 0.5)] * 25, monitor=monitor)[1] == [10, 20, 25]


@pytest.mark.parametrize("at", [3, 16, 20])
def test_divergence_on_a_device_names_the_iteration_it_happened_in(at):
    assert f"change nan at iteration {at};" in on_device([(0.5, math.nan if k >= at else 0.1) for k in range(1, 21)])[2]


def test_relative_norm():
    def scalar(value: float) -> torch.Tensor:
        return torch.tensor(value)

    assert relative_norm(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 10.0])) == 0.5
    assert relative_norm(torch.tensor([3.0, 4.0]), scalar(10.0)) == 0.5
    assert relative_norm(scalar(0.0), scalar(0.0)) == 0.0
    assert relative_norm(scalar(7.0), scalar(0.0)) == 1.0
    assert math.isnan(relative_norm(scalar(math.nan), scalar(0.0)))
    assert math.isnan(relative_norm(scalar(math.nan), scalar(math.nan)))
    assert math.isnan(relative_norm(scalar(1.0), scalar(math.nan)))
    assert relative_norm(scalar(math.inf), scalar(0.0)) == math.inf
    for scale in (1e-30, 1e30):  # whose squares float32 does not hold
        assert relative_norm(scale * torch.ones(5), 2 * scale * torch.ones(5)) == pytest.approx(0.5)


def compare(v: torch.Tensor, v_old: torch.Tensor) -> float:
    """|v - v_old| / |v_old| as a loop records it, of either pair that it compares."""
    loop = Loop(1, tol=0.0, monitor=None, name="Test")
    for _ in loop:
        loop.compare(v, v_old, v, v_old)
    (record,) = loop.result(v).history
    assert record.residual == record.change
    return record.change


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 1000, 300_001])
def test_changes(size, dtype, path, generator):
    """|new - old| / |old|, also above the size that is summed in one piece, and in any layout."""
    new, old = (torch.randn(3, size, generator=generator, dtype=dtype) for _ in range(2))
    expected = float((new.double() - old.double()).norm() / old.double().norm())
    assert compare(new, old) == pytest.approx(expected, rel=1e-6)
    assert compare(new.T, old.T) == pytest.approx(expected, rel=1e-6)
    assert compare(old, old) == 0.0
    assert compare(new, torch.zeros_like(new)) == 1.0
    assert compare(torch.zeros_like(new), torch.zeros_like(new)) == 0.0
    for bad in (math.nan, math.inf):
        spoiled = new.clone()
        spoiled[2, size // 2] = bad
        for pair in ((spoiled, old), (spoiled, torch.zeros_like(old)), (old, spoiled)):
            refused(compare, *pair, error=FloatingPointError)


def test_a_change_is_summed_in_double_precision(path):
    old = torch.full((3, 700_000), 1e-3)
    new = old.clone()
    new[1, 5] += 1
    assert compare(new, old) == pytest.approx(1 / (1e-3 * math.sqrt(2.1e6)), rel=1e-6)


def test_a_change_needs_equal_shapes():
    refused(compare, torch.zeros(1, 2, 3), torch.zeros(2, 3), error=ValueError)


def test_overwrite():
    buffer, value = torch.zeros(2, 3), torch.arange(6.0).reshape(2, 3)
    overwrite(buffer, value)
    assert torch.equal(buffer, value)
    overwrite(buffer, buffer)
    assert torch.equal(buffer, value)
    for bad in (torch.zeros(3, 2), torch.zeros(2, 1), torch.zeros(2, 3, dtype=torch.float64)):
        refused(overwrite, buffer, bad, error=ValueError)
    for nothing in (None, value.numpy()):
        refused(overwrite, buffer, nothing, error=TypeError)
