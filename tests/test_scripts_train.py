"""scripts/train.py on a few made-up photographs and cubes: it trains, resumes, and its weights load."""

import copy
import functools
import json
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
from messages import check_refusal, check_words, refused
from PIL import Image
from safetensors import safe_open
from scipy.io import savemat
from test_priors_learned import SMALL as OF_FOUR
from training import loop
from training.cameras import AnyCamera, OneCamera, blurred, drawn_mask, load_masks, random_mask, read_camera, wrong_mask
from training.chance import Chance
from training.evaluate import Score, evaluate, table
from training.examples import draw_examples, in_bands
from training.looks import Look, Looks, continued, loss, quick, stage_errors
from training.loop import Settings, Training, new_prior, optimizers
from training.scenes import WAVELENGTHS, Pictures, load_scenes, read_cubes, sensitivities

from cassi import CASSI
from cassi.choice.stages import NonLocal, Problem, State, Watch
from cassi.looking.metrics import psnr
from cassi.optics.detector import object_levels
from cassi.priors.learned import load_prior, packed
from cassi.priors.spectral_basis import synthesise
from cassi.solvers.quick_start import quick_start
from cassi.solvers.subspace_tv import SubspaceState
from cassi.solvers.unrolled import error

SMALL = replace(OF_FOUR, components=6, stages=2, light=1)
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch before 2.9 has no Muon")


