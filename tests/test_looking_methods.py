"""The paragraph for a paper: each fact of a result has its sentence, and no sentence is there without its fact."""

import re

import numpy as np
import pytest
import torch

import cassi
from cassi.cli.main import run
from cassi.files import write_arrays
from cassi.looking.methods import methods_text
from cassi.looking.report_data import ReportData, read_report
from cassi.priors.learned import LearnedPrior, Size, load_prior
from cassi.self_calibration.camera_model import CameraModel
from cassi.self_calibration.elements_of_several import MaskError
from cassi.self_calibration.found_camera import FoundCamera

CUBE = np.ones((3, 4, 5))
FACTS = [  # of choice, parameters, provenance and data: what is said of them
    ({}, {}, {}, "cube of 3 bands, 4 x 5 pixels, was reconstructed from one coded-aperture snapshot with cassi."),
    ({"together": 2}, {}, {"shots": 3}, "from 3 coded-aperture snapshots and 2 beside it in time with"),
    ({}, {}, {"shifts": [0, 2, 4]}, "The bands are displaced by 2 px from one to the next."),
    ({}, {}, {"shifts": [0, 1.5, 4]}, "The bands are displaced by 1.5 to 2.5 px from one to the next."),
    ({}, {}, {"origin": {"wavelengths": "as given"}}, "The wavelengths are as given."),
    ({}, {}, {"origin": {"wavelengths": "the file a"}, "shifts": [0, 1]}, "next; their wavelengths are as in the f"),
    ({}, {}, {"origin": {"mask": "mask.mat"}}, "The mask was read from mask.mat."),
    ({}, {}, {"origin": {"mask": "c.h5", "refined": {"findings": ["moved", "its elements corrected"], "captures": 4}}},
     "The mask was read from c.h5, which was refined from 4 captures before: moved, its elements corrected."),
    ({}, {}, {"origin": {"mask": "m.mat"}, "camera": {"accepted": False}},
     "The camera was taken as it is: no correction was found with which the snapshot is predicted better."),
    ({}, {}, {"camera": {"accepted": False, "reason": "the snapshot is too small"}},
     "The camera was taken as it is: the snapshot is too small."),
    ({}, {}, {"camera": {"accepted": True, "findings": ["mask moved by 1 px"]}},
     "From the snapshot itself the camera was corrected: mask moved by 1 px."),
    ({"black_level": 0.25, "black_level_estimated": True}, {}, {},
     "level of 0.25, 50% of the snapshot's mean, estimated from pixels that almost no light can reach, was subtr"),
    ({"black_level": 0.25}, {}, {}, "A black level of 0.25, 50% of the snapshot's mean, was subtracted."),
    ({}, {}, {"origin": {"black_level": 100.0}}, "A black level of 100 counts was subtracted."),
    ({}, {}, {"origin": {"dark": 7.0}}, "A dark frame was subtracted from the snapshot."),
    ({}, {}, {"origin": {"calibrated": True}}, "The counts were corrected by dark and flat frames."),
    ({}, {}, {"num_bad_pixels": 1}, "1 detector pixel was left out."),
    ({}, {}, {"num_bad_pixels": 70, "origin": {"saturated": 64}, "camera": {"accepted": True, "defects": 3}},
     "70 detector pixels were left out, 64 saturated, 3 found to contradict their neighbors."),
    ({"solver": "gap-tv", "num_iters": 60}, {}, {}, "The solver was generalized alternating projection with total "
     "variation (Yuan, ICIP 2016), 60 iterations."),
    ({"prior": "total variation, non-local", "held_out_error": 0.02}, {}, {}, "similar patches (Dong, Shi & Li, "
     "IEEE TIP 22, 2013, with the shrinkage of Gavish & Donoho, IEEE Trans. Inf. Theory 63, 2017); basis"),
    ({"prior": "total variation, learned", "network": load_prior("free").weights}, {}, {},
     "unrolled network for any mask with the free weights (free for any use) (after Adler & Oktem, IEEE TMI 37"),
    ({}, {}, {"origin": {"filters": "4x4"}, "shifts": [0, 0]}, "one snapshot of a mosaic sensor with cassi. The "
     "filters on its pixels follow the pattern 4x4."),
    ({"side": {"used": True, "joint_error": 0.04, "alone_error": 0.05}}, {}, {},
     "A photograph of the scene, registered to it, took part: error at held-out pixels 4.0% with it, 5.0% without."),
    ({}, {"output_bands": "500:600:5"}, {"shifts": [0, 2]}, "Its spectra were interpolated from 2 bands to these"),
    ({}, {}, {"shifts": [0, 2], "output_bands": [500.0]}, "Its spectra were interpolated from 2 bands to these wav"),
    ({}, {"quality": "fast", "seed": 4}, {}, "The setting of quality was 'fast', the seed 4."),
]  # fmt: skip


