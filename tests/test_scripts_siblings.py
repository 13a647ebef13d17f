"""The benchmarks of the row primitives: all ways agree, and a way that does not is refused."""

import torch
from benchmarks import timing
from benchmarks.siblings import convolution_speed, covariance_speed, patches_speed, siblings


def test_every_way_to_compute_a_row_agrees():
    rows = [
        *convolution_speed((20,), (3, 30), seconds=0),
        *patches_speed((2,), (24,), ((8, 4), (5, 1)), seconds=0),
        *covariance_speed((4,), (4,), (16,), seconds=0),
    ]
    patches = ["extract patches", "aggregate patches"]
    assert [row.task for row in rows] == ["convolution"] * 3 + patches * 2 + ["covariance"]
    for row in rows:
        assert row.milliseconds > 0 and row.others and row.speedup == min(row.others.values()) / row.milliseconds


def test_a_quick_look_at_every_primitive(monkeypatch):
    monkeypatch.setattr(timing, "_SETTLE", 0.0)
    monkeypatch.setattr(timing, "_TURN", 0.0)
    text = "\n".join(siblings(torch.device("cpu"), quick=True))
    for task in ("convolution", "extract patches", "aggregate patches", "covariance"):
        assert f"\n{task}: on " in text
