"""What a number set by hand is worth: the default solver with another value of it beside the default, as Markdown."""

from __future__ import annotations

import ast
import csv
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import numpy as np

# Constants are chosen on these, and judged on others.
SCENES = "clay", "fake_and_real_beers", "glass_tiles", "jelly_beans", "sponges", "watercolors"
NOISES: dict[str, float | None] = {"clean": None, "10,000 e": 1e4, "1,000 e": 1e3}
WORTH = 0.05  # [dB]; a number that is worth less is better left out


@dataclass(frozen=True)
class Change:
    """Another value of a constant of a module: `cassi.choice.stages.STRIDE`, or `...stages.NonLocal.MATCH`."""

    name: str
    value: str

    @classmethod
    def of(cls, text: str) -> Change:
        """From NAME=VALUE; ValueError for anything else, or a name that is no such constant."""
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ValueError(f"{text!r} is not of the form NAME=VALUE")
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"{value!r} is no plain value of Python") from error
        change = cls(name if name.startswith("cassi.") else f"cassi.{name}", value)
        change.replaced(Path(change.place[1]).read_text(encoding="utf-8"))
        return change

    @property
    def place(self) -> tuple[str, str, list[str]]:
        """Its module, that one's file, and the names within."""
        parts = self.name.split(".")
        for end in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:end])
            file = Path(__file__).parents[2].joinpath(*parts[:end]).with_suffix(".py")
            if file.is_file():
                return module, str(file), parts[end:]
        raise ValueError(f"there is no module {self.name!r}")

    def replaced(self, source: str) -> ast.Module:
        """The module with its value in place of the constant's."""
        tree = ast.parse(source)
        body: Sequence[ast.stmt] = tree.body
        *classes, name = self.place[2]
        for one in classes:
            body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == one), [])
        value = ast.parse(self.value, mode="eval").body
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and target.id == name:
                    node.value = value  # type: ignore[attr-defined]
                    return tree
                if isinstance(target, ast.Tuple) and isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                    for k, element in enumerate(target.elts):
                        if isinstance(element, ast.Name) and element.id == name:
                            node.value.elts[k] = value
                            return tree
        raise ValueError(f"there is no constant {self.name!r}")


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with constants changed; what imports them from there sees the new values."""

    changes: tuple[Change, ...] = ()

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        for change in self.changes:
            source = ast.unparse(ast.fix_missing_locations(change.replaced(source)))
        return compile(source, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules whose constants are changed."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        here = tuple(change for change in self.changes if change.place[0] == fullname)
        if not here:
            return None
        loader = _Loader(fullname, here[0].place[1])
        loader.changes = here
        return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


def start(changes: Sequence[Change]) -> None:
    """A process begins: nothing of the package is imported yet."""
    sys.meta_path.insert(0, _Finder(changes))


def solve(data: Path | None, scene: str, noise: str, size: int, quality: str) -> tuple[float, float]:
    """PSNR [dB] of the default solver on a window of a scene, and seconds."""
    import torch

    import cassi
    from cassi.looking.metrics import psnr
    from cassi.optics.detector import detect
    from cassi.simulation.camera import random_mask
    from cassi.simulation.scene import procedural_scene

    torch.set_num_threads(1)  # the two runs of a pair go on side by side
    if data is None:
        generator = torch.Generator().manual_seed(int(scene))
        cube = procedural_scene(size, size, np.linspace(450, 650, 28).tolist(), generator=generator)
        mask = random_mask(size, size, generator=generator)
    else:
        from benchmarks.side import window
        from cassi.files import read_measurement

        cube = window(data, scene, size)
        mask = torch.from_numpy(read_measurement(data / "kaist" / "scene01.h5").mask)[:size, :size].clone()
    y = cassi.CASSI.from_step(mask, 2, len(cube)).forward(cube)
    full_well = NOISES[noise]
    if full_well is not None:
        y = detect(y, full_well=full_well, read_noise=5.0, generator=torch.Generator().manual_seed(1)).y
    began = time.perf_counter()
    found = cassi.reconstruct(y, mask, num_bands=len(cube), camera="as-given", quality=quality)  # type: ignore[arg-type]
    return psnr(found.cube.clamp(0, 1), cube), time.perf_counter() - began


@dataclass(frozen=True)
class Pair:
    """A scene solved with the default and with a change: PSNR [dB] and seconds of each."""

    scene: str
    noise: str
    default: tuple[float, float]
    changed: tuple[float, float]

    @property
    def gain(self) -> float:
        """Of the default over the change [dB]."""
        return self.default[0] - self.changed[0]


def ablate(
    data: Path | None = None,
    *,
    changes: Sequence[str],
    size: int = 128,
    scenes: int = 6,
    noises: Sequence[str] = tuple(NOISES),
    quality: str = "default",
    output: Path | None = None,
    report: Callable[[str], None] = print,
) -> str:
    """Run the pairs and return a table: what the default is worth over each change by itself.

    Args:
        data: folder with kaist/scene01.h5 and cave_train/*.h5; painted scenes if None.
        changes: NAME=VALUE each, NAME the dotted name of a constant of a module.
        size: of the windows [pixel].
        scenes: how many.
        noises: some of `NOISES`.
        quality: of the runs.
        output: a CSV file that lines of the table are added to.
        report: called with one line of progress at a time.

    Raises:
        ValueError: a change that is none.
    """
    parsed = [Change.of(text) for text in changes]
    names = SCENES[:scenes] if data is not None else [str(k) for k in range(scenes)]
    context = multiprocessing.get_context("spawn")
    lines = ["| constant | value | default is better by [dB] | worst | best | +- | seconds, times |", "|---" * 7 + "|"]
    with ExitStack() as stack:

        def pool(change: Change) -> ProcessPoolExecutor:
            return stack.enter_context(
                ProcessPoolExecutor(1, mp_context=context, initializer=start, initargs=((change,),))
            )

        others, default = [pool(change) for change in parsed], stack.enter_context(ThreadPoolExecutor(1))
        pairs: dict[Change, list[Pair]] = {change: [] for change in parsed}
        for scene in names:
            for noise in noises:
                case = (data, scene, noise, size, quality)
                base = default.submit(solve, *case)
                runs = [other.submit(solve, *case) for other in others]
                for change, run in zip(parsed, runs, strict=True):
                    pair = Pair(scene, noise, base.result(), run.result())
                    pairs[change].append(pair)
                    report(f"{scene:20} {noise:9} {change.name}={change.value}: {pair.gain:+.3f} dB")
    rows = [[change.name.removeprefix("cassi."), change.value, *_cells(pairs[change])] for change in parsed]
    if output is not None:
        _append(output, rows)
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return f"{len(names)} scenes of {size} x {size} pixels, {', '.join(noises)}, {quality}\n\n" + "\n".join(lines)


def _cells(pairs: Sequence[Pair]) -> Iterator[str]:
    """Mean, least and greatest gain of the default, its standard error, and the change's share of the time."""
    gains = np.array([pair.gain for pair in pairs])
    error = float(gains.std(ddof=1)) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
    ratio = sum(pair.changed[1] for pair in pairs) / sum(pair.default[1] for pair in pairs)
    yield from (f"{value:+.3f}" for value in (gains.mean(), gains.min(), gains.max()))
    yield from (f"{error:.3f}", f"{ratio:.2f}")


def _append(path: Path, rows: Sequence[Sequence[str]]) -> None:
    header = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if header:
            writer.writerow(["constant", "value", "gain_db", "least_db", "most_db", "standard_error_db", "time_ratio"])
        writer.writerows(rows)
