"""Time several ways to do one thing so that the figures can be compared, and count the memory a call takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

_SETTLE = 0.025  # seconds of rest before a turn: idle threads of the last way's parallel loops spin for about 15 ms
_TURN = 0.01  # seconds a turn lasts at least; shorter calls are repeated


def time_in_turns(
    ways: Mapping[str, Callable[[], object]],
    *,
    device: torch.device,
    seconds: float = 3.0,
    max_turns: int = 15,
    quantile: float = 0.5,
) -> dict[str, float]:
    """Seconds a call of each way, measured in turns: a, b, c, then b, c, a, and so on.

    What other programs take from the machine falls on all alike. A turn is a short rest, one call that is not timed,
    and calls for at least 10 ms; the device is synchronised around them. Turns go on for `seconds` in all, at least
    five; a way whose single call takes longer than a fifth of `seconds` gets one turn of a single call.

    Args:
        ways: functions of no argument by name.
        device: where they compute.
        seconds: for all ways together, not counting the slow ones.
        max_turns: at most.
        quantile: of the turns, 0 to 1: the median, or less where calls are so short that another program's turn shows.
    """
    single = {name: _clock(way, 1, device) for name, way in ways.items()}  # the first call compiles and allocates
    single = {name: _clock(way, 1, device) if single[name] < seconds else single[name] for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    slow = {name for name in ways if single[name] > seconds / 5}
    for name in slow:
        times[name].append(single[name])
    turning = [name for name in ways if name not in slow]
    turns, stop = 0, time.perf_counter() + seconds
    while turning and turns < max_turns and (turns < 5 or time.perf_counter() < stop):
        for name in turning[turns % len(turning) :] + turning[: turns % len(turning)]:
            time.sleep(_SETTLE)
            ways[name]()
            times[name].append(_clock(ways[name], max(1, round(_TURN / single[name])), device))
        turns += 1
    return {name: _quantile(values, quantile) for name, values in times.items()}


def _quantile(values: list[float], q: float) -> float:
    return statistics.median(values) if q == 0.5 else sorted(values)[int(q * (len(values) - 1))]


def _clock(way: Callable[[], object], calls: int, device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        way()
    _synchronize(device)
    return (time.perf_counter() - start) / calls


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check_agreement(ways: Mapping[str, Callable[[], Tensor]], tolerance: float = 1e-4) -> None:
    """What disagrees is not to be compared.

    Raises:
        RuntimeError: a way gives another result than the first, by more than `tolerance` of the largest value.
    """
    first, *others = ways
    expected = ways[first]()
    for name in others:
        error = float((ways[name]() - expected).abs().max() / expected.abs().max())
        if not error < tolerance:
            raise RuntimeError(
                f"{name} differs from {first} by {error:.1e} of the largest value; its time means nothing"
            )


def allocations(call: Callable[[], object]) -> list[int]:
    """What torch allocates (> 0) and frees (< 0) in CPU memory during a call, in order [bytes].

    Taken from torch's profiler, so that temporaries inside an operation count too.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    found: list[tuple[int, int]] = []
    events = list(record.profiler.kineto_results.experimental_event_tree())
    while events:
        event = events.pop()
        if event.tag.name == "Allocation":
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
        events += event.children
    return [size for _, size in sorted(found, key=lambda entry: entry[0])]


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Most memory that tensors hold at one time during a call, beyond what they held before [bytes]."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    held = peak = 0
    for size in allocations(call):
        held += size
        peak = max(peak, held)
    return peak
