"""What the machine brings: names that are no UTF-8, no console, an encoding that lacks letters."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from messages import check_words

import cassi
from cassi.cli.main import main
from cassi.errors import writable_streams
from cassi.files.writing import plain_attributes
from cassi.looking.overview import write_index

QUICK = ("--solver", "gap-tv", "--iterations", "2")


def test_names_that_are_no_utf8_reach_every_output(tmp_path, monkeypatch):
    """And names that TeX would take for a formula. What the file says of its origin keeps the bytes as escapes."""
    monkeypatch.chdir(tmp_path)
    name, escaped = os.fsdecode(b"caf\xe9$x_$"), "caf\\udce9$x_$"
    assert main(["simulate", "--size", "32x32", "--num-bands", "4", "--output", f"{name}.h5"]) == 0
    assert main(["reconstruct", f"{name}.h5", *QUICK, "--report", f"{name}.html"]) == 0
    assert main(["compare", f"{name}_cube.h5", "--figure", f"{name}.png"]) == 0
    assert main(["reconstruct", f"{name}.h5", *QUICK, "--output", name, "--figures", "none"]) == 0
    with h5py.File(f"{name}_cube.h5") as file:
        assert file.attrs["input_name"] == f"{escaped}.h5"
    assert f"{escaped}.h5" in (tmp_path / f"{name}.html").read_text("utf-8")
    assert name in json.loads((tmp_path / name / "index.jsonl").read_text("utf-8")).values()
    assert f"{escaped}_cube.h5" in write_index(name).read_text("utf-8")
    assert len(list((tmp_path / f"{name}_figures").glob("*.png"))) >= 4
    assert plain_attributes({"note": "Ω\udcff"}) == {"note": "Ω\\udcff"}


@pytest.mark.parametrize("stream", [None, "closed", "ascii"])
def test_without_a_console(tmp_path, monkeypatch, stream):
    out, err = (io.TextIOWrapper(io.BytesIO(), "ascii") for _ in range(2))
    if stream == "closed":
        out.close(), err.close()
    monkeypatch.setattr(sys, "stdout", out if stream else None)
    monkeypatch.setattr(sys, "stderr", err if stream else None)
    path = str(tmp_path / "Größe Ω.h5")
    assert main(["simulate", "--size", "32x32", "--num-bands", "4", "--output", path]) == 0
    assert main(["reconstruct", path, *QUICK, "--figures", "none"]) == 0
    assert main(["reconstruct", f"{path}Ω"]) == 2
    cube = path.replace(".h5", "_cube.h5")
    assert main(["spectra", cube, "--at", "1,1"]) == (0 if stream == "ascii" else 2), "what was asked for is lost"
    mask = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
    y = cassi.CASSI.from_step(mask, 2, 4).forward(torch.ones(4, 16, 16))
    cassi.reconstruct(y, mask, num_bands=4, solver="gap-tv", num_iters=2, progress=True)
    assert main([]) == 0
    assert os.path.exists(str(tmp_path / "Größe Ω_cube.h5"))
    if stream == "ascii":
        assert out.errors == err.errors == "strict"  # as they were
        written = out.buffer.getvalue().decode("ascii"), err.buffer.getvalue().decode("ascii")
        assert "Gr\\xf6\\xdfe \\u03a9_cube.h5" in written[0] and "step 1 of " in written[1]
    else:
        assert (sys.stdout, sys.stderr) == ((out, err) if stream else (None, None))


def test_streams_that_work_are_left_alone(capsys):
    before = sys.stdout
    with writable_streams(), writable_streams():
        assert sys.stdout.isatty() == before.isatty() and sys.stdout.encoding == before.encoding
        print("Ω")
    assert sys.stdout is before and capsys.readouterr().out == "Ω\n"


class Full(io.StringIO):
    """Takes some bytes, then none."""

    def write(self, text):
        if self.tell() > 30:
            raise OSError(errno.ENOSPC, "full")
        return super().write(text)


def test_what_cannot_be_said_is_lost_and_ends_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", out := Full())
    monkeypatch.setattr(sys, "stderr", Full())
    path = str(tmp_path / "a.h5")
    assert main(["simulate", "--size", "32x32", "--num-bands", "4", "--output", path]) == 0
    (tmp_path / "night").mkdir()
    for name in "ab":
        shutil.copy(path, tmp_path / "night" / f"{name}.h5")
    for source in (path, str(tmp_path / "night")):
        assert main(["reconstruct", source, *QUICK, "--figures", "none"]) == 0
    made = {str(made.relative_to(tmp_path)) for made in tmp_path.rglob("*_cube.h5")}
    assert made == {"a_cube.h5", *(os.path.join("night_cubes", f"{name}_cube.h5") for name in "ab")}
    cube = str(tmp_path / "a_cube.h5")
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", lambda self: None)
    for words in (
        ["compare", cube],
        ["view", cube, "--no-browser"],
        ["spectra", cube, "--at", "1,1"],
        ["reconstruct", path, "--dry-run", "--output", "b.h5"],
    ):
        monkeypatch.setattr(sys, "stderr", said := io.StringIO())
        assert main(words) == 2, "what was asked for are words"
        check_words(said.getvalue().splitlines()[-1])
        assert "standard output: full" in said.getvalue()
    assert main(["spectra", cube, "--at", "1,1", "--csv", str(tmp_path / "a.csv"), "--quiet"]) == 0
    assert main(["reconstruct", "nothing"]) == 2
    assert 30 < out.tell() < 300


NOBODY = """
import os, sys
import cassi.cli.simulate  # once for the three, each of which is a fork and ends as a process does
from cassi.cli.main import program
for name in ("full", "closed", "gone"):
    if os.fork():
        assert os.wait()[1] == 0 and os.path.exists(f"{name}.h5"), name
        continue
    if name == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif name == "closed":
        os.close(1)
    else:
        reading, writing = os.pipe()
        os.close(reading), os.dup2(writing, 1)
    sys.argv[1:] = ["simulate", "--size", "32", "--num-bands", "4", "--output", f"{name}.h5"]
    program()
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_the_program_says_nothing_to_nobody(tmp_path):
    """Nor does Python, as it ends: a full disk, a closed stream, a reader that has gone."""
    done = subprocess.run([sys.executable, "-c", NOBODY], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if not line.startswith("step ")]


