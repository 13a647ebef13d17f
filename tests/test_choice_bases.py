"""Spectral bases: which predicts best; light of one color, found by what smooth spectra leave of it."""

import math

import pytest
import torch

from cassi import CASSI, MultiShot
from cassi.choice import bases
from cassi.choice.automatic import reconstruct_auto
from cassi.choice.bases import MIN_NARROWNESS, choose_basis, narrow_basis, narrowness, scene_basis
from cassi.choice.by_name import solve_by_name
from cassi.choice.outcome import Outcome
from cassi.choice.stages import Watch
from cassi.evidence.fitting import fit
from cassi.evidence.held_out import Split
from cassi.priors.spectral_basis import smooth_basis
from cassi.sequence.neighbors import choose_common_plan
from cassi.settings import Settings

BANDS, SIDE = 20, 64


@pytest.fixture(scope="module")
def camera() -> CASSI:
    return CASSI.from_step(torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(0)), step=2, num_bands=BANDS)


def lit_by(spectrum: torch.Tensor) -> torch.Tensor:
    """A textured scene in this light."""
    place = torch.arange(SIDE)
    return spectrum[:, None, None] * (0.3 + 0.25 * torch.sin(place / 5)[:, None] * torch.cos(place / 7))


def one_color() -> torch.Tensor:
    spectrum = torch.full((BANDS,), 0.06)
    spectrum[7] = 1.0
    return lit_by(spectrum)


def smooth_light() -> torch.Tensor:
    return lit_by(1 + 0.8 * torch.cos(math.pi * (torch.arange(BANDS) + 0.5) / 5))


def leftover(camera: CASSI, x: torch.Tensor) -> float:
    split = Split.of(camera, camera.forward(x), 0)
    return narrowness(split, fit(split, smooth_basis(BANDS, 8)).x)


def error(outcome: Outcome, x: torch.Tensor) -> float:
    return float((outcome.result.x - x).norm() / x.norm())


def test_light_of_one_color_stands_out_and_smooth_light_does_not(camera):
    assert leftover(camera, one_color()) > MIN_NARROWNESS
    assert leftover(camera, 1e6 * one_color()) == pytest.approx(leftover(camera, one_color()), rel=1e-3)
    assert leftover(camera, smooth_light()) < 0.8 * MIN_NARROWNESS


def test_the_basis_holds_the_one_color(camera):
    y = camera.forward(one_color())
    basis = narrow_basis(Split.of(camera, y, 0), BANDS)
    line = torch.zeros(BANDS, dtype=torch.float64)
    line[7] = 1.0
    assert float((basis @ line).norm()) > 0.9
    assert float((smooth_basis(BANDS, 8) @ line).norm()) < 0.7


def test_read_noise_behind_dark_elements_makes_no_spectra(camera):
    """Detector pixels that no element lights hold noise alone; without damping it becomes the strongest spectrum."""
    generator = torch.Generator().manual_seed(1)
    x, dark = smooth_light() + 0.2 * one_color(), CASSI(camera.mask**8, camera.shifts)
    y = dark.forward(x)
    y = y + 2e-3 * y.max() * torch.randn(y.shape, generator=generator)
    pilot = fit(Split.of(dark, y, 0), smooth_basis(BANDS, 16)).x
    B = scene_basis(pilot).float()
    spectrum = x.sum((1, 2))
    assert float((B @ spectrum).norm()) > 0.99 * float(spectrum.norm())
    assert float(pilot.max()) < 100 * float(x.max())


def test_the_default_beats_gap_tv_and_smooth_spectra_in_the_light_of_one_color(camera):
    x = one_color()
    y = camera.forward(x)
    found = reconstruct_auto(camera, y)
    assert found.plan.basis == "narrow-10"
    gap = solve_by_name(camera, y, wavelengths=None, settings=Settings(solver="gap-tv"), watch=Watch())
    assert error(found, x) < error(gap, x)
    assert choose_common_plan(camera, torch.stack([y, 0.9 * y])).basis.startswith("narrow"), "of frames, too"


def test_two_shots_show_a_spot_of_one_color_that_one_misses(camera):
    x, place = one_color(), torch.arange(SIDE) - SIDE / 2
    x[15, place[:, None] ** 2 + place**2 < 60] += 1
    other = CASSI(torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(1)), camera.shifts)
    two, one = (
        error(reconstruct_auto(A, A.forward(x), settings=Settings(prior="tv")), x)
        for A in (MultiShot((camera, other)), camera)
    )
    assert two < 0.1 < 0.3 < one


@pytest.mark.parametrize("known", ["neither", "one color", "smooth"])
def test_the_basis_whose_spectra_the_scene_has_is_chosen_and_of_equals_the_first(camera, monkeypatch, known):
    """Where something narrow stands out: the scene's own spectra unless those with all bands free predict better."""
    x = one_color()
    pilot = fit(Split.of(camera, camera.forward(x), 0), smooth_basis(BANDS, 16))
    good, foreign = scene_basis(x).float(), torch.eye(BANDS)[:2]
    given = {"neither": (foreign, foreign), "one color": (foreign, good), "smooth": (good, foreign)}[known]
    monkeypatch.setattr(bases, "scene_basis", lambda x: given[0])
    monkeypatch.setattr(bases, "narrow_basis", lambda split, axis: given[1])
    name, vectors, compared = choose_basis(pilot, BANDS)
    assert (name == bases.NARROW) == (known == "one color") and vectors is given[name == bases.NARROW]
    assert [basis.basis for basis in compared] == [bases.SCENE, bases.NARROW]
    errors = [basis.held_out_error for basis in compared]
    assert known == "neither" or max(errors) > 2 * min(errors)
    monkeypatch.setattr(bases, "MIN_NARROWNESS", math.inf)
    assert choose_basis(pilot, BANDS)[2] == ((bases.SCENE, None),)
