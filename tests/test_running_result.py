"""A result as Python expects it: made from a file, saved, drawn, shown in a line and in a notebook, labelled."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import Plain, write_h5
from messages import refused, warns

import cassi
from cassi import CASSI, MultiShot, reconstruct
from cassi.cli.main import main
from cassi.files import read_cube, read_measurement
from cassi.files.frames import read_scene
from cassi.looking.report_data import read_report, report_of
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.mask_match import check_masks
from cassi.optics.measurement import Measurement, no_scene_reason
from cassi.running.concerns import OF_MEASUREMENT, concerns_of

pytestmark = pytest.mark.filterwarnings("error")  # but those that are waited for
H, W, C = 20, 16, 4
NM = [450.0, 500.0, 560.0, 650.0]
GAP = {"solver": "gap-tv", "num_iters": 3}


@pytest.fixture(scope="module")
def camera() -> CASSI:
    return CASSI.from_step((torch.rand(H, W, generator=torch.Generator().manual_seed(1)) > 0.5).float(), 2, C)


@pytest.fixture(scope="module")
def y(camera):
    return camera @ torch.rand(C, H, W, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def result(camera, y):
    return reconstruct(y, camera.mask, num_bands=C, wavelengths=NM, **GAP)


def test_from_a_file(camera, y, tmp_path):
    both, alone, mask = (tmp_path / name for name in ("both.h5", "y.h5", "mask.h5"))
    write_h5(both, measurement=y.numpy(), mask=camera.mask.numpy(), wavelengths=NM)
    write_h5(alone, measurement=y.numpy())
    write_h5(mask, mask=camera.mask.numpy())
    expected = reconstruct(read_measurement(both), **GAP)
    found = reconstruct(str(both), **GAP)
    assert torch.equal(found.cube, expected.cube) and found.wavelengths.tolist() == NM
    for beside in (mask, camera.mask):
        apart = reconstruct(alone, mask=beside, num_bands=C, wavelengths="450:650:4", **GAP)
        assert torch.equal(apart.cube, expected.cube) and apart.wavelengths[-1] == 650
    refused(reconstruct, tmp_path / "none.h5")


def test_from_a_file_that_says_how_many_shots_it_holds(tmp_path):
    path = tmp_path / "m.h5"
    size = ["--size", "40", "--num-bands", "4"]
    assert main(["simulate", *size, "--quiet", "--shots", "2", "--output", str(path)]) == 0
    found = reconstruct(path, **GAP)
    assert torch.equal(found.cube, reconstruct(read_scene(path), **GAP).cube)
    assert found.measurement.shots == 2


SIDE = 48  # pixels; on much smaller frames a mask may fit by chance


def _through(mask: torch.Tensor) -> torch.Tensor:
    scene = torch.full((C, SIDE, SIDE), 0.3)
    scene[:, 10:30, 8:36] = torch.linspace(0.4, 1.0, C)[:, None, None]
    return CASSI.from_step(mask, 2, C) @ scene


@pytest.fixture(scope="module")
def masks():
    """That of the camera, and one that never saw the scene."""
    random = torch.Generator().manual_seed(5)
    return tuple((torch.rand(SIDE, SIDE, generator=random) > 0.5).float() for _ in range(2))


WAYS = {
    "arrays": lambda y, mask: reconstruct(y, mask, num_bands=C, **GAP),
    "camera": lambda y, mask: reconstruct(y, CASSI.from_step(mask, 2, C), **GAP),
    "shots": lambda y, m: reconstruct(torch.stack([y, y]), MultiShot((CASSI.from_step(m, 2, C),) * 2), **GAP),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_mask_that_does_not_belong_is_told_in_one_warning(masks, way, tmp_path):
    """And kept: by the result, its file and its figures. The right mask goes by without a word."""
    y = _through(masks[0])
    good = way(y, masks[0])
    assert good.check.matches and "fit" in good.check.verdict
    for wrong in (masks[1], masks[0].flip(0)):
        with warns("wrong mask" if wrong is masks[1] else "flipped up-down") as told:
            bad = way(y, wrong)
        assert [Path(one.filename).name for one in told] == [Path(__file__).name], "said once, where it was called from"
        assert not bad.check.matches and str(told[0].message) == bad.check.verdict
        bad.save(tmp_path / "cube.h5", overwrite=True)
        for data in (read_report(tmp_path / "cube.h5"), report_of(bad)):
            assert not data.ok and data.problems()[0] == bad.check.verdict


SHADED = torch.linspace(0.3, 1, 8)[:, None, None] * torch.linspace(0.5, 1, 128)[:, None].repeat(1, 128)


def test_a_mask_between_pixels_is_looked_for_before_bands_are_called_wrong(tmp_path, capsys):
    """Copies beside each other make up for half a pixel, as further bands would."""
    mask = (torch.rand(128, 128, generator=torch.Generator().manual_seed(6)) > 0.5).float()
    y = CASSI.from_step((mask + mask.roll(1, 1)) / 2, 2, 8) @ SHADED
    raw = tmp_path / "raw.h5"
    write_h5(raw, measurement=y.numpy(), mask=mask.numpy())
    words = ["reconstruct", str(raw), "--num-bands", "8", "--solver", "gap-tv", "--iterations", "3"]
    assert main([*words, "--figures", "none"]) == 0
    said, told = capsys.readouterr()
    assert "with the camera that was found, the mask fits" in said and "warning" not in told
    assert main([*words, "--figures", "none", "--overwrite", "--camera", "as-given"]) == 0
    assert "the number of bands is wrong; the two look alike" in capsys.readouterr().err


def test_of_a_mask_out_of_place_that_was_found_nothing_is_told(tmp_path, capsys):
    mask = torch.rand(128, 128, generator=torch.Generator().manual_seed(6))
    y = CASSI.from_step(mask.roll(1, 1), 2, 8) @ SHADED
    ways = {"num_bands": 8} | GAP
    with warns("displaced mask"):
        assert not reconstruct(y, mask, camera="as-given", **ways).check.matches
    found = reconstruct(y, mask, camera="find", **ways)
    assert found.camera.accepted and found.check.matches

    raw, cube = tmp_path / "raw.h5", tmp_path / "cube.h5"
    write_h5(raw, measurement=y.numpy(), mask=mask.numpy())
    words = ["reconstruct", str(raw), "--output", str(cube), "--solver", "gap-tv", "--iterations", "3"]
    assert main([*words, "--figures", "none"]) == 0
    said, told = capsys.readouterr()
    assert "displaced mask: it fits when moved by +0 rows (down) and +1 columns (right)" in said
    assert "--align" not in told
    data = read_report(cube)
    assert data.ok and data.verdict.startswith("the mask fits the measurement")
    for facts in (data.provenance, report_of(found).provenance):
        assert facts["camera"]["message"] == found.camera.message and facts["imprint"] == found.imprint > 0
    assert main([*words, "--figures", "none", "--overwrite", "--camera", "as-given"]) == 0
    assert "(--align)" in capsys.readouterr().err
    assert not read_report(cube).ok and "camera" not in read_report(cube).provenance


def test_the_mask_s_pattern_left_in_a_cube_is_told(masks, monkeypatch):
    """Of the default solver's; another may have run a few iterations, as the one above."""
    monkeypatch.setattr("cassi.running.pipeline.imprint_on", lambda *_: 0.2)
    with warns("imprint 0.20") as told:
        reconstruct(_through(masks[0]), masks[0], num_bands=C, camera="as-given", quality="fast", prior="tv")
    assert [Path(one.filename).name for one in told] == [Path(__file__).name]
    WAYS["arrays"](_through(masks[0]), masks[0])


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1e6])
def test_bad_pixels_that_are_named_say_nothing_against_a_snapshot(masks, value):
    y = _through(masks[0])
    bad = torch.zeros(y.shape, dtype=torch.bool)
    bad[3:9, 5:20] = True
    reconstruct(y.masked_fill(bad, value), masks[0], num_bands=C, bad_pixels=bad, **GAP)


