"""scripts/train.py on a few made-up cubes: it trains, can be gone on with, and its weights load."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import train
from training import loop
from training.examples import draw_examples, random_mask, read_examples, write_examples
from training.loop import Muon, Pool, Settings, Training, loss_of, make_file, new_prior
from training.scenes import load_scenes

from cassi.priors.learned import LearnedPrior, Size, load_prior
from cassi.priors.spectral_basis import synthesise

SMALL = Size(components=6, stages=1, memory=2, width=8, blocks=1, deep_width=8, deep_blocks=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Two cubes of smooth blobs, as measured ones are stored."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "cave_train").mkdir()
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 31)[:, None, None]
    for name in ("one", "two"):
        low = torch.from_numpy(rng.random((2, 1, 6, 6)))
        maps = torch.nn.functional.interpolate(low, (64, 64), mode="bilinear")[:, 0].numpy()
        cube = maps[0] * np.exp(-((t - 0.3) ** 2) / 0.1) + maps[1] * t
        with h5py.File(folder / "cave_train" / f"{name}.h5", "w") as file:
            file["cube_sqrt"] = (255 * np.sqrt(cube / cube.max())).astype(np.uint8)
    return folder


@functools.cache
def scenes(data: Path):
    return load_scenes(data)


@functools.cache
def drawn(data: Path, seed: int, count: int = 2):
    (examples,) = draw_examples(np.random.default_rng(seed), scenes(data), count, 24, 48, SMALL.components)
    return examples


def test_an_example_is_a_snapshot_of_its_truth(data):
    """Up to noise, which is told, a wrong mask, and what a smooth basis leaves out."""
    for seed in range(6):
        e = drawn(data, seed)
        misfit = e.y - e.camera.forward(synthesise(e.truth, e.basis))
        assert float(misfit.square().mean() / (e.variance.mean() + 4e-4 * e.y.square().mean())) < 2
        assert bool((e.y[:, e.camera.weights == 0] == 0).all())


@pytest.mark.parametrize("seed", range(8))
def test_turning_an_example_keeps_its_physics(data, seed):
    """The misfit of the truth stays what it was, whatever was mirrored or reversed."""
    e = drawn(data, seed % 4)
    before = (e.y - e.camera.forward(synthesise(e.truth, e.basis))).square().sum()
    turned = e.turned(np.random.default_rng(seed), rows=24)
    after = (turned.y - turned.camera.forward(synthesise(turned.truth, turned.basis))).square().sum()
    assert float(after) == pytest.approx(float(before), rel=1e-3)
    assert turned.turned(np.random.default_rng(1), rows=10).y.shape[-2] == 10


def test_examples_come_back_from_their_file(data, tmp_path):
    e = drawn(data, 0)
    write_examples(tmp_path / "a.pt", [e])
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
    (again,) = read_examples(tmp_path / "a.pt")
    assert again.camera.shifts == e.camera.shifts
    torch.testing.assert_close(again.y, e.y)
    torch.testing.assert_close(again.truth.float(), e.truth, rtol=1e-3, atol=1e-3)


def test_masks_are_transmissions_of_all_kinds():
    rng = np.random.default_rng(0)
    masks = [random_mask(rng, 32, 32) for _ in range(40)]
    assert all(0 <= float(m.min()) and float(m.max()) <= 1.5 for m in masks)
    assert {len(m.unique()) == 2 for m in masks} == {True, False}


def test_scenes_that_are_held_out_are_not_trained_with(data):
    assert len(load_scenes(data).cubes) == 2
    assert len(load_scenes(data, held_out=("two",)).cubes) == 1
    with pytest.raises(FileNotFoundError, match="holds no cubes to train with"):
        load_scenes(data, held_out=("one", "two"))


def test_muon_steps_are_orthogonal_matrices():
    """Of a gradient with singular values between 0.1 and 1, all come out near 1, and its singular vectors stay."""
    generator = torch.Generator().manual_seed(0)
    U, V = (torch.linalg.qr(torch.randn(8, 8, generator=generator))[0] for _ in range(2))
    p = torch.nn.Parameter(torch.zeros(8, 2, 2, 2))
    p.grad = ((U * torch.linspace(0.1, 1, 8)) @ V.T).view_as(p).clone()
    Muon([p]).step(1.0)
    step = -p.detach().flatten(1) / (0.2 * 8**0.5)
    singular = torch.linalg.svdvals(step)
    assert 0.6 < float(singular.min()) <= float(singular.max()) < 1.3
    assert float((U.T @ step @ V - torch.diag(torch.diag(U.T @ step @ V))).abs().max()) < 1e-4


class Clock:
    """Every look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_a_training_gains_and_goes_on_from_its_checkpoint(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "time", Clock())
    pool = Pool(tmp_path, [drawn(data, seed) for seed in range(3)])
    run = Training(tmp_path, new_prior(SMALL, 0), Settings(0.5, cameras=2, rate=1e-2, rows=24), torch.device("cpu"))
    before = float(torch.cat([loss_of(run.prior, e) for e in pool.groups]).detach().mean())
    run.run(pool, report=lambda line: None)
    assert run.progress.seconds >= 30 and 10 < run.progress.step < 30  # half a minute, with a look or two a step
    trained = LearnedPrior(SMALL)
    trained.load_state_dict(run.mean)
    assert float(torch.cat([loss_of(trained, e) for e in pool.groups]).detach().mean()) < before - 0.003
    again = Training(tmp_path, LearnedPrior(), Settings(0.1), torch.device("cpu"))
    assert again.prior.size == SMALL
    assert again.progress == run.progress
    for name, value in run.mean.items():
        torch.testing.assert_close(again.mean[name], value)


