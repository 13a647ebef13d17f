"""The documentation: its examples run, what it names exists, its pages build without a warning."""

import glob
import os
import pkgutil
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import write_h5
from scipy.io import savemat

import cassi.choice.automatic
import cassi.cli.simulate
import cassi.looking.figures
import cassi.sequence.neighbors
from cassi import CASSI, Record
from cassi.choice.stages import NonLocal, Tv
from cassi.cli.main import main
from cassi.files import write_measurement
from cassi.files.opening import SUFFIXES, WRITERS
from cassi.optics.measurement import Measurement
from cassi.settings import SOLVERS
from cassi.simulation.scene import procedural_scene

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language ("" without one), first line and text, and why it is not run, if it is not."""

    language: str
    line: int
    text: str
    not_run: str | None


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if line.startswith("```") and start is None:
            start = number
        elif line == "```" and start is not None:
            before = NOT_RUN.fullmatch(lines[start - 1].strip()) if start else None
            text = "\n".join(lines[start + 1 : number])
            language = lines[start][3:].strip()
            if not language and text.startswith(("python ", "cassi ")):
                language = "sh"
            yield Block(language, start + 2, text, before.group(1) if before else None)
            start = None
    assert start is None, f"{page.name}:{start}: a block without end"


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.fixture(scope="module")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files under the names the pages use: small snapshots of 28 bands."""
    folder = tmp_path_factory.mktemp("docs")
    wavelengths = np.linspace(450, 650, 28)
    scene = procedural_scene(24, 32, torch.from_numpy(wavelengths), generator=torch.Generator().manual_seed(0)).float()
    mask = (torch.rand(24, 32, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    A = CASSI.from_step(mask, step=2, num_bands=28)
    y = A.forward(scene)
    found = {"wavelengths": wavelengths, "cube": scene.numpy(), "source": "example.h5"}
    measurement = Measurement(y.numpy(), mask.numpy(), A.shifts, **found)
    stack = replace(measurement, y=torch.stack([y, 2 * y]).numpy(), cube=None)
    for name in ("data", "night7"):
        (folder / name).mkdir()
    write_measurement(folder / "data" / "example.h5", measurement)
    write_measurement(folder / "stack.h5", stack)
    savemat(folder / "snapshot.mat", {"meas": y.numpy()})
    savemat(folder / "mask.mat", {"mask": mask.numpy()})
    write_h5(folder / "mask.h5", mask=mask.numpy())
    for k in range(2):
        savemat(folder / "night7" / f"frame{k}.mat", {"meas": y.numpy() * (k + 1)})
    return folder


@contextmanager
def as_program(arguments: list[str]) -> Iterator[None]:
    """Arguments, signal handlers and threads as a program of its own would have them, and put back afterwards."""
    before = (
        sys.argv, [(one, signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM)], torch.get_num_threads(),
    )  # fmt: skip
    sys.argv = arguments
    try:
        yield
    finally:
        sys.argv = before[0]
        for one, handler in before[1]:
            signal.signal(one, handler)
        torch.set_num_threads(before[2])


def run_command(command: str) -> None:
    """A line as a shell would take it; the program runs here, which spares the imports."""
    words = [found for word in shlex.split(command, comments=True) for found in sorted(glob.glob(word)) or [word]]
    assert words[0] == "cassi", f"do not know how to run {command!r}"
    with as_program(words):
        code = main(words[1:])
    assert not code, f"{command!r} ended with exit code {code}"


def save_one_figure(figures, folder, save=cassi.looking.figures.save_figures, **settings) -> list[Path]:
    """The last of them, in few dots."""
    return save(dict([list(figures.items())[-1]]), folder, dpi=30)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_examples_run(page: Path, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, as a reader would who types them one after the other; the pages that come later find earlier files."""
    monkeypatch.chdir(small_data)
    # that the lines run is what is tested: one coarse figure, few iterations and a small bench do
    figures = cassi.looking.figures
    one = lambda data, caption="", look=None: {"srgb": figures.srgb(np.asarray(data.cube[:, :, :]), data.wavelengths)}  # noqa: E731
    monkeypatch.setattr(figures, "save_figures", save_one_figure)
    if page.stem != "looking-at-a-result":  # which calls it by name
        monkeypatch.setattr(figures, "figures_of", one)
    monkeypatch.setattr(cassi.cli.simulate, "BENCH_SIZE", (56, 56))
    monkeypatch.setattr(cassi.choice.automatic, "default_stages", lambda A, method: (Tv(6), ((NonLocal(0.5, 2),),)))
    monkeypatch.setattr(cassi.sequence.neighbors, "alternating_stages", lambda sigma, *noise: (NonLocal(sigma, 2),))
    for part in ("SINGLE_FRAME_ITERS", "MULTI_FRAME_ITERS"):
        monkeypatch.setattr(cassi.sequence.neighbors, part, 5)
    for old in [*small_data.glob("*cubes"), *small_data.glob("data/*_cube.h5")]:
        if page.stem != "looking-at-a-result" or old.parent.name != "data":
            subprocess.run(["rm", "-r", str(old)], check=True)
    if page.stem == "looking-at-a-result":
        run_command("cassi reconstruct data/example.h5 --figures none --overwrite --quiet")
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page):
        if block.not_run is not None:
            continue
        where = f"{page.name}:{block.line}"
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
        elif block.language == "sh":
            for command in block.text.replace("\\\n", " ").splitlines():
                try:
                    run_command(command)
                except AssertionError as error:
                    pytest.fail(f"{where}: {error}")
        else:
            assert block.language in ("", "text", "json", "yaml"), f"{where}: {block.language!r} is not run by any test"


def test_what_the_pages_name_exists() -> None:
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        names = re.findall(r"`(cassi(?:\.\w+)+)(?:\(\))?`|\]\[(cassi(?:\.\w+)+)\]|^::: (\S+)", text, re.MULTILINE)
        missing += [f"{name_of(page)}: {name}" for name in {"".join(found) for found in names} if not resolves(name)]
        for file, test in set(re.findall(r"`(tests/\w+\.py)(?:::(\w+))?`", text)):
            source = ROOT / file
            if not source.is_file() or (test and f"def {test}(" not in source.read_text(encoding="utf-8")):
                missing.append(f"{name_of(page)}: {file}::{test}")
        for file in set(re.findall(r"`((?:scripts|docs|data)/[\w/.-]+\.(?:py|h5|md))`", text)):
            if not (ROOT / file).exists() and "_cube" not in file:
                missing.append(f"{name_of(page)}: {file}")
    assert not missing


def resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason='the site needs MkDocs: pip install -e ".[docs]"')
    # signatures stay as they are written: Ruff would be started anew to format each
    program = "import sys; sys.modules['ruff'] = None; from mkdocs.__main__ import cli; cli()"
    command = [sys.executable, "-c", program, "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for page in PAGES:  # none is left out of the navigation
        address = name_of(page).removesuffix(".md").removesuffix("index").rstrip("/")
        assert f'href="{address}/"' in home or address == "", f"{page.name} is not in the navigation"
    fetched = re.findall(r'<(?:script|link(?! rel="canonical")|img)[^>]+(?:src|href)="(https?://[^"]+)"', home)
    assert fetched == []  # the pages need no network either
    cameras = (tmp_path / "site" / "api" / "cameras" / "index.html").read_text(encoding="utf-8")
    assert 'id="cassi.optics.protocol.Camera.forward"' in cameras
    assert "<blockquote>" not in cameras  # examples are code, not quotations


def test_tables_say_what_the_code_says() -> None:
    made = runpy.run_path(str(DOCS / "make_tables.py"))
    tables, found = made["tables"](), []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += [name for _, name, _ in made["SECTION"].findall(text)]
        assert made["filled"](text, tables) == text, f"{page.name}: run python docs/make_tables.py"
    assert sorted({*found} - {"statements"}) == sorted(tables)  # that one is compared in test_files_statements.py


def rows_of(page: str, head: str) -> list[str]:
    """The first cells of the table that begins so, names in backticks only."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith(head)) + 2
    rows = takewhile(lambda line: line.startswith("|"), lines[first:])
    return [name for line in rows for name in re.findall(r"`([^`]+)`", line.split("|")[1])]


def test_tables_with_words_of_their_own_leave_nothing_out() -> None:
    assert sorted(rows_of("choosing-a-solver.md", "| `--solver` |")) == sorted(SOLVERS)
    assert sorted(rows_of("choosing-a-solver.md", "| solver | PSNR")) == sorted(SOLVERS)
    source = Path(cassi.looking.figures.__file__).read_text(encoding="utf-8")
    body = source.partition("def figures_of(")[2].partition("\ndef ")[0]
    drawn = {*re.findall(r'made\["(\w+)"\]', body), *re.findall(r'^        "(\w+)": ', body, re.MULTILINE)}
    assert len(drawn) > 5 and set(rows_of("looking-at-a-result.md", "| figure |")) == drawn
    lines = (DOCS / "file-format.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1:3] for line in lines[: lines.index("## A measurement")] if line.startswith("| ")][1:]
    written = {suffix for cell in cells for suffix in re.findall(r"`(\.\w+)`", cell[0]) if cell[1].strip() != "-"}
    assert {suffix for cell in cells for suffix in re.findall(r"`(\.\w+)`", cell[0])} == SUFFIXES
    assert written == set(WRITERS)
    history = [name for name in rows_of("file-format.md", "| dataset |") if "history" in name or "/" not in name]
    assert [name.removeprefix("/history/") for name in history] == list(Record._fields)
    frames = [name.removesuffix("_*") for name in rows_of("own-camera.md", "| file | what") if name.endswith("_*")]
    assert frames == ["dark", "flat", "mask"]
