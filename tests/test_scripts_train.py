"""scripts/train.py on a few made-up cubes: it trains, can be gone on with, and its weights load."""

import copy
import functools
import os
import signal
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
import train
from cases import write_h5
from PIL import Image
from scipy.io import savemat
from test_priors_learned import SMALL as OF_FOUR
from training import loop
from training.examples import AnyCamera, OneCamera, blurred, draw_examples, drawn_mask, random_mask, read_camera
from training.looks import Looks
from training.loop import Makers, Muon, Settings, Training, new_prior
from training.scenes import Scenes, load_scenes

from cassi.choice.adaptation import error
from cassi.priors.learned import load_prior, save_prior
from cassi.priors.spectral_basis import synthesise
from cassi.solvers.unrolled import unrolled

SMALL = replace(OF_FOUR, components=6)


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
        write_h5(folder / "cave_train" / f"{name}.h5", cube_sqrt=(255 * np.sqrt(cube / cube.max())).astype(np.uint8))
    return folder


@functools.cache
def scenes(data: Path):
    return load_scenes(data)


def test_photographs_serve_pieces_of_any_size(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 44, 3), np.uint8)).save(tmp_path / "a.png")
    cube = np.full((31, 64, 64), 200, np.uint8)
    made = Scenes((cube,), (tmp_path / "a.png",), np.random.default_rng(1).random((9, 31)))
    rng = np.random.default_rng(2)
    sizes = [(h, w) for h, w in ((24, 36), (24, 56)) for _ in range(8)]
    pieces = [made.piece(rng, h, w) for h, w in sizes]
    assert [x.shape[1:] for x in pieces] == sizes and len({len(np.unique(x)) == 1 for x in pieces}) == 2


def test_strings_lie_across_a_few_pieces(monkeypatch):
    made = Scenes((np.full((31, 64, 64), 128, np.uint8),), (), np.eye(31)[[3]])
    changed = []
    for share in (0, 1):
        monkeypatch.setattr("training.scenes.STRING_SHARE", share)
        x = made.piece(np.random.default_rng(5), 64, 64)
        changed.append(float((abs(x[9] - x[9, 0, 0]) > 0.01).mean()))
    assert changed[0] == 0 < changed[1] < 0.5 and x.max() == 1
    assert bool((x[9] <= x[3] + 1e-6).all())  # of the one reflectance there is, or grey


@functools.cache
def drawn(data: Path, seed: int):
    rng = np.random.default_rng(seed)
    return draw_examples(rng, scenes(data), AnyCamera([]), 2, (24, 48), new_prior(SMALL, 0))[seed % 4]


def test_an_example_is_a_snapshot_of_its_truth(data, monkeypatch):
    for seed in range(6):
        e = drawn(data, seed)
        assert float((e.y - e.camera.forward(e.truth)).norm() / e.y.norm()) < 0.1
        assert bool((e.y[:, e.weights == 0] == 0).all())
    monkeypatch.setattr("training.examples.wrong_mask", lambda rng, mask: mask)
    for seed in range(6):
        e = drawn.__wrapped__(data, seed)
        misfit = e.y - e.camera.forward(e.truth)
        assert float(misfit.square().mean() / (e.variance.mean() + 4e-4 * e.y.square().mean())) < 2


