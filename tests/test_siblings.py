"""The benchmarks of the row primitives: all ways agree, and a way that does not is refused."""

import pytest
import torch

from cassi.benchmarks.siblings import (
    blur_gain,
    convolution_speed,
    covariance_speed,
    patches_speed,
    time_in_turns,
)


def test_every_way_to_compute_a_row_agrees():
    rows = [
        *convolution_speed((20,), (3, 30), seconds=0),
        *patches_speed((2,), (24,), ((8, 4), (5, 1)), seconds=0),
        *covariance_speed((4,), (4,), (16,), seconds=0),
    ]
    assert [row.task for row in rows] == ["convolution"] * 3 + ["extract patches", "aggregate patches"] * 2 + [
        "covariance"
    ]
    for row in rows:
        assert row.milliseconds > 0 and row.others and row.speedup == min(row.others.values()) / row.milliseconds


def test_a_wrong_way_is_refused():
    with pytest.raises(ValueError, match="b differs from a by"):
        time_in_turns({"a": lambda: torch.ones(3), "b": lambda: torch.zeros(3)})


def test_blur_gain_tries_every_weight():
    cube = torch.rand(3, 12, 14, generator=torch.Generator().manual_seed(0))
    result = blur_gain(cube, weights=(0.01, 0.1), num_iters=3)
    assert result.right == max(result.right_by_weight.values()) and set(result.wrong_by_weight) == {0.01, 0.1}
    assert result.gain == result.right - result.wrong and result.seconds > 0