def test_where_only_dark_pixels_are_left_the_others_are_named(masks):
    y = _through(masks[0]).numpy()
    m = Measurement(y=np.where(y > 0, y, 0), mask=masks[0].numpy(), shifts=(0, 2, 4, 6), bad_pixels=y > 0)
    dark = replace(m, y=np.zeros_like(y), bad_pixels=None)
    assert "are excluded as bad or saturated" in no_scene_reason(m)
    assert "black" in no_scene_reason(dark)


def test_a_comparison_that_was_made_is_used(masks):
    m = Measurement(y=_through(masks[0]).numpy(), mask=masks[1].numpy(), shifts=(0, 2, 4, 6))
    check = check_masks(m)
    with warns("wrong mask"):
        found = reconstruct(replace(m, check=check), **GAP)
    assert found.check is check
    assert found.measurement.check is None, "it may get another mask"


def test_what_speaks_against_a_snapshot_is_told(masks):
    settings = {"num_bands": C, "camera": "as-given", "quality": "fast", "gain": 1e-6}
    with warns("noise exceeds signal|unexplained") as told:
        reconstruct(_through(masks[0]), masks[0], **settings)
    assert len(told) == 2


SHOTS = np.stack([np.ones((1, 3)), 2 * np.ones((1, 3))])
HALF = np.full((2, 2), 0.5)
CONCERNS = {
    "shot 2 is 2 times as bright as shot 1": Measurement(SHOTS, np.ones((2, 1, 2)), (0, 1), shots=2),
    "by gain and read noise": Measurement(HALF, np.ones((2, 2)), (0,), gain=1.0, read_noise=5.0),
}


def test_what_speaks_against_a_measurement():
    for words, m in CONCERNS.items():
        assert any(text.startswith(words) for text in concerns_of(OF_MEASUREMENT, m)), words
    (text,) = concerns_of(OF_MEASUREMENT, Measurement(np.array([[-3.0, 1.0, -2.0]]), np.ones((1, 3)), (0,)))
    assert "83% of |y|" in text, "no more than all"


