"""The learned prior's network and its file: shapes, padding, and files that are not what they should be."""

import copy
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from messages import refused
from safetensors import safe_open
from safetensors.torch import save_file

from cassi.priors.learned import KINDS, MULTIPLE, LearnedPrior, Size, load_prior, packed, shipped_weights
from cassi.running.fingerprint import content_of
from cassi.settings import Settings

SMALL = Size(
    components=4, stages=1, memory=2, width=8, blocks=1, deep_width=8, deep_blocks=2, far_width=8, far_blocks=1
)


def stirred(size: Size = SMALL, seed: int = 0) -> LearnedPrior:
    """A network that does something: a new one hardly changes its input."""
    generator = torch.Generator().manual_seed(seed)
    prior = LearnedPrior(size).eval().requires_grad_(False)
    for value in prior.net.parameters():
        spread = value[0].numel() ** -0.5 if value.ndim == 4 else 0.1
        value.copy_(spread * torch.randn(value.shape, generator=generator))
    return prior


def images(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs(batch: int, height: int, width: int, components: int = 4) -> tuple[torch.Tensor, ...]:
    """z, d, and maps for both others."""
    z, d = (images(batch, 4, height, width, seed=seed)[:, :components] for seed in (1, 2))
    return z, d, *2 * (images(batch, 1, height, width, seed=3),)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 7), (1, 3), (9, 12)])
def test_any_size_goes_in_and_comes_out(height, width):
    f, g, h = stirred()(*inputs(2, height, width), None, 0)
    assert f.shape == g.shape == (2, 4, height, width) and h.shape == (2, 2, height, width)
    assert bool(((g >= 0) & (g <= 1)).all())


def test_moved_images_give_moved_corrections_by_whole_multiples_only():
    """That is the grid on which a tile of a frame shows the network what the frame shows it."""
    wide, net = images(1, 2 * 4 + 2 + 2, 160, 160), stirred().net

    def moved_apart(by: int) -> float:
        here, there = (net(wide[..., k:][..., :152], 0)[..., 64:-64] for k in (0, by))
        return float((here[..., by:] - there[..., : there.shape[-1] - by]).abs().max() / here.abs().max())

    assert moved_apart(MULTIPLE) < 1e-5 < 1e-2 < moved_apart(MULTIPLE // 2)


def test_a_new_network_changes_next_to_nothing():
    torch.manual_seed(0)
    f, g, _ = LearnedPrior(SMALL).eval().requires_grad_(False)(*inputs(1, 16, 16), None, 0)
    assert float(f.abs().max()) < 0.05 and float((g - 1 / (1 + torch.e**2)).abs().max()) < 0.05


def test_stage_and_light_of_the_scene_are_inputs():
    """The light of some sizes only."""
    given = inputs(1, 8, 8)
    prior = stirred(replace(SMALL, stages=2))
    first, again, second = (prior(*given, None, stage)[0] for stage in (0, 0, 1))
    assert torch.equal(first, again) and float((first - second).abs().max()) > 1e-3
    for size, changes in ((SMALL, False), (replace(SMALL, light=1), True)):
        first, second = (stirred(size)(*given, None, 0, light)[0] for light in images(2, 1, 4))
        assert (float((first - second).abs().max()) > 1e-3) == changes


@pytest.mark.parametrize("kind", KINDS)
def test_shipped_weights_take_double_precision(kind):
    """In bfloat16, where the processor has its instructions, too."""
    given, light = inputs(1, 8, 8), images(1, 4)
    single = load_prior(kind)(*given, None, 0, light)[0]
    found = load_prior(kind)(*(t.double() for t in given), None, 0, light.double())[0]
    torch.testing.assert_close(found, single.double(), rtol=0, atol=0.05)


def test_fewer_components_are_as_if_the_others_were_zero():
    z, d, *maps = inputs(1, 8, 8)
    z[:, 3:], d[:, 3:] = 0, 0
    f, g, h = stirred()(z, d, *maps, None, 0)
    found = stirred()(z[:, :3], d[:, :3], *maps, None, 0)
    assert all(map(torch.equal, found, (f[:, :3], g[:, :3], h)))


def test_pictures_of_a_batch_do_not_know_of_each_other():
    given = inputs(3, 8, 8)
    together, alone = stirred()(*given, None, 0), stirred()(*(t[1:2] for t in given), None, 0)
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a[1:2], b)


def test_a_file_gives_the_prior_back_up_to_half_precision(tmp_path):
    prior = stirred()
    (data,) = {packed(prior, licence="free") for _ in range(4)}
    (tmp_path / "p.safetensors").write_bytes(data)
    again = load_prior(tmp_path / "p.safetensors")
    assert again.size == SMALL and not again.training
    for name, value in prior.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("what", ["pickled", "no fields", "another size", "not finite"])
def test_files_that_hold_no_prior_are_refused(tmp_path, what):
    path = tmp_path / "p.safetensors"
    fields = {name: str(value) for name, value in vars(SMALL).items()}
    state = {name: value.clone() for name, value in stirred().state_dict().items()}
    if what == "not finite":
        state["log_tau"][0, 0] = float("nan")
    if what == "pickled":
        torch.save(state, path)
    else:
        save_file(state, path, {"no fields": None, "another size": fields | {"width": "16"}}.get(what, fields))
    refused(load_prior, path, error=ValueError)


@pytest.mark.parametrize(("kind", "licence"), [("free", "free for any use"), ("research", "for research")])
def test_weights_are_shipped_by_what_they_may_be_used_for(kind, licence):
    data = shipped_weights(kind).read_bytes()
    assert hashlib.sha256(data).hexdigest() == KINDS[kind] and len(data) < 8e6
    with safe_open(shipped_weights(kind), framework="pt") as file:
        assert file.metadata()["licence"].startswith(licence)
    assert load_prior(kind).source == kind and load_prior(kind).size.stages == Size.stages


def test_a_file_named_like_shipped_weights_is_not_taken_for_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("free").write_bytes(packed(stirred(SMALL)))
    assert load_prior("./free").source == "./free" and load_prior("./free").size == SMALL
    assert load_prior("free").source == "free" and content_of(Settings(weights="free"))["weights"] == KINDS["free"]
    assert content_of(Settings())["weights"] == KINDS["free"]
    assert content_of(Settings(plan="p.json"))["weights"] != KINDS["free"], "but those of the plan"
    for other in (content_of(Settings(weights="./free"))["weights"], content_of({"mask": "free"})["mask"]):
        assert other["sha256"] == hashlib.sha256(Path("free").read_bytes()).hexdigest()


def test_damaged_weights_are_refused(monkeypatch):
    assert load_prior().size == replace(load_prior("research").size, light=1, turns=3) == Size(light=1, turns=3)
    monkeypatch.setitem(KINDS, "free", hashlib.sha256(b"other").hexdigest())
    refused(load_prior, error=ValueError)  # damaged ones


def test_a_copy_for_a_device_is_made_once_and_holds_no_other(monkeypatch):
    """By several threads at a time; `meta` stands for two GPUs."""
    prior, copies = LearnedPrior(SMALL), []
    made = copy.deepcopy
    monkeypatch.setattr("cassi.priors.learned.copy.deepcopy", lambda *given: copies.append(1) or made(*given))
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(prior.on, 4 * [torch.device("meta")])]
    assert len(copies) == 1 and all(one is found[0] for one in found)
    assert prior.on(torch.device("meta", 1))._copies == {} and prior.on(prior.log_tau.device) is prior
