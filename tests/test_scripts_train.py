"""scripts/train.py on a few made-up photographs and cubes: it trains, resumes, and its weights load."""

import copy
import json
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import train
from cases import write_h5
from messages import check_refusal, last_line, refused, warns
from safetensors import safe_open
from scipy.io import savemat
from test_scripts_examples import CPU, SMALL, chance, drawn, made_up  # noqa: F401 (the fixture `data`)
from training import loop
from training.chance import Chance
from training.evaluate import Score, evaluate, table
from training.looks import Look, Looks, continued, loss, quick, stage_errors
from training.loop import Settings, Training, new_prior, optimizers
from training.quick_start import quick_start

from cassi import CASSI
from cassi.choice.stages import NonLocal, Problem, State, Watch
from cassi.looking.metrics import psnr
from cassi.optics.detector import object_levels
from cassi.priors.learned import load_prior, packed
from cassi.priors.spectral_basis import synthesise
from cassi.solvers.subspace_tv import SubspaceState
from cassi.solvers.unrolled import error

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch before 2.9 has no Muon")


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
    e = drawn(data, 1, non_local=1.0)
    assert e.non_local is not None
    e = replace(e, known=torch.ones_like(e.known), non_local=(1.0, 6))
    z, variance = quick_start(e.camera, e.y, e.basis, e.seen, num_iters=12, variance=e.variance)
    A, y, level = e.camera.leave_out(e.seen > 0), e.y * e.seen, object_levels(e.camera, e.y)
    A = replace(A, mask_error=0.0)  # which the solver counts as noise
    found = Looks(new_prior(SMALL, 0), 1.0, 12).first(e)
    for n in range(2):
        run = SubspaceState(z[n], torch.zeros_like(y[n]), None, z.new_zeros((2, *z[n].shape)))
        problem = Problem(e.basis, variance[n], brightness=float(level[n]))
        expected = NonLocal(*e.non_local).run(A, y[n], problem, State(synthesise(z[n], e.basis), run), Watch()).x
        alone = continued(
            A, y[n : n + 1], e.basis, z[n : n + 1], variance[n : n + 1], level[n].view(-1, 1, 1, 1), 1.0, 6
        )
        torch.testing.assert_close(synthesise(alone[0], e.basis), expected, rtol=1e-3, atol=1e-4)
        change = (synthesise(found.z[n], e.basis) - expected).norm() / (expected - synthesise(z[n], e.basis)).norm()
        assert float(change) < 0.5


def test_examples_are_looked_at_again_and_later_in_turns(data, monkeypatch):
    """Of each turn the start is the cube of the one before, continued by a non-local prior half as strong."""
    for name, value in (("STOCK", 4), ("REUSE", 3), ("AGAIN", 1 / 3)):
        monkeypatch.setattr(f"training.looks.{name}", value)
    prior, strengths, drawn_so_far = new_prior(SMALL, 0), [], []
    looks = Looks(prior, 1.0, 6, (3,))

    def draw():
        e = drawn(data, len(drawn_so_far), 1, (16, 24), non_local=1.0)
        drawn_so_far.append(replace(e, non_local=(1.0, 2)))
        return drawn_so_far[-1]

    for _ in range(60):
        looks.next(draw)
        strengths += [look.strength for look in looks.stock]
    assert 15 <= len(drawn_so_far) <= 25 and len(looks.stock) <= 4
    assert set(strengths) == {1.0, 0.5, 0.25}
    look = replace(looks.stock[0], strength=1.0)
    _, z = looks(look)
    z[0, 0, 0, 0] = torch.nan
    again = look.again(z)
    torch.testing.assert_close(again.z, replace(look, z=torch.where(z.isnan(), look.z, z)).continued(0.5, 8).z)


def test_starts_that_fail_are_left_out(data):
    looks, draws = Looks(new_prior(SMALL, 0), 1.0, 6, (3,)), []

    def draw():
        draws.append(1)
        if len(draws) % 2 == 0:
            raise FloatingPointError("NaN or Inf")
        return drawn(data, len(draws), 1, (16, 24))

    looks.next(draw)
    with warns("a start is left out: NaN or Inf"):
        looks.next(draw)
    assert len(looks.stock) == 1 and looks.taken == 2
    with pytest.raises(FloatingPointError):
        Looks(new_prior(SMALL, 0), 1.0, 6).next(lambda: draw() and draw())  # the first of all


