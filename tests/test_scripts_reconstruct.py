"""The command line: what it writes, what it says, and that nothing it is given makes it lose anything."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from cases import write_h5
from messages import check_refusal

from cassi import CASSI, reconstruct
from cassi.cli.main import script
from cassi.files import read_cube
from cassi.looking import figures
from cassi.settings import duration

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "reconstruct.py"
H, W, C, STEP = 20, 18, 4, 2
NM = np.array([450.0, 500.0, 560.0, 650.0])


program = script("reconstruct")


def scene() -> dict[str, np.ndarray]:
    mask = (torch.rand(H, W, generator=torch.Generator().manual_seed(3)) > 0.5).float()
    cube = torch.full((C, H, W), 0.2)
    cube[:, 4:14, 3:12] = torch.tensor([0.9, 0.7, 0.4, 0.2])[:, None, None]
    y = CASSI.from_step(mask, STEP, C).forward(cube)
    return {"measurement": y.numpy(), "mask": mask.numpy(), "cube": cube.numpy(), "wavelengths": NM}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return write_h5(tmp_path / "m.h5", {"step": STEP}, **scene())


def call(*args: object, figures: bool = False) -> int:
    arguments = [str(a) for a in args]
    if "--iterations" not in arguments:
        arguments += ["--iterations", "5"]
    return program(arguments if figures else [*arguments, "--figures", "none"])


def test_result_figures_and_summary_beside_the_input(snapshot, capsys):
    assert program(["--measurement", str(snapshot), "--solver", "gap-tv", "--tv-weight", "0.4"]) == 0
    captured = capsys.readouterr()
    assert sorted(p.name for p in snapshot.parent.iterdir()) == ["m.h5", "m_cube.h5", "m_figures"]
    pictures = {p.name for p in (snapshot.parent / "m_figures").iterdir()}
    assert pictures == {f"{n}.png" for n in ("summary", "residual", "bands", "errors", "srgb", "convergence")}
    line = captured.out.splitlines()[-1]
    found = re.match(
        r"residual (\S+)%, (\S+) s, PSNR (\S+) dB \(peak 1, clipped\), SSIM ([\d.]+), SAM ([\d.]+) deg -> ", line
    )
    assert found, line
    with h5py.File(snapshot.parent / "m_cube.h5") as file:
        error = np.square(np.clip(file["cube"][:], 0, 1) - scene()["cube"]).mean((1, 2))
        assert float(found[3]) == pytest.approx(np.mean(-10 * np.log10(error)), abs=0.006)
        assert float(found[1]) == pytest.approx(100 * file.attrs["residual"], abs=0.006)
        assert "--solver gap-tv --tv-weight 0.4" in file.attrs["command_line"]
        parameters = json.loads(file.attrs["parameters"])
        assert (parameters["tv_weight"], parameters["shifts"]) == (0.4, [0, 2, 4, 6])
    assert all(re.match(r"step \d of \d: ", line) for line in captured.err.splitlines())  # in a log lines, no bar
    assert "  the step of 2 px is stated by the file\n" in captured.out
    assert len(captured.out.splitlines()) <= 9 and 1 < len(captured.err.splitlines()) <= 6


def test_a_stack_its_mask_in_another_file_and_figures_elsewhere(tmp_path, capsys, monkeypatch):
    few = {"summary": figures.residual(scene()["measurement"])}  # all are drawn above
    monkeypatch.setattr(figures, "figures_of", lambda data, **_: few)
    content = scene()
    frames = np.stack([content["measurement"], 3 * content["measurement"][::-1]])
    stack = write_h5(tmp_path / "stack.h5", meas=frames)
    mask = write_h5(tmp_path / "mask.h5", mask=content["mask"])
    argv = ["--measurement", stack, "--mask", mask, "--num-bands", C, "--wavelengths", "450:650:4"]
    argv += ["--solver", "gap-tv", "--figures", tmp_path / "a" / "b", "--output", tmp_path / "out.h5"]
    assert call(*argv, figures=True) == 0
    assert (tmp_path / "a" / "b" / "summary.png").exists()
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["cube"].shape == (2, C, H, W)
        alone = reconstruct(frames[1], content["mask"], num_bands=C, solver="gap-tv", num_iters=5)
        np.testing.assert_array_equal(file["cube"][1], alone.cube.numpy())
        np.testing.assert_allclose(file["wavelengths"][:], [450, 516.6667, 583.3333, 650], rtol=1e-6)
        assert file.attrs["mask_name"] == "mask.h5"
        assert len(file.attrs["mask_sha256"]) == 64


def test_report_beside_the_result(snapshot, capsys):
    assert call("--measurement", snapshot, "--report") == 0
    assert snapshot.with_name("m_report.html").read_text().lower().startswith("<!doctype html>")
    assert capsys.readouterr().out.endswith("m_report.html\n")
    snapshot.with_name("m_cube.h5").unlink()
    check_refusal(capsys, call("--measurement", snapshot, "--report"))


def test_durations():
    for text, seconds in {"10": 10, "10s": 10, "2min": 120, "1m30s": 90, "1.5h": 5400, "0.5": 0.5}.items():
        assert duration(text) == seconds


@pytest.mark.parametrize(
    "argv",
    [
        ["--measurement"], ["--measurement", "m.h5", "--solver", "magic"],
        ["--measurement", "m.h5", "--num-bands", "many"], ["--measurement", "m.h5", "--budget", "soon"],
        ["--measurement", "m.h5", "--budget", "0s"], ["--measurement", "m.h5", "--no-such-option"],
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_line(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        program(argv)
    err = capsys.readouterr().err
    assert caught.value.code == 2 and err.count("\n") == 1 and err.startswith("reconstruct.py: error: ")


def test_nothing_to_reconstruct(capsys):
    check_refusal(capsys, program([]))
    check_refusal(capsys, program(["--mask", "mask.mat", "snapshot.mat"]))


def test_the_mean_band_alone_is_compared(tmp_path, capsys):
    content = scene()
    mean = content.pop("cube").mean(0)
    path = write_h5(tmp_path / "m.h5", {"step": STEP}, mean_band=mean, **content)
    assert call(path, "--solver", "gap-tv") == 0
    found = re.search(r"mean-band PSNR ([\d.]+) dB", capsys.readouterr().out)
    cube, _ = read_cube(tmp_path / "m_cube.h5")
    error = np.square(cube.mean(0).clip(0, 1) - mean).mean()
    assert found and float(found[1]) == pytest.approx(-10 * np.log10(error), abs=0.1)