@pytest.mark.parametrize("seed", range(8))
def test_turning_an_example_keeps_its_physics(data, seed):
    """The misfit of the truth stays what it was, whatever was mirrored or reversed, and so does its start."""
    e = drawn(data, seed % 4)
    turned = e.turned(np.random.default_rng(seed))

    def misfits(e):
        start = torch.einsum("kc,nkhw->nchw", e.basis, e.start)
        return [float((e.y - e.camera.forward(x)).square().sum()) for x in (e.truth, start)]

    assert misfits(turned) == pytest.approx(misfits(e), rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_what_the_network_makes_of_an_example_is_another_and_how_it_is_told_changes_nothing(data, seed):
    e, gradients = drawn(data, seed).turned(np.random.default_rng(seed)), []
    for same in (e, e.in_order()):
        prior = new_prior(SMALL, 0)
        (loss, gain), ended = Looks(prior, 0.5)(same)
        assert (ended.turns, ended.truth, ended.start.requires_grad) == (1, same.truth, False)
        assert float(error(synthesise(ended.start, same.basis), same.truth)) == pytest.approx(float(loss), rel=1e-5)
        assert float(error(synthesise(same.start, same.basis), same.truth)) == pytest.approx(float(loss + gain))
        gradients.append(torch.cat([p.grad.flatten() for p in prior.parameters()]))
    assert same.shifts == tuple(range(0, same.shifts[-1] + 1, same.shifts[1])) and len(same.mask) == len(same.shifts)
    assert float((gradients[1] - gradients[0]).norm()) < 1e-2 * float(gradients[0].norm())
    z = unrolled(e.camera, e.y, e.basis, prior, e.start, variance=e.variance)[1]
    by_hand = torch.autograd.grad(0.5 * error(synthesise(z, e.basis), e.truth), prior.parameters())
    assert float((gradients[0] - torch.cat([g.flatten() for g in by_hand])).norm()) < 1e-5 * float(gradients[0].norm())


@pytest.fixture
def camera_file(tmp_path) -> Path:
    """A saved camera of 9 bands, a mask each, whose elements tell their place."""
    mask = (np.arange(9 * 40 * 60.0) / (9 * 40 * 60)).reshape(9, 40, 60)
    return write_h5(tmp_path / "camera.h5", mask=mask, shifts=np.arange(9) * 2, wavelengths=np.linspace(450, 650, 9))


def test_one_camera_is_trained_for_with_pieces_of_its_mask(data, camera_file):
    camera = read_camera(camera_file)
    assert isinstance(camera, OneCamera) and camera.shifts == tuple(range(0, 18, 2))
    piece = camera.draw(np.random.default_rng(0), 24, 48).mask
    i, j = divmod(round(float(piece[0, 0, 0]) * 9 * 40 * 60), 60)
    torch.testing.assert_close(piece, camera.mask[:, i : i + 24, j : j + 48])
    e = draw_examples(np.random.default_rng(1), scenes(data), camera, 2, (24, 48), new_prior(SMALL, 0))[0]
    assert e.truth.shape == (2, 9, 24, 48) and e.shifts == camera.shifts
    for seed in range(4):  # upside down is a piece of such a mask, mirrored along the dispersion is another camera
        assert e.turned(np.random.default_rng(seed), along=False).shifts == camera.shifts
    with pytest.raises(ValueError, match="do not fit into a mask of 40 x 60"):
        camera.check_size((24, 64))
    mask = np.linspace(-1, 1, 2400).reshape(1, 40, 60)  # of all bands, with noise of its calibration
    mask = read_camera(write_h5(camera_file, mask=mask, shifts=[0, 1, 2])).mask
    assert mask.shape == (40, 60) and float(mask.min()) == 0 < float(mask.max())


def test_a_measurement_with_its_mask_is_a_camera():
    camera = read_camera(Path(__file__).parents[1] / "data" / "example.h5")
    assert camera.mask.shape == (256, 256) and len(camera.shifts) == len(camera.wavelengths) == 28


def test_what_is_no_camera_to_train_for(camera_file, tmp_path):
    for change, words in (
        ({"shifts": np.arange(9) * 1.5}, "whole pixels apart"),
        ({"wavelengths": np.linspace(700, 900, 9)}, "400 to 700 nm"),
    ):
        with h5py.File(camera_file) as old:
            write_h5(tmp_path / "changed.h5", **{name: change.get(name, old[name][()]) for name in old})
        with pytest.raises(ValueError, match=words):
            read_camera(tmp_path / "changed.h5")
    write_h5(tmp_path / "none.h5", cube=[1])
    with pytest.raises(ValueError, match="holds no camera"):
        read_camera(tmp_path / "none.h5")


def test_an_image_is_blurred_by_its_own_width():
    x = torch.zeros(2, 21, 21)
    x[:, 10, 10] = 1
    soft = blurred(x, np.array([0.0, 1.5]))
    torch.testing.assert_close(soft[0], x[0])
    t = torch.arange(-10, 11.0)
    assert [float((soft[1].sum(axis) * t**2).sum().sqrt()) for axis in (0, 1)] == pytest.approx([1.5, 1.5], abs=0.02)


def test_masks_are_transmissions_of_all_kinds():
    masks = [random_mask(np.random.default_rng(seed), 32, 32) for seed in range(40)]
    assert all(0 <= float(m.min()) and float(m.max()) <= 1.5 for m in masks)
    assert {len(m.unique()) == 2 for m in masks} == {True, False}


def test_measured_masks_are_cut_and_turned():
    rng, mask = np.random.default_rng(0), torch.arange(40 * 50.0).view(40, 50)
    pieces = [drawn_mask(rng, [mask], 8, 12) for _ in range(40)]
    assert all(piece.shape == (8, 12) for piece in pieces)
    cut = [piece for piece in pieces if float(piece.max()) > 2]
    assert 5 < len(cut) < 35 and all(len({abs(float(v)) for v in p.diff(dim=1).flatten()}) == 1 for p in cut)


def test_the_error_by_hand():
    truth = torch.full((1, 2, 4, 4), 2.0)
    x = truth.clone()
    x[:, 0] += 0.2
    assert float(error(x, truth)) == pytest.approx((10 * np.log10(0.01 + 1e-5) - 50) / 2, rel=1e-4)


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
    pair = [torch.nn.Parameter(torch.zeros_like(p)) for _ in range(2)]  # worked on together, each for itself
    pair[0].grad, pair[1].grad = p.grad, torch.randn(p.shape, generator=generator)
    Muon(pair).step(1.0)
    torch.testing.assert_close(pair[0].detach(), p.detach())


def test_a_training_gains_and_goes_on_from_its_checkpoint(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=count(1.0).__next__))  # a look at it takes a second
    monkeypatch.setattr(loop, "new_prior", lambda size, seed: new_prior(SMALL, seed))
    settings = Settings(data, tmp_path, 2, rate=3e-3, size=(24, 48))
    run = Training(settings)
    before = [float(Looks(run.prior, 1)(drawn(data, seed))[0][0]) for seed in range(3)]
    run.run()
    assert run.progress.seconds >= 120 and 40 < run.progress.step < 160  # two minutes, with a look or two a step
    after = [float(Looks(copy.deepcopy(run.mean).requires_grad_(), 1)(drawn(data, seed))[0][0]) for seed in range(3)]
    assert sum(after) < sum(before) - 0.02
    again = Training(settings)
    assert again.prior.size == SMALL
    assert asdict(again.progress) == asdict(run.progress)
    torch.testing.assert_close(again.mean.state_dict(), run.mean.state_dict())


