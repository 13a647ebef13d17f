"""Write the tables of the documentation that say what the code says: options, names in files, wavelengths.

    python docs/make_tables.py

It also writes `cassi/keywords.py`, the typed keywords of `cassi.reconstruct`.

Each stands in its page between `<!-- table: NAME -->` and `<!-- end of table -->`; `tests/test_docs.py` compares.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from cassi.cli.examples import HELP
from cassi.cli.options import DEBUG, QUIET, TABLE
from cassi.files.container import NAMES as ROLES
from cassi.optics.wavelengths import PRESETS
from cassi.settings import Option, Settings

DOCS = Path(__file__).resolve().parent
SECTION = re.compile(r"(<!-- table: ([\w -]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
# What a measurement's file holds: names that are found, and layout as it is written.
PARTS = (
    ("measurement y", ROLES["measurement"], "(H, W') or (N, H, W')"),
    ("mask m", ROLES["mask"], "(H, W) or (C, H, W)"),
    ("shifts d_c", ROLES["shifts"], "(C,) [pixel]"),
    ("wavelengths", ROLES["wavelengths"], "(C,), as stated, or nm (micrometers below 10)"),
    ("truth", ROLES["truth"], "(C, H, W) or (N, C, H, W)"),
    ("true mean over bands", ROLES["mean band"], "(H, W)"),
    ("photograph (`--side`)", ROLES["photograph"], "(h, w) or (h, w, K)"),
    ("bad pixels", ROLES["bad pixels"], "(H, W'), nonzero is bad"),
    ("sensitivity of pixels", ROLES["sensitivity"], "(H, W'), divides the light"),
)


def tables() -> dict[str, str]:
    """Every table, by name."""
    return {"reconstruct": options("reconstruct"), "commands": commands(), "names": names(), "presets": presets()}


def options(command: str) -> str:
    """The options of a command, in the order and the words of its help, but for what they need and exclude."""
    lines = []
    for title, group in TABLE[command].items():
        lines += [f"\n**{title[0].upper()}{title[1:]}**\n\n"] if title else []
        for option in group:
            if option not in (QUIET, DEBUG):  # of every command, said once
                lines.append(f"- {typed(option)}: {option.help}\n")
    return "".join(lines).lstrip("\n")


def commands() -> str:
    """What the other commands do."""
    names = {command: "calibrate refine" if command == "refine" else command for command in TABLE}
    return "".join(f"- `cassi {names[command]}`: {HELP[command][0]}\n" for command in TABLE if command != "reconstruct")


def typed(option: Option) -> str:
    """An option with its value, as it is typed."""
    name = option.name if option.name.startswith("-") else ""
    value = (option.value or "|".join(option.choices or ())) + (" ..." if option.nargs in ("*", "+") else "")
    value = f"[{value}]" if option.nargs == "?" else value
    return f"`{f'{name} {value}'.strip()}`"


def names() -> str:
    """What is found in files, and under which names."""
    lines = []
    for what, (written, *others), layout in PARTS:
        also = f"; also {', '.join(f'`{name}`' for name in others)}" if others else ""
        lines.append(f"- **{what}**: `/{written}` {layout}{also}\n")
    return "".join(lines) + "- **attributes**: `unit`, `scale`, `gain`, `read_noise`, `mask_error`\n"


def presets() -> str:
    """Lists of wavelengths that have a name."""
    return "".join(
        f"- `{name}`: {len(nm)} bands, {nm[0]:g} to {nm[-1]:g} nm, {preset.source}\n"
        for name, preset in PRESETS.items()
        for nm in [preset.wavelengths]
    )


KEYWORDS = '''"""The typed keywords of `cassi.reconstruct`, as docs/make_tables.py writes them from `cassi.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch

    from cassi.choice.plan import Plan
    from cassi.files.spectrum_files import Spectrum
    from cassi.optics.measurement import Measurement
    from cassi.photograph.picture import SidePicture
    from cassi.priors.learned import LearnedPrior
    from cassi.self_calibration.found_camera import FoundCamera
    from cassi.settings import Array, Prior, Quality, Solver, Turn
    from cassi.types import PathLike


class Keywords(TypedDict, total=False):
    """See `cassi.settings.Settings`."""

{fields}
'''


def keywords() -> str:
    """The module `cassi.keywords`: type checkers know the settings by it."""
    lines = [f"    {one.name}: {one.type}" for one in dataclasses.fields(Settings)]
    return KEYWORDS.format(fields="\n".join(lines))


def filled(text: str, made: dict[str, str]) -> str:
    """A page with its tables."""
    return SECTION.sub(
        lambda found: f"{found[1]}\n{made[found[2]]}\n{found[3]}" if found[2] in made else found[0], text
    )


def main() -> None:
    made = tables()
    (DOCS.parent / "cassi" / "keywords.py").write_text(keywords(), encoding="utf-8")
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text, made), encoding="utf-8")


if __name__ == "__main__":
    main()