def chance(seed: int = 0) -> Chance:
    return Chance(seed, CPU)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Photographs and spectra, and two cubes of smooth blobs, as measured ones are stored."""
    folder = tmp_path_factory.mktemp("data")
    rng, t = np.random.default_rng(0), np.linspace(0, 1, 31)[:, None, None]
    (folder / "free" / "photographs").mkdir(parents=True)
    for k in range(3):
        small = Image.fromarray(rng.integers(0, 256, (9, 8, 3), np.uint8))
        small.resize((64, 72), Image.BICUBIC).save(folder / "free" / "photographs" / f"{k}.jpg")
    with h5py.File(folder / "free" / "spectra.h5", "w") as file:
        centers, widths = rng.uniform(-0.2, 1.2, (40, 1)), rng.uniform(0.05, 0.5, (40, 1))
        file["reflectance/some"] = np.exp(-(((t[:, 0, 0] - centers) / widths) ** 2))
        file["light/some"] = 0.5 + rng.random((4, 31))
    (folder / "cave_train").mkdir()
    for name in ("one", "two"):
        low = torch.from_numpy(rng.random((2, 1, 6, 6)))
        maps = torch.nn.functional.interpolate(low, (64, 64), mode="bilinear")[:, 0].numpy()
        cube = maps[0] * np.exp(-((t - 0.3) ** 2) / 0.1) + maps[1] * t
        write_h5(folder / "cave_train" / f"{name}.h5", cube_sqrt=(255 * np.sqrt(cube / cube.max())).astype(np.uint8))
    return folder


@functools.cache
def scenes(data: Path, measured: bool = False):
    return load_scenes(data, CPU, measured=measured, limit=2)


@functools.cache
def drawn(data: Path, seed: int):
    return draw_examples(chance(seed), scenes(data), AnyCamera([]), 2, (24, 48), SMALL.components)


def test_pieces_of_pictures_are_turned_and_mirrored():
    """Pictures with slopes of 1 and 10 across and down: a piece has the same, one of eight ways."""
    i, j = np.mgrid[:16, :20]
    pictures = Pictures([(j + 10 * i)[None].astype(np.uint8), (j + 10 * i)[None, :9, :9].astype(np.uint8)], CPU)
    pieces = pictures.cut(chance(), 200, 6, 8)[:, 0].int()
    slopes = {(int(p[0, 1] - p[0, 0]), int(p[1, 0] - p[0, 0])) for p in pieces}
    assert slopes == {(a, b) for a, b in [(1, 10), (10, 1)] for a, b in [(a, b), (-a, b), (a, -b), (-a, -b)]}
    for p in pieces:
        assert bool((p.diff(dim=0) == p[1, 0] - p[0, 0]).all()) and bool((p.diff(dim=1) == p[0, 1] - p[0, 0]).all())
    assert len({int(p.min()) for p in pieces}) > 20
    assert int(pictures.cut(chance(), 4, 12, 30).max()) <= 195  # larger than either: the border is repeated


def test_scenes_are_spectra_of_maximum_1(data):
    for seed in range(6):
        x = scenes(data, measured=seed % 2 == 0).draw(chance(seed), 5, 24, 40)
        assert x.shape == (5, 31, 24, 40) and bool((x >= 0).all())
        torch.testing.assert_close(x.amax((1, 2, 3)), torch.ones(5))
    first, again = (scenes(data).draw(chance(3), 4, 24, 40) for _ in range(2))
    assert torch.equal(first, again)


def test_metamers_have_one_color_and_two_spectra(data, monkeypatch):
    monkeypatch.setattr("training.scenes.METAMERS", 1.0)
    centers = torch.rand(2, 5, 3, generator=torch.Generator().manual_seed(0)) + 0.5
    first, second = scenes(data)._spectra(chance(), centers)
    eye, unclipped = sensitivities(CPU), (second > 0.021).all(-1)
    assert int(unclipped.sum()) > 2
    torch.testing.assert_close((first @ eye.T)[unclipped], (second @ eye.T)[unclipped], rtol=1e-3, atol=1e-3)
    assert float((first - second)[unclipped].abs().mean()) > 0.1


def test_spectra_differ_within_one_color_of_a_photograph(data, monkeypatch):
    """Where a photograph has one color, a scene has one spectrum without metamers, and several with them."""
    ranks = []
    for share in (0.0, 1.0):
        monkeypatch.setattr("training.scenes.METAMERS", share)
        monkeypatch.setattr("training.scenes.VARIED_SHARE", 1.0)
        for name in ("GROUND_SHARE", "GLOSS_SHARE", "SHADING_SHARE"):
            monkeypatch.setattr(f"training.scenes.{name}", 0.0)
        grey = replace(scenes(data), photographs=Pictures([np.full((3, 64, 64), 128, np.uint8)], CPU))
        one = replace(grey, reflectances=scenes(data).reflectances[:1]) if share == 0 else grey
        x = one.made(chance(2), 1, 32, 32)[0].flatten(1)
        values = torch.linalg.svdvals(x / x.norm())
        ranks.append(int((values > 1e-3).sum()))
    assert ranks[0] == 1 < ranks[1]


def test_strings_lie_across_a_few_scenes(data, monkeypatch):
    grey, changed = torch.full((8, 31, 40, 40), 0.5), []
    for share in (0.0, 1.0):
        monkeypatch.setattr("training.scenes.STRING_SHARE", share)
        x = scenes(data)._with_strings(chance(), grey)
        changed.append([float(((one - 0.5).abs().amax(0) > 0.01).float().mean()) for one in x])
    assert max(changed[0]) == 0 and 0 < float(np.median(changed[1])) < 0.6


def test_bands_are_those_of_their_wavelengths(data, monkeypatch):
    x = torch.rand(2, 31, 4, 5, generator=torch.Generator().manual_seed(0))
    dark = SimpleNamespace(normal=lambda *s: torch.zeros(s), uniform=lambda *s, low=0.0, high=1.0: torch.full(s, high))
    for nm in (WAVELENGTHS, WAVELENGTHS[::-1].copy(), np.linspace(405, 695, 12)):
        found = in_bands(dark, x, nm)
        at = functools.partial(np.interp, nm, WAVELENGTHS)
        expected = np.stack([np.apply_along_axis(at, 0, one) for one in x.numpy()])
        expected /= expected.max((1, 2, 3), keepdims=True)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_an_example_is_a_snapshot_of_its_truth(data, monkeypatch):
    for seed in range(6):
        e = drawn(data, seed)
        assert float((e.y - e.camera.forward(e.truth)).norm() / e.y.norm()) < 0.25
        assert 0.9 < float(e.seen.mean()) < 1
    monkeypatch.setattr("training.examples.WRONG", 0.0)
    ratios = []
    for seed in range(12):
        e = drawn.__wrapped__(data, seed)
        noise = (e.y - e.camera.forward(e.truth)).square().mean((1, 2))
        for squared, variance in zip(noise.tolist(), e.variance.mean((1, 2)).tolist(), strict=True):
            assert squared < 1e-10 if variance == 0 else 0.7 < squared / variance < 1.4
            ratios.append(variance > 0)
    assert 0.3 < np.mean(ratios) < 1


def test_a_wrong_mask_is_wrong_by_2_to_15_percent_in_all_bands_alike():
    mask, seen = torch.rand(5, 64, 64, generator=torch.Generator().manual_seed(0)) + 0.5, []
    for seed in range(60):
        ratio = wrong_mask(chance(seed), mask) / mask - 1
        if float((ratio - ratio[0]).abs().max()) < 1e-4 and float(ratio.abs().max()) > 0:
            error, neighbor = float(ratio.std()), ratio[0] / ratio[0].std()
            seen.append((error, float((neighbor[:, 1:] * neighbor[:, :-1]).mean())))
    errors, correlations = np.array(seen).T
    assert 20 < len(seen) < 50 and 0.018 < errors.min() < 0.05 and 0.08 < errors.max() < 0.17
    assert correlations.min() < 0.2 and 0.4 < correlations.max() < 0.9


def test_the_gradient_is_that_of_the_loss(data):
    e, prior = drawn(data, 1), new_prior(SMALL, 0)
    looks = Looks(prior, 0.5, 12)
    look = looks.first(e)
    errors, z = looks(look)
    assert errors.shape == (4,) and looks.operations[e.shifts, e.y.shape] > 1e6
    assert float(errors[-1]) == pytest.approx(float(error(synthesise(z, e.basis), e.truth)), abs=1e-4)
    by_hand = torch.autograd.grad(0.5 * loss(stage_errors(prior, e.camera, look)[0]), prior.parameters())
    for p, expected in zip(prior.parameters(), by_hand, strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=1e-4, atol=1e-6)
    given = torch.where(e.known > 0, e.variance, torch.nan)
    z, _ = quick_start(e.camera, e.y, e.basis, e.seen, num_iters=12, variance=given)
    assert float(errors[0]) == pytest.approx(float(error(synthesise(z, e.basis), e.truth)), abs=1e-3)
    weights, given = torch.tensor([0.0, 0.125, 0.5, 1.0]) / 1.625, torch.tensor([9.0, 1.0, 2.0, 3.0])
    assert float(loss(given)) == pytest.approx(float(weights @ given))


def test_a_start_is_continued_as_in_the_default_solver(data):
    """Side by side: what is matched across the border between two scenes is little."""
    e = draw_examples(chance(1), scenes(data), AnyCamera([]), 2, (24, 48), SMALL.components, non_local=1.0)
    assert e.non_local is not None
    e = replace(e, known=torch.ones_like(e.known), non_local=(1.0, 6))
    z, variance = quick_start(e.camera, e.y, e.basis, e.seen, num_iters=12, variance=e.variance)
    A, y, level = e.camera.leave_out(e.seen > 0), e.y * e.seen, object_levels(e.camera, e.y)
    found = Looks(new_prior(SMALL, 0), 1.0, 12).first(e)
    for n in range(2):
        run = SubspaceState(z[n], torch.zeros_like(y[n]), None, z.new_zeros((2, *z[n].shape)))
        problem = Problem(e.basis, variance[n], brightness=float(level[n]))
        expected = NonLocal(*e.non_local).run(A, y[n], problem, State(y[n], run), Watch()).x
        alone = continued(
            A, y[n : n + 1], e.basis, z[n : n + 1], variance[n : n + 1], level[n].view(-1, 1, 1, 1), 1.0, 6
        )
        torch.testing.assert_close(synthesise(alone[0], e.basis), expected, rtol=1e-3, atol=1e-4)
        change = (synthesise(found.z[n], e.basis) - expected).norm() / (expected - synthesise(z[n], e.basis)).norm()
        assert float(change) < 0.5


def test_examples_are_looked_at_again_and_later_in_turns(data, monkeypatch):
    """Of each turn the start is the cube of the one before, continued by a non-local prior half as strong."""
    for name, value in (("STOCK", 4), ("NEW", 1 / 3), ("AGAIN", 1 / 3)):
        monkeypatch.setattr(f"training.looks.{name}", value)
    prior, random, strengths, drawn_so_far = new_prior(SMALL, 0), chance(3), [], []
    looks = Looks(prior, 1.0, 6)

    def draw():
        e = draw_examples(chance(len(drawn_so_far)), scenes(data), AnyCamera([]), 1, (16, 24), SMALL.components, 1.0)
        drawn_so_far.append(replace(e, non_local=(1.0, 2)))
        return drawn_so_far[-1]

    for _ in range(60):
        looks.next(random, draw)
        strengths += [look.strength for look in looks.stock]
    assert 15 <= len(drawn_so_far) <= 33 and len(looks.stock) == 4
    assert set(strengths) == {1.0, 0.5, 0.25}
    look = replace(looks.stock[0], strength=1.0)
    _, z = looks(look)
    z[0, 0, 0, 0] = torch.nan
    again = look.again(z)
    torch.testing.assert_close(again.z, replace(look, z=torch.where(z.isnan(), look.z, z)).continued(0.5, 8).z)


@pytest.fixture
def camera_file(tmp_path) -> Path:
    """A saved camera of 9 bands, a mask each, whose elements tell their place."""
    mask = (np.arange(9 * 40 * 60.0) / (9 * 40 * 60)).reshape(9, 40, 60)
    return write_h5(tmp_path / "camera.h5", mask=mask, shifts=np.arange(9) * 2, wavelengths=np.linspace(450, 650, 9))


def test_one_camera_is_trained_for_with_pieces_of_its_mask(data, camera_file):
    camera = read_camera(camera_file)
    assert isinstance(camera, OneCamera) and camera.shifts == tuple(range(0, 18, 2))
    piece = camera.draw(chance(), 24, 48).mask
    i, j = divmod(round(float(piece[0, 0, 0]) * 9 * 40 * 60), 60)
    torch.testing.assert_close(piece, camera.mask[:, i : i + 24, j : j + 48])
    e = draw_examples(chance(1), scenes(data), camera, 2, (24, 48), SMALL.components)
    assert e.truth.shape == (2, 9, 24, 48) and e.shifts == camera.shifts
    refused(camera.check_size, (24, 64), error=ValueError)
    mask = np.linspace(-1, 1, 2400).reshape(1, 40, 60)  # of all bands, with noise of its calibration
    mask = read_camera(write_h5(camera_file, mask=mask, shifts=[0, 1, 2])).mask
    assert mask.shape == (40, 60) and float(mask.min()) == 0 < float(mask.max())
    of_a_measurement = read_camera(Path(__file__).parents[1] / "data" / "example.h5")
    assert of_a_measurement.mask.shape == (256, 256) and len(of_a_measurement.wavelengths) == 28


def test_what_is_no_camera_to_train_for(camera_file, tmp_path):
    for change in ({"shifts": np.arange(9) * 1.5}, {"wavelengths": np.linspace(700, 900, 9)}):
        with h5py.File(camera_file) as old:
            write_h5(tmp_path / "changed.h5", **{name: change.get(name, old[name][()]) for name in old})
        refused(read_camera, tmp_path / "changed.h5", error=ValueError)
    write_h5(tmp_path / "none.h5", cube=[1])
    refused(read_camera, tmp_path / "none.h5", error=ValueError)


def test_an_image_is_blurred_by_its_own_width():
    x = torch.zeros(2, 21, 21)
    x[:, 10, 10] = 1
    soft = blurred(x, np.array([0.0, 1.5]))
    torch.testing.assert_close(soft[0], x[0])
    t = torch.arange(-10, 11.0)
    assert [float((soft[1].sum(axis) * t**2).sum().sqrt()) for axis in (0, 1)] == pytest.approx([1.5, 1.5], abs=0.02)


def test_masks_are_transmissions_of_all_kinds():
    masks = [random_mask(chance(seed), 32, 32) for seed in range(40)]
    assert all(0 <= float(m.min()) and float(m.max()) <= 1.5 for m in masks)
    assert {len(m.unique()) == 2 for m in masks} == {True, False}


def test_measured_masks_are_cut_and_turned_where_they_are_as_large_as_an_example(tmp_path):
    (tmp_path / "a_real").mkdir()
    savemat(tmp_path / "a_real" / "mask.mat", {"mask": np.ones((40, 30))})
    assert [len(load_masks(tmp_path, side)) for side in (30, 31)] == [1, 0]
    random, mask = chance(), torch.arange(40 * 50.0).view(40, 50)
    pieces = [drawn_mask(random, [mask], 8, 12) for _ in range(40)]
    assert all(piece.shape == (8, 12) for piece in pieces)
    cut = [piece for piece in pieces if float(piece.max()) > 2]
    assert 5 < len(cut) < 35 and all(len({abs(float(v)) for v in p.diff(dim=1).flatten()}) == 1 for p in cut)


def test_the_error_by_hand():
    truth = torch.full((1, 2, 4, 4), 2.0)
    x = truth + torch.tensor([0.2, 0.0]).view(2, 1, 1)
    assert float(error(x, truth)) == pytest.approx((10 * np.log10(0.01 + 1e-5) - 50) / 2, rel=1e-4)


def test_scenes_that_are_held_out_are_not_trained_with(data, monkeypatch):
    assert len(read_cubes(data / "cave_train")) == 2 and len(read_cubes(data / "cave_train", ["two"])) == 1
    monkeypatch.setattr("training.scenes.HELD_OUT", ("one", "two"))
    refused(read_cubes, data / "cave_train", error=FileNotFoundError)


def test_what_comes_of_weights_for_research_is_for_research(tmp_path):
    (tmp_path / "free.safetensors").write_bytes(packed(new_prior(SMALL, 0), licence="free for any use"))
    assert loop.is_for_research("research")
    assert not any(loop.is_for_research(weights) for weights in ("free", tmp_path / "free.safetensors", None))


def test_a_network_of_one_turn_learns_more_of_them():
    prior = new_prior(SMALL, 0)
    with torch.no_grad():
        prior.log_tau += torch.arange(prior.log_tau.numel()).view_as(prior.log_tau)
    grown = loop.with_turns(prior)
    assert grown.size == replace(SMALL, turns=3)
    for turn in range(5):
        tau, floor, stages = grown.of_turn(turn)
        torch.testing.assert_close((tau, floor), (prior.log_tau, prior.log_floor))
        assert stages.tolist() == [2 * min(turn, 2), 2 * min(turn, 2) + 1]
    assert loop.with_turns(grown).size == grown.size


def test_muon_steps_are_orthogonal_and_change_the_network_itself():
    """Of a gradient with singular values between 0.1 and 1, all come out near 1."""
    prior = new_prior(SMALL, 0)
    muon, adam = optimizers(prior, 0.3)
    kernel, head = prior.net.deep_in[0].first.weight, prior.net.enter.weight
    counts = [sum(p.numel() for g in optimizer.param_groups for p in g["params"]) for optimizer in (muon, adam)]
    assert sum(counts) == sum(p.numel() for p in prior.parameters()) and min(counts) > 0
    before, generator = kernel.detach().clone(), torch.Generator().manual_seed(0)
    U, V = (torch.linalg.qr(torch.randn(n, 8, generator=generator))[0] for n in (8, 72))
    kernel.grad.copy_(((U * torch.linspace(0.1, 1, 8)) @ V.T).view_as(kernel))
    muon.step()
    rate = loop.MUON * 0.3
    step = (before * (1 - 0.01 * rate) - kernel.detach()).flatten(1) / (0.2 * rate * 72**0.5)
    singular = torch.linalg.svdvals(step)
    assert 0.6 < float(singular.min()) <= float(singular.max()) < 1.3
    assert float((U.T @ step @ V - torch.diag(torch.diag(U.T @ step @ V))).abs().max()) < 0.05
    assert head.grad is None and not any(p is kernel for g in adam.param_groups for p in g["params"])


def test_a_training_gains_and_resumes_from_its_checkpoint(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=count(1.0).__next__))  # a look at it takes a second
    monkeypatch.setattr(loop, "new_prior", lambda size, seed: new_prior(SMALL, seed))
    settings = Settings(data, tmp_path, 0.8, rate=4e-3, size=(16, 24), start_iters=9, scenes=2, limit=2)

    def test_error(prior) -> float:
        prior, examples = copy.deepcopy(prior).train(), (drawn(data, seed) for seed in range(3))
        looks = (Look(e, *quick(e.camera, e, 9), torch.tensor([0])) for e in examples)
        return sum(float(stage_errors(prior, look.camera, look)[0][-1].detach()) for look in looks)

    run = Training(settings)
    before = test_error(run.prior)
    run.run()
    assert run.progress.seconds >= 48 and 40 < run.progress.step < 55
    assert test_error(run.mean) < before - 0.1
    points = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert points == run.progress.curve and points[-1]["seen"] == 2 * run.progress.step
    again = Training(settings)
    assert again.prior.size == SMALL and asdict(again.progress) == asdict(run.progress)
    torch.testing.assert_close(again.mean.state_dict(), run.mean.state_dict())
    assert torch.equal(again.chance.normal(3), run.chance.normal(3))
    assert again.chance.number(0, 1) == run.chance.number(0, 1)
    moments = [[t for s in r.muon.state.values() for t in s.values()] for r in (again, run)]
    assert len(moments[0]) > 0 and all(torch.equal(a, b) for a, b in zip(*moments, strict=True))


def train_together(rank: int, data: Path, output: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{output}/meeting", rank=rank, world_size=2)
    loop.new_prior = lambda size, seed: new_prior(SMALL, seed)
    run = Training(Settings(data, output, 0.05, size=(16, 24), start_iters=9, scenes=2, limit=2))
    run.run()
    torch.save({"prior": run.prior.state_dict(), "next": run.chance.normal(3)}, output / f"{rank}.pt")


def test_processes_that_train_together_have_one_network_and_examples_of_their_own(data, tmp_path):
    torch.multiprocessing.spawn(train_together, (data, tmp_path), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert first["prior"].keys() == second["prior"].keys() and not torch.equal(first["next"], second["next"])
    assert all(torch.equal(first["prior"][name], second["prior"][name]) for name in first["prior"])
    progress = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]
    assert progress["step"] > 1 and progress["seen"] == 4 * progress["step"] and progress["seconds"] >= 3


def test_a_gradient_that_is_not_finite_moves_nothing(data, tmp_path):
    run = Training(Settings(data, tmp_path, 1, size=(24, 40), stages=1))
    first = next(run.prior.parameters())
    before = first.detach().clone()
    first.grad.fill_(torch.nan)
    run._step()
    rate = run._rate()
    assert float((first.detach() - before).abs().max()) <= 1e-3 * rate * float(before.abs().max()) + 1e-9
    norms = []
    for size in (1e-3, 1e3):
        first.grad.fill_(size)
        run._step()
        norms.append(float(run.adam.state[first]["exp_avg"].norm()))
    assert norms[0] == pytest.approx(1e-4 * first.numel() ** 0.5, rel=0.01) and norms[1] < 0.11


def test_a_training_that_diverges_says_so_and_saves_nothing(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=count(1.0).__next__))
    run = Training(Settings(data, tmp_path, 0.05, size=(24, 40), stages=1, scenes=1, limit=2))
    next(run.prior.parameters()).detach().fill_(torch.inf)
    refused(run.run, error=FloatingPointError)
    assert not run.checkpoint.exists()


ARGUMENTS = ["--minutes", "0.001", "--scenes", "1", "--size", "24x40", "--photographs", "2", "--stages", "1", "--quiet"]


@pytest.mark.parametrize("measured", [False, True])
def test_the_script_writes_weights_that_say_what_they_may_be_used_for(data, tmp_path, capsys, measured):
    (tmp_path / "w.safetensors").write_bytes(packed(new_prior(SMALL, 0)))
    arguments = [*ARGUMENTS, "--data", str(data), "--output", str(tmp_path / "run"), *(["--measured"] * measured)]
    assert train.main([*arguments, "--weights", str(tmp_path / "w.safetensors"), "--rate", "1e-9"]) == 0
    assert "sha256" in capsys.readouterr().out
    before, after = (load_prior(tmp_path / name) for name in ("w.safetensors", "run/weights.safetensors"))
    before = loop.with_turns(before)
    assert after.size == before.size  # steps of nearly nothing leave all as it was
    torch.testing.assert_close(after.state_dict(), before.state_dict(), rtol=1e-3, atol=1e-4)
    with safe_open(tmp_path / "run" / "weights.safetensors", framework="pt") as file:
        assert file.metadata()["licence"].startswith("for research" if measured else "free for any use")
    check_refusal(capsys, train.main([*arguments[:-1]] if measured else [*arguments, "--measured"]))


def test_weights_are_measured_on_scenes_that_are_held_out(tmp_path, capsys):
    random = np.random.default_rng(0)
    for folder in ("kaist", "cave"):
        (tmp_path / folder).mkdir()
    x, mask = random.random((28, 24, 24)).cumsum(0) / 28, random.random((24, 24))
    y = CASSI.from_step(torch.from_numpy(mask), 2, 28).forward(torch.from_numpy(x)).numpy()
    write_h5(tmp_path / "kaist" / "scene01.h5", mask=mask, measurement=y, mean_band=x.mean(0))
    cube = np.concatenate([np.zeros((3, 24, 24)), x]).transpose(1, 2, 0)
    savemat(tmp_path / "cave" / "feathers.mat", {"Omsi": cube})
    scores = evaluate(new_prior(SMALL, 0), tmp_path, CPU, start_iters=9)
    assert [(s.scene, s.electrons) for s in scores] == [
        ("CAVE feathers", None), ("CAVE feathers", 10_000), ("CAVE feathers", 1_000), ("KAIST 01 (mean band)", None),
    ]  # fmt: skip
    truth = torch.from_numpy(x / x.max()).float()
    A = CASSI.from_step(torch.from_numpy(mask).float(), 2, 28)
    seen = (Chance(0, CPU).uniform(24, 78) >= 0.02).float()
    B = torch.from_numpy(np.linalg.qr(np.cos(np.pi * np.arange(6) * (np.arange(28)[:, None] + 0.5) / 28))[0].T).float()
    z, _ = quick_start(A, A.forward(truth), B, seen, num_iters=9)
    assert scores[0].values[0] == pytest.approx(psnr(synthesise(z, B).clamp(0, 1), truth), abs=1e-3)
    assert len(scores[0].values) == SMALL.stages + 2
    scores = [Score("a", None, (1.0, 2.0)), Score("b", None, (3.0, 5.0)), Score("a", 1000, (1.0, 1.0))]
    assert table(scores).splitlines()[2:] == [
        "| a | 1.00 / 2.00 |  | 1.00 / 1.00 |", "| b | 3.00 / 5.00 |  |  |",
        "| mean of windows | 2.00 / 3.50 |  | 1.00 / 1.00 |",
    ]  # fmt: skip


def test_what_cannot_be_is_refused(data, tmp_path, capsys, monkeypatch):
    arguments = [*ARGUMENTS, "--data", str(data), "--output", str(tmp_path / "run")]

    def refused(*words: str) -> str:
        assert train.main([*arguments, *words]) == 2
        return capsys.readouterr().err

    for words in (
        ("--data", str(tmp_path)), ("--size", "16"), ("--size", "4x16"), ("--scenes", "0"), ("--device", "tpu"),
        ("--start", "2"), ("--minutes", "nan"), ("--weights", str(tmp_path / "none")),
    ):  # fmt: skip
        check_words(refused(*words))
    run, nm = tmp_path / "run" / "checkpoint.pt", [500, 510, 520, 530]
    for name, mask in (("dark", np.zeros((32, 64))), ("odd", np.ones((3, 32, 64)))):
        write_h5(tmp_path / f"{name}.h5", mask=mask, shifts=np.arange(4), wavelengths=nm)
        check_words(refused("--camera", str(tmp_path / f"{name}.h5")))
    write_h5(tmp_path / "other.h5", mask=np.ones((32, 64)), shifts=np.arange(4))
    assert train.main(arguments) == 0 == train.main(arguments)
    check_words(capsys.readouterr().out.splitlines()[-1])
    check_words(refused("--camera", str(tmp_path / "other.h5")))
    run.write_bytes(run.read_bytes()[:1000])
    assert "checkpoint.pt is damaged, or of another version" in refused()
    check_refusal(capsys, train.main([*arguments, "--output", str(tmp_path / "new"), "--evaluate"]))
    fresh = ["--output", str(tmp_path / "fresh"), "--measured"]
    for wrong in ({"cube": [1]}, {"cube_sqrt": np.ones((31, 64, 64), np.float32)}):
        write_h5(data / "cave_train" / "wrong.h5", **wrong)
        check_words(refused(*fresh))
    (data / "cave_train" / "wrong.h5").unlink()
    monkeypatch.delattr("torch.optim.Muon")
    assert "training needs torch 2.9 or later" in refused(*fresh)
