"""Write the tables of the documentation that say what the code says: options, names in files, wavelengths.

    python docs/make_tables.py

Each stands in its page between `<!-- table: NAME -->` and `<!-- end of table -->`; `tests/test_docs.py` compares.
"""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path

from cassi.cli.main import COMMANDS
from cassi.files.names import BAD_PIXELS, MASK, MEAN_BAND, MEASUREMENT, SHIFTS, TRUTH, WAVELENGTHS
from cassi.optics.wavelengths import PRESETS

DOCS = Path(__file__).resolve().parent
SECTION = re.compile(r"(<!-- table: ([\w -]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
# What a measurement's file holds: names that are found, layout as it is written, unit.
PARTS = (
    ("measurement y", MEASUREMENT, "(H, W') or (N, H, W')", "see Counts"),
    ("mask m", MASK, "(H, W) or (C, H, W)", "transmission, >= 0"),
    ("shifts d_c", SHIFTS, "(C,), or the attribute `step`", "pixel"),
    ("wavelengths", WAVELENGTHS, "(C,)", "nm; values below 10 are micrometers"),
    ("truth", TRUTH, "(C, H, W) or (N, C, H, W)", "as y"),
    ("true mean over bands", MEAN_BAND, "(H, W)", "as y"),
    ("bad pixels", BAD_PIXELS, "(H, W'), nonzero is bad", ""),
)
SUBCOMMANDS = {name.replace("-", "_"): name for name in COMMANDS if name != "benchmark"} | {
    "refine": "calibrate refine"
}


def tables() -> dict[str, str]:
    """Every table, by name."""
    made = {name: options(module, name) for module, name in SUBCOMMANDS.items()}
    return made | {"names": names(), "presets": presets()}


def options(module: str, name: str) -> str:
    """The options of a subcommand, in the order and the words of its help."""
    parser: argparse.ArgumentParser = import_module(f"cassi.cli.{module}").parser(f"cassi {name}")
    rows = []
    for action in parser._actions:
        if action.dest in ("help", "version"):
            continue
        words = action.metavar or (
            None if action.nargs == 0 else "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
        )
        words = None if action.nargs == 0 else " ".join(words) if isinstance(words, tuple) else words
        several = " ..." if action.nargs in ("*", "+") else ""
        words = f"[{words}]" if action.nargs == "?" else words
        called = ", ".join(f"`{option}`" for option in action.option_strings)
        value = "" if words is None else f"`{words}{several}`"
        rows.append((f"{called} {value}".strip(), (action.help or "") % vars(action)))
    return table(("option", "what it does"), rows)


def names() -> str:
    """What is found in files, and under which names."""
    rows = [
        (what, f"`/{known[0]}` {layout}", ", ".join(f"`{name}`" for name in known[1:]), unit)
        for what, known, layout, unit in PARTS
    ]
    rows.append(("attributes", "`unit`, `scale`, `gain`, `read_noise`, `num_bands`, `step`", "", "see Counts"))
    head = ("what", "HDF5 layout, as `write_measurement` writes it", "also found under (any case, any group)", "unit")
    return table(head, rows)


def presets() -> str:
    """Lists of wavelengths that have a name."""
    rows = [
        (f"`{name}`", f"{len(one.wavelengths)}: {one.wavelengths[0]:g} ... {one.wavelengths[-1]:g} nm", one.source)
        for name, one in PRESETS.items()
    ]
    return table(("preset", "bands", "from"), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """In Markdown."""
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("|  |", "| |").replace("|  |", "| |")


def filled(text: str, made: dict[str, str]) -> str:
    """A page with its tables."""
    return SECTION.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n{found[3]}", text)


def main() -> None:
    made = tables()
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text, made), encoding="utf-8")


if __name__ == "__main__":
    main()
