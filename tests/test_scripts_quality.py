"""The quality benchmark on a scene small enough for a test: rows, tables, and its copy of the published loop."""

import math
import re
from dataclasses import replace

import benchmarks.quality as bench
import numpy as np
import oracle
import pytest
import torch

from cassi import CASSI
from cassi.evidence.held_out import hold_out
from cassi.settings import Settings

skimage = pytest.importorskip("skimage.restoration", reason="the published loop needs scikit-image")


def tiny_scene(name: str = "procedural") -> bench.Scene:
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(3, 12, 14, generator=generator).cumsum(2) / 14
    A = CASSI(torch.rand(12, 14, generator=generator), (2, 0, -1))
    return bench.Scene(name, A, A.forward(truth), cube=truth)


def plain_gap_tv(scene: bench.Scene, weight: float, num_iters: int, tv_iters: int) -> np.ndarray:
    """Accelerated GAP with dense matrices: y1 += y - Phi x;  x += Phi^T (Phi Phi^T)^-1 (y1 - Phi x);  x = TV(x)."""
    phi = oracle.matrix(scene.A.mask.double().numpy(), scene.A.shifts)
    y, shape = scene.y.double().numpy().ravel(), scene.A.cube_shape
    gram = phi @ phi.T
    x, y1 = phi.T @ y, np.zeros_like(y)
    for _ in range(num_iters):
        y1 = y1 + (y - phi @ x)
        x = x + phi.T @ (np.linalg.pinv(gram) @ (y1 - phi @ x))
        bands = [skimage.denoise_tv_chambolle(band, weight, max_num_iter=tv_iters) for band in x.reshape(shape)]
        x = np.stack(bands).ravel()
    return x.reshape(shape)


@pytest.mark.parametrize(("weight", "num_iters", "tv_iters"), [(0.1, 1, 5), (0.1, 6, 5), (0.02, 4, 2)])
def test_the_published_loop(weight, num_iters, tv_iters):
    """Band by band: `channel_axis` of scikit-image denoises each channel alone, so the two agree to rounding."""
    scene = tiny_scene()
    found = bench.scikit_image_gap_tv(scene, weight, num_iters=num_iters, tv_iters=tv_iters)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), plain_gap_tv(scene, weight, num_iters, tv_iters), atol=2e-5)


@pytest.fixture(scope="module")
def run():
    """The whole comparison, quick, on a scene of 12 x 14 pixels, with cheap solvers."""
    patch = pytest.MonkeyPatch()
    original = bench.scikit_image_gap_tv
    patch.setattr(bench, "simulated_scenes", lambda data, *, size: iter([tiny_scene()]))
    patch.setattr(bench, "scikit_image_gap_tv", lambda s, w: original(s, w, num_iters=3, tv_iters=2))
    auto, few = bench.reconstruct_auto, Settings(num_iters=40)
    patch.setattr(
        bench, "reconstruct_auto", lambda A, y, settings=few: auto(A, y, settings=replace(settings, num_iters=40))
    )
    lines: list[str] = []
    try:
        yield bench.quality(quick=True, report=lines.append), lines
    finally:
        patch.undo()


def table(text: str, first: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the Markdown table whose header starts with `first`."""
    block = next(b for b in re.split(r"\n\n", text) if b.startswith(first))
    cells = [[c.strip() for c in line.strip().strip("|").split("|")] for line in block.strip().splitlines()]
    assert len({len(row) for row in cells}) == 1, block
    assert set(cells[1]) == {"---"}
    return cells[0], cells[2:]


def test_the_tables_agree_with_each_other(run):
    text, lines = run
    header, rows = table(text, "| scene | noise | auto |")
    solvers = header[2:]
    assert set(solvers) == {"auto", "GAP-TV loop", *bench.OTHERS}
    assert [(r[0], r[1]) for r in rows] == [("procedural", n) for n in ("clean", "10,000 e", "1,000 e")]
    values = {(r[1], s): float(c.split()[0]) for r in rows for s, c in zip(solvers, r[2:], strict=True)}
    assert len(lines) - 1 == len(values) == 15 and all(math.isfinite(v) for v in values.values())
    _, gains = table(text, "| noise | scenes | mean gain")
    for noise, scenes, mean, worst, ratio, most in gains:
        assert ratio == most and float(ratio) > 0  # one scene
        gain = values[noise, "auto"] - values[noise, "GAP-TV loop"]
        assert scenes == "procedural (1)" and mean == worst and abs(float(mean) - gain) < 0.011
    _, details = table(text, "| scene | noise | solver |")
    assert {(d[1], d[2]): float(d[3]) for d in details} == values
    assert all(-1 <= float(d[4]) <= 1 and 0 <= float(d[5]) <= 90 for d in details)


def test_the_blur_is_worth_knowing(run):
    _, rows = table(run[0], "| scene | right camera")
    assert [r[0] for r in rows] == ["procedural"]
    right, wrong, gain = (float(c) for c in rows[0][1:])
    assert abs(gain - (right - wrong)) < 0.011


def test_held_out_pixels_stay_unseen(monkeypatch):
    """The table of real captures: solvers get the held-out pixels as 0 with weight 0, errors are relative to them."""
    scene = tiny_scene("capture")
    seen = []

    def zeros(A, y, **settings):
        seen.append((A.weights, y))
        return bench.least_squares(A, y)

    class Auto:
        def __init__(self, A, y, settings=None):
            self.result = zeros(A, y)

    monkeypatch.setattr(bench, "reconstruct_auto", Auto)
    monkeypatch.setattr(bench, "gap_tv", zeros)
    header, rows = table(bench.held_out_table([scene], report=lambda line: None).split("\n\n", 1)[1], "| real capture")
    assert len(rows) == 1 and len(rows[0]) == len(header)
    held = hold_out(scene.A.gram_diag() > 0, seed=1)
    assert all(torch.equal(w == 0, held) and not bool(y[held].any()) for w, y in seen)
    # least squares with these pixels left out, by dense matrices
    keep = (~held).numpy().ravel().astype(float)
    phi = oracle.matrix(scene.A.mask.double().numpy(), scene.A.shifts)
    y = scene.y.double().numpy().ravel()
    x = np.linalg.pinv(phi * keep[:, None]) @ (y * keep)
    out = held.numpy().ravel()
    error = np.linalg.norm((y - phi @ x)[out]) / np.linalg.norm(y[out])
    assert {float(c.rstrip("%")) for c in rows[0] if c.endswith("%")} == {round(100 * error, 2)}
    assert all(re.fullmatch(r"\d+\.\d", c) for c in rows[0][2:-1:2])


def test_the_automatic_solver_alone_with_some_weights(monkeypatch):
    used, auto = [], bench.reconstruct_auto
    monkeypatch.setattr(bench, "simulated_scenes", lambda data, *, size: iter([tiny_scene()]))

    def few(A, y, settings):
        used.append(settings.weights.source)
        return auto(A, y, settings=Settings(num_iters=40))

    monkeypatch.setattr(bench, "reconstruct_auto", few)
    header, rows = table(bench.quality(quick=True, weights="research", report=lambda line: None), "| scene | noise | ")
    assert header[2:] == ["auto, research"] and len(rows) == 3 and used == ["research"] * 3