def test_a_training_that_diverges_says_so_and_saves_nothing(data, tmp_path):
    run = Training(Settings(data, tmp_path, 1, size=(24, 48), stages=1))
    next(run.prior.parameters()).detach().fill_(torch.inf)
    with pytest.raises(FloatingPointError, match="the training diverged before step 1; take a smaller --rate"):
        run.run()
    assert not run.checkpoint.exists()


ARGUMENTS = ["--minutes", "0.02", "--cameras", "1", "--size", "24x48", "--stages", "1", "--quiet"]


@pytest.mark.parametrize(("processes", "makers"), [("1", "0"), ("2", "0"), ("1", "1")])
def test_the_script_writes_weights(data, tmp_path, capsys, monkeypatch, processes, makers):
    if makers == "1":
        monkeypatch.setattr(loop, "draw_examples", None)  # not in this process
    save_prior(new_prior(SMALL, 0), tmp_path / "w.safetensors")
    arguments = [*ARGUMENTS, "--data", str(data), "--output", str(tmp_path / "run"), "--processes", processes]
    given = ["--makers", makers, "--weights", str(tmp_path / "w.safetensors"), "--rate", "1e-9"]
    assert train.main([*arguments, *given]) == 0
    assert "sha256" in capsys.readouterr().out
    progress = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["progress"]
    assert progress["seen"] >= int(processes) and progress["curve"][-1]["seen"] == progress["seen"]
    assert len(progress["curve"]) == 1 + (progress["step"] - 1) // loop.LOG_EVERY
    before, after = (load_prior(tmp_path / name) for name in ("w.safetensors", "run/weights.safetensors"))
    assert after.size == before.size  # steps of nearly nothing leave all as it was
    torch.testing.assert_close(after.state_dict(), before.state_dict(), rtol=1e-3, atol=1e-4)