def test_a_file_of_examples_depends_on_its_number_and_the_seed_alone(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "FILE", 1)
    settings = Settings(0.1, height=16, width=32)
    paths = [make_file(data, tmp_path / place, n, settings, 6) for place, n in (("a", 0), ("b", 0), ("a", 1))]
    one, again, other = (read_examples(path)[0] for path in paths)
    assert torch.equal(one.y, again.y) and torch.equal(one.start, again.start)
    assert one.y.shape != other.y.shape or not torch.equal(one.y, other.y)
    before = paths[0].stat().st_mtime_ns
    assert make_file(data, tmp_path / "a", 0, settings, 6) == paths[0]
    assert paths[0].stat().st_mtime_ns == before  # it is not made again


def test_with_a_prior_starts_of_later_corrections_follow(data):
    prior = new_prior(SMALL, 0)
    prior.log_tau.data += 1.0
    lengths = set()
    for seed in range(6):
        first, *later = draw_examples(np.random.default_rng(seed), scenes(data), 2, 24, 48, SMALL.components, prior)
        lengths.add(len(later))
        torch.testing.assert_close(first.start[0], drawn(data, seed).start[0])  # as without it
        for before, after in zip([first, *later], later, strict=False):
            assert torch.equal(after.y, first.y) and torch.equal(after.truth, first.truth)
            assert not torch.equal(after.start, before.start)
    assert lengths <= {2, 3, 4, 5} and len(lengths) > 1


def test_the_script_writes_weights_and_a_figure(data, tmp_path, capsys, monkeypatch):
    (examples,) = draw_examples(np.random.default_rng(0), scenes(data), 1, 16, 32, Size().components)
    (tmp_path / "run" / "examples").mkdir(parents=True)
    write_examples(tmp_path / "run" / "examples" / "00-00000.pt", [examples])  # as a run that was stopped left it
    arguments = [
        "--data", str(data), "--output", str(tmp_path / "run"), "--minutes", "0.02", "--files", "1", "--cameras", "1",
        "--size", "16x32", "--stages", "1", "--width", "8", "--quiet",
    ]  # fmt: skip
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # the script sets them where they are not
    assert train.main(arguments) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["seen"] >= 1
    assert (tmp_path / "run" / "training.png").stat().st_size > 1000
    assert load_prior(tmp_path / "run" / "weights.safetensors").size.width == 8
    more = [*arguments, "--output", str(tmp_path / "more"), "--weights", str(tmp_path / "run" / "weights.safetensors")]
    (tmp_path / "more" / "examples").mkdir(parents=True)
    write_examples(tmp_path / "more" / "examples" / "00-00000.pt", [examples])
    assert train.main([*more, "--width", "16", "--rate", "1e-9"]) == 0
    before, after = (load_prior(tmp_path / folder / "weights.safetensors") for folder in ("run", "more"))
    assert after.size == before.size  # steps of nearly nothing leave all as it was
    for name, value in before.state_dict().items():
        torch.testing.assert_close(after.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    capsys.readouterr()
    assert train.main([*arguments, "--data", str(tmp_path)]) == 2
    assert "holds no cubes to train with" in capsys.readouterr().err
    odd = {
        ("--size", "16"): "as in 96x128, got 16",
        ("--size", "80x64"): "80 x 64 pixels do not fit into a scene of 64",
        ("--files", "0"): "--files must be at least 1",
        ("--minutes", "nan"): "--minutes must be positive",
        ("--weights", str(tmp_path / "none")): "No such file or directory",
    }
    for words, message in odd.items():
        assert train.main([*arguments, *words]) == 2
        assert message in capsys.readouterr().err
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["cube"] = [1]
    (tmp_path / "cave_train").mkdir()
    (tmp_path / "other.h5").rename(tmp_path / "cave_train" / "other.h5")
    assert train.main([*arguments, "--data", str(tmp_path)]) == 2
    assert "holds no `cube_sqrt`" in capsys.readouterr().err