@pytest.mark.parametrize("way", [WAYS["arrays"], WAYS["camera"]])
def test_through_a_wrong_mask_no_black_level_is_told(masks, way):
    """Dark pixels are elsewhere. What the run says begins with the mask, and calls no error fair."""
    y = _through(masks[0]) + 0.5
    assert way(y, masks[0]).choice["black_level"] == pytest.approx(0.5, abs=0.01)
    with warns("wrong mask"):
        assert "black_level" not in way(y, masks[1]).choice
    with warns("wrong mask"):
        told = reconstruct(y, masks[1], num_bands=C, num_iters=3).explain()
    assert "fair" not in told and told.startswith("The mask does not fit: wrong mask")


def test_a_camera_without_a_mask_has_nothing_to_compare(camera, y):
    assert reconstruct(y, Plain(camera), **GAP).check is None


WRONG = {
    "camera first": lambda A, y: reconstruct(A, y), "mask first": lambda A, y: reconstruct(A.mask, y),
    "mask of a file": lambda A, y: reconstruct(y, "mask.h5"), "a list": lambda A, y: reconstruct(y, [[1.0]]),
    "a file and a camera": lambda A, y: reconstruct("m.h5", A),
    "shifts of a file": lambda A, y: reconstruct("m.h5", shifts=(0, 2)),
    "solver": lambda A, y: reconstruct(y, A, solver=3), "bands": lambda A, y: reconstruct(y, A.mask, num_bands="4"),
    "half a band": lambda A, y: reconstruct(y, A.mask, num_bands=4.5),
    "step": lambda A, y: reconstruct(y, A.mask, step="2"),
    "step of nothing": lambda A, y: reconstruct(y, A.mask, step=1e-300),
    "a list and bands": lambda A, y: reconstruct(y, [[1.0]], num_bands=4),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_was_meant_is_told(camera, y, case):
    refused(WRONG[case], camera, y)


def test_save_and_read_again(result, y, tmp_path):
    path = tmp_path / "cube.h5"
    result.save(path)
    cube, nm = read_cube(path)
    np.testing.assert_array_equal(cube, result.cube.numpy())
    assert nm.tolist() == NM
    data = read_report(path)
    np.testing.assert_array_equal(data.measurement, y.numpy())
    assert [record.residual for record in data.history] == pytest.approx([r.residual for r in result.history], rel=1e-5)
    assert data.unexplained == pytest.approx(result.residual, rel=1e-4)
    refused(result.save, path, error=cassi.files.OutputError)
    result.save(path, overwrite=True)


def test_a_camera_has_no_measurement_to_save_beside_the_cube(camera, y, tmp_path):
    reconstruct(y, camera, **GAP).save(tmp_path / "cube.h5")
    assert read_report(tmp_path / "cube.h5").measurement is None


def test_in_one_line(result, camera, y):
    assert repr(result).startswith("<Reconstruction: 4 bands, 450 to 650 nm, 20 x 16 px, by gap-tv in ")
    assert repr(result).endswith(f"residual {result.residual:.2%}>") and "\n" not in repr(result)
    stack = reconstruct(torch.stack([y, y]), camera.mask, num_bands=C, solver="gap-tv", num_iters=10)
    assert repr(stack).startswith("<Reconstruction: 2 cubes of 4 bands, 20 x 16 px, by gap-tv in ")


def test_what_it_was_made_of_in_one_line(camera, y):
    m = Measurement(y=y.numpy(), mask=camera.mask.numpy(), shifts=camera.shifts, source="a.h5")
    assert repr(m) == "<Measurement of a.h5: 20 x 22 px, mask 20 x 16, 4 bands, relative radiance>"
    words = "4 bands, scene 20 x 16 px, detector 20 x 22 px, shifts 0 to 6 px, torch.float32 on cpu>"
    assert repr(camera) == f"<CASSI: {words}"
    assert repr(BlurredCASSI(camera.mask, camera.shifts)) == f"<BlurredCASSI: {words}"


def test_in_a_notebook_and_drawn(result, camera, y):
    html = result._repr_html_()
    assert "data:image/png;base64," in html and "4 bands, 20 x 16 px" in html and "<script" not in html
    assert "nm" in " ".join(text.get_text() for axes in result.plot().axes for text in (axes.title, axes.xaxis.label))
    assert result.plot()._repr_png_().startswith(b"\x89PNG"), "what a notebook asks for"
    stack = reconstruct(torch.stack([y, 2 * y]), camera.mask, num_bands=C, solver="gap-tv", num_iters=10)
    assert "4 bands" in stack._repr_html_()
    with pytest.raises(IndexError):
        stack.plot(frame=2)


def test_where_the_prior_changed_is_marked(camera, y):
    with warns("unexplained"):  # of a scene of noise
        found = reconstruct(y, camera.mask, num_bands=C, prior="nonlocal")
    learned = (225, found.plan.stages[-1].name)
    assert report_of(found).markers == [(201, "non-local (1)"), (213, "non-local (0.5)"), learned]
    assert report_of(reconstruct(y, camera.mask, num_bands=C, solver="gap-tv", num_iters=2)).markers == []
