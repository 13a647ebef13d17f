"""Small pictures with numbers: in a notebook, and on the page of a folder."""

import base64
import io
import json
import os
import re
from html import unescape

import numpy as np
import pytest
import torch
from messages import refused
from PIL import Image

from cassi import CASSI, reconstruct
from cassi.files import write_cube
from cassi.looking.overview import has_report, inline_html, write_index, write_report_beside
from cassi.looking.report_data import ReportData, report_of
from cassi.optics.measurement import Measurement

HOSTILE = "<script>alert(1)</script>"
WAVELENGTHS = np.linspace(450, 650, 4)


def red_left():
    """A cube whose left half is red."""
    cube = np.full((4, 300, 400), 0.1, np.float32)
    cube[3, :, :200] = 1
    return cube


def test_inline_html_has_numbers_and_warns():
    truth = red_left()
    text = inline_html(ReportData(truth * 0.9, WAVELENGTHS, truth))
    assert "4 bands, 300 x 400 px" in text
    picture = Image.open(io.BytesIO(base64.b64decode(re.search(r"base64,([^\"]+)", text)[1])))
    assert picture.size == (134, 100)
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    assert pixels[30, 10, 0] > 2 * pixels[30, 10, 2] and np.ptp(pixels[30, 120]) < 3
    errors = 10 * np.log10(1 / np.mean((0.1 * truth.astype(float)) ** 2, axis=(1, 2)))
    assert f"PSNR, peak 1: {errors.mean():.2f} dB" in text
    assert "mean spectral angle: 0.00°" in text and "#c62828" not in text
    bad = inline_html(ReportData(truth, verdict=HOSTILE, ok=False))
    assert "#c62828" in bad and "&lt;script&gt;" in bad and "<script" not in bad


def test_an_index_of_a_folder(tmp_path):
    write_cube(tmp_path / "good_cube.h5", red_left(), attributes={"verdict": "the mask fits", "ok": True})
    write_cube(tmp_path / f"{HOSTILE[:8]}.h5", red_left(), attributes={"verdict": HOSTILE, "ok": False})
    write_cube(tmp_path / "stack.h5", np.stack([red_left()] * 2))
    (tmp_path / "other.h5").write_bytes(b"not HDF5")
    page = write_index(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "3 results, 1 of them in doubt, 1 damaged and left out" in text and "other.h5</h2>" in text
    assert text.count("data:image/png") == 3 and text.count('class="bad"') == 2
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text
    assert "default-src 'none'" in unescape(text) and "script-src 'none'" in unescape(text)
    assert "method differs" not in text and "failed" not in text
    assert '<a href="good_cube.h5">good_cube.h5</a>' in text and '<a href="%3Cscript%3E.h5">' in text
    (tmp_path / "good_report.html").touch()
    lines = [{"frame": "good", "status": "done"}, {"frame": HOSTILE, "status": "failed", "reason": "NaN in it"}]
    (tmp_path / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_cube(tmp_path / "tv.h5", red_left(), attributes={"choice": {"prior": "total variation"}})
    text = write_index(tmp_path).read_text(encoding="utf-8")
    assert '<a href="good_report.html">good_cube.h5</a>' in text
    assert "4 results, 1 of them in doubt, 1 failed, 1 damaged and left out. The method differs" in text
    assert "failed: NaN in it" in text and "1 by total variation" in text and "<script" not in text
    assert write_index(tmp_path) == page, "an older index is replaced"
    (tmp_path / "empty").mkdir()
    refused(write_index, tmp_path / "empty")


def test_method_plan_and_camera_stand_once_where_they_are_the_same(tmp_path):
    common = {"choice": {"prior": "total variation"}, "parameters": {"plan": "night.json", "camera": "find"}}
    for k in range(2):
        write_cube(tmp_path / f"{k}.h5", red_left(), attributes=common | {"camera": {"message": HOSTILE}})
    text = write_index(tmp_path).read_text(encoding="utf-8")
    assert "<p>Method: total variation</p>" in text and "<p>Plan: night.json</p>" in text
    assert text.count("alert(1)") == 1 and "<p>Camera: find: &lt;script&gt;" in text and "<script" not in text
    write_cube(tmp_path / "2.h5", red_left(), attributes={"parameters": {"plan": "other.json", "camera": "find"}})
    text = write_index(tmp_path).read_text(encoding="utf-8")
    assert text.count("<p>plan: night.json</p>") == 2 and text.count("<p>plan: other.json</p>") == 1
    assert "<p>Plan:" not in text and "Method:" not in text


def test_a_report_older_than_its_cube_is_not_linked(tmp_path):
    cube = write_cube(tmp_path / "a_cube.h5", red_left())
    report = write_report_beside(cube)
    assert report.name == "a_report.html" and has_report(cube)
    assert '<a href="a_report.html">' in write_index(tmp_path).read_text(encoding="utf-8")
    os.utime(report, (0, 0))
    assert not has_report(cube)
    assert '<a href="a_cube.h5">' in write_index(tmp_path).read_text(encoding="utf-8")


def test_what_is_shown_of_a_reconstruction_in_memory():
    mask = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
    truth = torch.rand(2, 4, 16, 16, generator=torch.Generator().manual_seed(1))
    m = Measurement(
        y=CASSI.from_step(mask, 2, 4).forward(truth).numpy(), mask=mask.numpy(), shifts=(0, 2, 4, 6),
        cube=truth.numpy(), unit="counts", source="night.h5",
    )  # fmt: skip
    result = reconstruct(m, solver="gap-tv", num_iters=5, black_level=0.0)
    shown = report_of(result, frame=1)
    assert (shown.verdict, shown.ok) == (result.check.verdict, True)
    np.testing.assert_array_equal(shown.cube, result.cube[1].numpy())
    np.testing.assert_array_equal(shown.truth, truth[1].numpy())
    np.testing.assert_array_equal(shown.measurement, m.y[1])
    assert [record.iteration for record in shown.history] == [1, 2, 3, 4, 5]
    assert shown.history == list(result.history[5:])
    assert (shown.title, shown.unit) == ("night.h5, frame 2 of 2", "counts")
    assert shown.unexplained == pytest.approx(
        float(torch.linalg.norm(result.residual_image[1])) / np.linalg.norm(m.y[1]), rel=1e-5
    )
    assert report_of(result).title == "night.h5, frame 1 of 2"
    bare = reconstruct(m.y[0], mask, num_bands=4, solver="gap-tv", num_iters=5, camera="as-given")
    assert report_of(bare).truth is None and report_of(bare).title == "Reconstruction"