def text_of(choice, parameters, provenance):
    snapshot = np.full((4, 9), 0.5)
    facts = {"choice": choice, "parameters": parameters, "provenance": provenance}
    return methods_text(ReportData(CUBE, measurement=snapshot, **facts))


@pytest.mark.parametrize(("choice", "parameters", "provenance", "expected"), FACTS)
def test_each_fact_has_its_sentence(choice, parameters, provenance, expected):
    text = text_of(choice, parameters, provenance)
    assert expected in text and ".." not in text and "  " not in text
    if choice or parameters or provenance:
        assert expected not in text_of({}, {}, {}), "and nothing is said without it"
    assert LearnedPrior(Size(width=8)).weights == "weights of your own (in memory)"


@pytest.mark.parametrize("damaged", ["text", 5, [1], {"findings": 3, "captures": "x"}, None])
def test_damaged_facts_say_nothing_wrong(damaged):
    for origin in (damaged, {"mask": "m", "refined": damaged, "black_level": damaged, "saturated": damaged}):
        assert text_of({}, {}, {"origin": origin, "camera": damaged, "shifts": damaged, "num_bad_pixels": damaged})


@pytest.mark.parametrize(
    ("options", "words"),
    [("--camera mosaic --pattern 2x2", "a mosaic sensor with .* on its pixels follow the pattern 2x2"),
     ("--shots 2 --num-bands 4", "from 2 coded-aperture snapshots .* The mask was read from y.h5")],
)  # fmt: skip
def test_simulated_cameras_are_named(options, words, tmp_path):
    """And the residual is of all shots, as the program prints it."""
    file = tmp_path / "y.h5"
    assert run("simulate", [*options.split(), "--size", "48x48", "--output", str(file)], "cassi simulate") == 0
    result = cassi.reconstruct(file, solver="gap-tv", num_iters=2)
    result.save(tmp_path / "x.h5")
    text = methods_text(read_report(tmp_path / "x.h5"))
    assert re.search(words, text) and f"is {100 * result.residual:.2f}%" in text


def test_a_refined_camera_is_named_with_what_was_corrected_of_it(tmp_path):
    """As a user runs it: the file of a camera as the mask, counts that saturate, a stated black level."""
    draw = torch.Generator().manual_seed(0)
    mask = (torch.rand(48, 48, generator=draw) > 0.5).float()
    y = cassi.CASSI.from_step(mask, 2, 4).forward(torch.rand(4, 48, 48, generator=draw))
    counts = (100 + 700 * y / y.max()).clamp(max=700).numpy().astype(np.uint16)
    write_arrays(tmp_path / "y.h5", {"measurement": counts})
    wrong = 0.02 * torch.randn(48, 48, generator=draw)
    error = MaskError(wrong, None, True, errors=((0.1, 0.05),), captures=4)
    found = FoundCamera(mask.numpy(), (0, 2, 4, 6), CameraModel(contrast=0.9), True, mask_error=error)
    found.save(tmp_path / "camera.h5")
    words = [str(tmp_path / "y.h5"), "--mask", str(tmp_path / "camera.h5"), "--wavelengths", "500:530:4"]
    words += ["--black-level", "100", "--saturation", "700", "--solver", "least-squares", "--figures", "none"]
    assert run("reconstruct", words, "cassi reconstruct") == 0
    text = methods_text(read_report(tmp_path / "y_cube.h5"))
    full = int((counts >= 700).sum())
    before = "which was refined from 4 captures before: its contrast 0.90, its elements corrected"
    assert f"read from camera.h5, {before}" in text
    assert f"{full} saturated" in text and "A black level of 100 counts was subtracted." in text
    assert "displaced by 2 px from one to the next; their wavelengths are as given." in text
