"""`cassi compare` with a spectrometer's table and regions, and `cassi design`, as typed."""

import csv
import json
import re

import numpy as np
import pytest
from messages import check_refusal
from PIL import Image

from cassi.cli.main import main
from cassi.files import write_cube

NM = np.linspace(450, 650, 5)
SPECTRUM = np.array([0.1, 0.2, 0.4, 0.3, 0.2])


@pytest.fixture
def result(tmp_path):
    """A cube that is 3 times the spectrum at rows 2 to 4, columns 5 to 7, and flat elsewhere."""
    cube = np.full((5, 12, 15), 0.5)
    cube[:, 2:5, 5:8] = 3 * SPECTRUM[:, None, None]
    beside = {"uncertainty": 0.1 * cube, "truth": 1.1 * cube, "residual": np.zeros((12, 19))}
    return write_cube(tmp_path / "a_cube.h5", cube, wavelengths=NM, datasets=beside)


@pytest.fixture
def table(tmp_path):
    """Between the centers linear, and steep enough to tell means over bands from samples only slightly."""
    fine = np.arange(400, 701.0)
    lines = [f"{w:.1f};{v:.6f}".replace(".", ",") for w, v in zip(fine, np.interp(fine, NM, SPECTRUM), strict=True)]
    path = tmp_path / "leaf.csv"
    path.write_text("Wellenlänge;Wert\n" + "\n".join(lines), encoding="latin-1")
    return path


def test_a_spectrometer_at_a_place(result, table, tmp_path, capsys):
    figure, spectra = tmp_path / "f.png", tmp_path / "s.csv"
    outputs = ["--figure", str(figure), "--csv", str(spectra)]
    assert main(["compare", str(result), str(table), "--at", "3,6,3", *outputs]) == 0
    out = capsys.readouterr().out
    assert "3 x 3 px around row 3, column 6, 9 px, 5 of 5 bands: angle" in out
    angle, scale = (float(out.partition(word)[2].split()[0]) for word in ("angle ", "scale "))
    assert angle < 5 and scale == pytest.approx(3, rel=0.1)
    assert "within 2 error bars" in out and figure.stat().st_size > 5000
    rows = list(csv.reader(spectra.open()))
    assert [float(row[1]) for row in rows[1:]] == pytest.approx((3 * SPECTRUM).tolist(), rel=1e-6)
    assert main(["compare", str(result), str(table), "--at", "3,6", "--unscaled"]) == 0
    assert "scale 1\n" in capsys.readouterr().out


def test_regions_and_the_truth(result, tmp_path, capsys):
    corners = [[2, 5], [2, 8], [5, 8], [5, 5]]
    (tmp_path / "r.json").write_text(json.dumps({"regions": [{"name": "leaf", "corners": corners}]}))
    assert main(["compare", str(result), "--regions", str(tmp_path / "r.json"), "--at", "0,0", "--at", "1,2"]) == 0
    out = capsys.readouterr().out
    assert "leaf, 9 px, 5 of 5 bands: angle 0.00 degrees" in out and "(9.1% of the reference)" in out
    assert "row 0, column 0, 1 px" in out and "row 1, column 2, 1 px" in out  # an option may be repeated


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (["leaf.csv"], "is the table of a spectrometer; say where: --at ROW,COLUMN or --regions FILE"),
        (["leaf.csv", "--at", "3"], "'3' is not a position"),
        (["leaf.csv", "--at", "90,90"], "contains no pixel of the scene, 12 x 15 px"),
        (["none.csv", "--at", "3,3"], "none.csv: no such file"),
        (["leaf.csv", "--at", "3,3", "--csv", "leaf.csv"], "leaf.csv: would replace an input"),
        (["small.h5", "--at", "3,3"], "small.h5 must have the pixels of"),
        (["leaf.csv", "--regions", "none.json"], "none.json: no such file"),
    ],
)
def test_one_line_where_it_cannot_be(result, table, tmp_path, monkeypatch, capsys, more, match):
    monkeypatch.chdir(tmp_path)
    write_cube(tmp_path / "small.h5", np.ones((5, 4, 4)), wavelengths=NM)
    assert main(["compare", result.name, *more]) == 2
    error = capsys.readouterr().err
    assert match in error and error.count("\n") == 1


def test_two_cubes_and_what_is_drawn_of_them(tmp_path, capsys):
    truth = np.random.default_rng(0).random((3, 24, 24)).astype(np.float32)
    a, b, figure = str(tmp_path / "a.h5"), str(tmp_path / "b.h5"), str(tmp_path / "d.png")
    write_cube(a, truth + 0.1, datasets={"truth": truth})
    write_cube(b, truth)
    for reference in ([], [b]):
        assert main(["compare", a, *reference]) == 0
        # estimates are clipped to [0, 1]: the difference is at most 0.1, so the PSNR at least 20 dB
        assert 20 <= float(re.search(r"PSNR ([\d.]+) dB", capsys.readouterr().out)[1]) < 21
    assert main(["compare", a, "--figure", figure, "--quiet"]) == 0
    assert (tmp_path / "d.png").stat().st_size > 5000
    assert main(["compare", a, "--figure", figure]) == 2 and "--overwrite" in capsys.readouterr().err
    check_refusal(capsys, main(["compare", a, "--figure", str(tmp_path / "d.jpg")]))


def test_a_small_study(tmp_path, capsys):
    choices = ["--step", "1,2", "--mask-element", "1", "--bands", "4", "--electrons", "1e4", "--num-scenes", "1"]
    command = ["design", *choices, "--size", "32", "--output", str(tmp_path / "study")]
    assert main(command) == 0
    assert "2 cameras, 1 scene of 32 x 32 px: painted 0" in capsys.readouterr().out
    files = {path.name for path in (tmp_path / "study").iterdir()}
    assert files == {"design.jsonl", "design.csv", "psnr.png", "angle.png"}
    before = (tmp_path / "study" / "design.jsonl").read_bytes()
    assert main(command) == 0
    assert (tmp_path / "study" / "design.jsonl").read_bytes() == before  # nothing is computed again
    for wrong, said in (
        (["--size", "8", "--output", str(tmp_path / "small")], "are too small"),
        (["--step", "x"], "expected positive whole numbers"),
    ):
        assert main(["design", *wrong]) == 2 and said in capsys.readouterr().err


def test_figures_for_papers(tmp_path, capsys):
    """Formats, resolution, scale bar; a finished result is drawn anew, not computed."""
    assert main(["simulate", "--size", "48", "--num-bands", "6", "--output", str(tmp_path / "a.h5"), "--quiet"]) == 0
    command = ["reconstruct", str(tmp_path / "a.h5"), "--solver", "least-squares"]
    formats = ["--figure-format", "png,pdf", "--dpi", "40", "--pixel-size", "2.5um", "--tinted"]
    assert main([*command, *formats]) == 0
    assert {path.suffix for path in (tmp_path / "a_figures").iterdir()} == {".png", ".pdf"}
    small = Image.open(tmp_path / "a_figures" / "summary.png").size[0]
    written = (tmp_path / "a_cube.h5").stat().st_mtime_ns
    assert main([*command, "--no-markers"]) == 0
    assert (tmp_path / "a_cube.h5").stat().st_mtime_ns == written
    assert Image.open(tmp_path / "a_figures" / "summary.png").size[0] == pytest.approx(3 * small, abs=3)
    for wrong in ("--figure-format=bmp", "--pixel-size=3", "--pixel-size=0mm", "--dpi=9999"):
        with pytest.raises(SystemExit):
            main([*command, wrong])