def test_the_error_by_hand():
    truth = torch.full((1, 2, 4, 4), 2.0)
    x = truth + torch.tensor([0.2, 0.0]).view(2, 1, 1)
    assert float(error(x, truth)) == pytest.approx((10 * np.log10(0.01 + 1e-5) - 50) / 2, rel=1e-4)


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


def briefly(data: Path, output: Path, minutes: float, **more: float) -> Settings:
    return Settings(data, output, minutes, size=(16, 24), start_iters=9, scenes=2, limit=2, **more)


def test_a_training_gains_and_resumes_from_its_checkpoint(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=count(1.0).__next__))  # a look at it takes a second
    monkeypatch.setattr(loop, "new_prior", lambda size, seed: new_prior(SMALL, seed))
    settings = briefly(data, tmp_path, 0.8, rate=4e-3)

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
    loop.time = SimpleNamespace(monotonic=count(1.0).__next__)
    run = Training(briefly(data, output, 0.05))
    run.run()
    torch.save({"prior": run.prior.state_dict(), "next": run.chance.normal(3)}, output / f"{rank}.pt")


def test_processes_that_train_together_have_one_network_and_examples_of_their_own(data, tmp_path):
    torch.multiprocessing.start_processes(train_together, (data, tmp_path), nprocs=2, start_method="fork")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert first["prior"].keys() == second["prior"].keys() and not torch.equal(first["next"], second["next"])
    assert all(torch.equal(first["prior"][name], second["prior"][name]) for name in first["prior"])
    progress = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]
    assert progress["step"] > 1 and progress["seen"] == 4 * progress["step"] and progress["seconds"] >= 3


def test_a_gradient_that_is_not_finite_moves_nothing(data, tmp_path):
    run = Training(briefly(data, tmp_path, 1, stages=1))
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
    run = Training(briefly(data, tmp_path, 0.05, stages=1))
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
    (tmp_path / "kaist").mkdir(), (tmp_path / "cave").mkdir()
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
    monkeypatch.setattr(loop, "new_prior", lambda size, seed: new_prior(SMALL, seed))

    def refuses(*words: str) -> None:
        check_refusal(capsys, train.main([*arguments, *words]))

    for words in (
        ("--data", str(tmp_path)), ("--size", "16"), ("--size", "4x16"), ("--scenes", "0"), ("--device", "tpu"),
        ("--start", "2"), ("--minutes", "nan"), ("--weights", str(tmp_path / "none")),
    ):  # fmt: skip
        refuses(*words)
    run, nm = tmp_path / "run" / "checkpoint.pt", [500, 510, 520, 530]
    for name, mask in (("dark", np.zeros((32, 64))), ("odd", np.ones((3, 32, 64)))):
        write_h5(tmp_path / f"{name}.h5", mask=mask, shifts=np.arange(4), wavelengths=nm)
        refuses("--camera", str(tmp_path / f"{name}.h5"))
    write_h5(tmp_path / "other.h5", mask=np.ones((32, 64)), shifts=np.arange(4))
    assert train.main(arguments) == 0
    assert "weights.safetensors: sha256 " in last_line(capsys, train.main(arguments))
    refuses("--camera", str(tmp_path / "other.h5"))
    run.write_bytes(run.read_bytes()[:1000])
    assert train.main(arguments) == 2 and "damaged, or of another version" in capsys.readouterr().err
    refuses("--output", str(tmp_path / "new"), "--evaluate")
    fresh = ["--output", str(tmp_path / "fresh"), "--measured"]
    for wrong in ({"cube": [1]}, {"cube_sqrt": np.ones((31, 64, 64), np.float32)}):
        write_h5(data / "cave_train" / "wrong.h5", **wrong)
        refuses(*fresh)
    (data / "cave_train" / "wrong.h5").unlink()
    monkeypatch.delattr("torch.optim.Muon")
    assert train.main([*arguments, *fresh]) == 2 and "training needs torch 2.9" in capsys.readouterr().err