@pytest.mark.parametrize("count", ["--num-bands", "--shots"])
def test_simulate_reads_masks_in_the_axes_of_their_format(tmp_path, count):
    """Fewer rows than masks, and as many columns: the number of bands or shots tells."""
    masks = np.random.default_rng(0).random((6, 4, 5)).astype(np.float32)
    scipy.io.savemat(tmp_path / "m.mat", {"mask": masks.transpose(1, 2, 0)})
    np.savez(tmp_path / "m.npz", mask=masks)
    more = ["--num-bands", "3", "--step", "0"] if count == "--shots" else ["--step", "0"]
    for name in ("m.mat", "m.npz"):
        out = str(tmp_path / f"{name}{count}.h5")
        assert main(["simulate", "--mask", str(tmp_path / name), count, "6", *more, "--output", out]) == 0
        with h5py.File(out) as file:
            found = file["mask"][:]
        assert np.array_equal(found.reshape(masks.shape), masks)


ELSEWHERE = """
import multiprocessing.context, os, signal, sys, warnings
import distributed, filelock, h5py, hypothesis, matplotlib, numba, platformdirs.unix, psutil, pytest, scipy.ndimage
import selenium, tifffile, torch, xdist  # these look for themselves which system it is

for module, names in (
    (os, "fork register_at_fork sched_getaffinity getuid geteuid uname mkfifo"),
    (signal, "SIGKILL SIGALRM SIGUSR1 setitimer"),
):
    for name in names.split():
        vars(module).pop(name, None)
for kind in ("fork", "forkserver"):
    multiprocessing.context._concrete_contexts.pop(kind, None)
sys.modules |= dict.fromkeys(("fcntl", "resource", "termios", "pwd"))
warnings.filterwarnings("error", category=EncodingWarning, module=r"cassi\\b")
"""
COMMANDS = """
from cassi.cli.main import main
for words in (
    "simulate --size 32x32 --num-bands 4 --frames 2 --output f.h5",
    "reconstruct f.h5 --solver gap-tv --iterations 2 --output many",
    "simulate --size 32x32 --num-bands 4 --output a.h5",
    "reconstruct a.h5 --solver gap-tv --iterations 2 --report --figure-format svg",
    "compare a_cube.h5 leaf.csv --at 9,9,3 --csv b.csv --figure b.pdf",
    "simulate --bench bench --size 64x64",
    "calibrate bench",
):
    assert main(words.split()) == 0, words
from cassi.cli.cluster import num_cores
assert num_cores() >= 1
"""


@pytest.mark.long
def test_a_system_that_lacks_what_windows_lacks(tmp_path):
    """Without POSIX's modules and calls, and with an encoding stated for each text file: commands run, and all tests
    can at least be collected there. Paths, locks and the end of processes on a real Windows are not seen by this."""
    (tmp_path / "leaf.csv").write_text("nm;R\n400;0,1\n700;0,3\n", encoding="utf-8")
    root = Path(__file__).parents[1]
    collect = f"sys.exit(pytest.main(['--collect-only', '-q', '--rootdir', {str(root)!r}, {str(root / 'tests')!r}]))"
    program = ELSEWHERE + COMMANDS + collect
    paths = os.pathsep.join(str(root / folder) for folder in ("", "tests", "scripts"))
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", program], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