def test_an_error_while_examples_are_drawn_ends_the_training(tmp_path):
    makers = Makers(Settings(tmp_path, tmp_path, 1, makers=1), new_prior(SMALL, 0), 0, 0)
    with pytest.raises(RuntimeError, match="its error stands above"):
        makers.take(wait=True)


def test_makers_draw_with_the_mean_of_the_weights_as_it_is_now(tmp_path):
    makers, now = Makers(Settings(tmp_path, tmp_path, 1), new_prior(SMALL, 0), 0, 0), new_prior(SMALL, 1)
    makers.told(now)
    torch.testing.assert_close(makers.prior.state_dict(), now.state_dict())
    assert all(t.is_shared() for t in makers.prior.state_dict().values())
    assert not torch.equal(new_prior(SMALL, 0).net.enter.weight, now.net.enter.weight)


def test_masks_smaller_than_an_example_are_left_out(tmp_path):
    (tmp_path / "a_real").mkdir()
    savemat(tmp_path / "a_real" / "mask.mat", {"mask": np.ones((40, 30))})
    cameras = [Settings(tmp_path, tmp_path, 1, size=(24, side)).cameras_to_draw() for side in (30, 31)]
    assert [len(camera.masks) for camera in cameras] == [1, 0]


def test_a_process_that_was_killed_is_an_error_in_one_line(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "train", _killed)
    assert train.main([*ARGUMENTS, "--data", str(data), "--output", str(tmp_path / "run"), "--processes", "2"]) == 1
    assert "train: error: process" in capsys.readouterr().err


def _killed(*arguments) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_cannot_be_is_refused(data, tmp_path, capsys):
    arguments = [*ARGUMENTS, "--data", str(data), "--output", str(tmp_path / "run"), "--processes", "1"]
    assert train.main([*arguments, "--data", str(tmp_path)]) == 2
    assert "holds no cubes to train with" in capsys.readouterr().err
    odd = {
        ("--size", "16"): "as in 80x160, got 16", ("--size", "80x64"): "80 x 64 pixels do not fit into a scene of 64",
        ("--size", "4x16"): "--size must be at least 8 x 8",
        ("--processes", "0"): "--processes must be at least 1", ("--device", "tpu"): "unknown device 'tpu'",
        ("--makers", "-1"): "--makers must be at least 0", ("--minutes", "nan"): "--minutes must be positive",
        ("--weights", str(tmp_path / "none")): "No such file or directory",
    }  # fmt: skip
    for words, message in odd.items():
        assert train.main([*arguments, *words]) == 2
        assert message in capsys.readouterr().err
    run, nm = tmp_path / "run" / "checkpoint.pt", [500, 510, 520, 530]
    for name, mask in (("dark", np.zeros((32, 64))), ("odd", np.ones((3, 32, 64)))):
        write_h5(tmp_path / f"{name}.h5", mask=mask, shifts=np.arange(4), wavelengths=nm)
        assert train.main([*arguments, "--camera", str(tmp_path / f"{name}.h5")]) == 2
        assert "the mask must be (H, W) or (4, H, W)" in capsys.readouterr().err
    write_h5(tmp_path / "other.h5", mask=np.ones((32, 64)), shifts=np.arange(4))
    assert train.main(arguments) == 0 == train.main(arguments)
    assert "give it more --minutes" in capsys.readouterr().out
    assert train.main([*arguments, "--camera", str(tmp_path / "other.h5")]) == 2
    assert "is of a training for another camera" in capsys.readouterr().err
    torch.save(torch.load(run, weights_only=True) | {"muon": [torch.zeros(8, 8, 3, 3)]}, run)
    for _ in range(2):
        assert train.main(arguments) == 2
        assert "checkpoint.pt is damaged, or of another version; remove it" in capsys.readouterr().err
        run.write_bytes(run.read_bytes()[:1000])
    (tmp_path / "cave_train").mkdir()
    write_h5(tmp_path / "cave_train" / "other.h5", cube=[1])
    assert train.main([*arguments, "--data", str(tmp_path)]) == 2
    assert "holds no `cube_sqrt`" in capsys.readouterr().err
    write_h5(tmp_path / "cave_train" / "other.h5", cube_sqrt=np.ones((31, 64, 64), np.float32))
    assert train.main([*arguments, "--data", str(tmp_path)]) == 2
    assert "must be (31, H, W) uint8" in capsys.readouterr().err
