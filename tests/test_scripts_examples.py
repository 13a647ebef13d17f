"""scripts/training: cameras, scenes and examples of the training, on a few made-up photographs and cubes."""

import functools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from cases import write_h5
from messages import refused
from PIL import Image
from scipy.io import savemat
from test_priors_learned import SMALL as OF_FOUR
from training.cameras import AnyCamera, OneCamera, blurred, drawn_mask, load_masks, random_mask, read_camera, wrong_mask
from training.chance import Chance
from training.examples import draw_examples, in_bands
from training.scenes import WAVELENGTHS, Pictures, load_scenes, read_cubes, sensitivities

SMALL = replace(OF_FOUR, components=6, stages=2, light=1)
CPU = torch.device("cpu")


def chance(seed: int = 0) -> Chance:
    return Chance(seed, CPU)


def make_data(folder: Path) -> Path:
    """Photographs and spectra, and two cubes of smooth blobs, as measured ones are stored."""
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


@pytest.fixture(scope="module", name="data")
def made_up(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@functools.cache
def scenes(data: Path, measured: bool = False):
    return load_scenes(data, CPU, measured=measured, limit=2)


@functools.cache
def drawn(data: Path, seed: int, count: int = 2, size: tuple[int, int] = (24, 48), **more: float):
    return draw_examples(chance(seed), scenes(data), AnyCamera([]), count, size, SMALL.components, **more)


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


def test_scenes_that_are_held_out_are_not_trained_with(data, monkeypatch):
    assert len(read_cubes(data / "cave_train")) == 2 and len(read_cubes(data / "cave_train", ["two"])) == 1
    monkeypatch.setattr("training.scenes.TEST_SCENES", ("one", "two"))
    refused(read_cubes, data / "cave_train", error=FileNotFoundError)
