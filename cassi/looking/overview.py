"""Results at a glance: small pictures with the main numbers, in a notebook or on the page of a folder."""

from __future__ import annotations

import base64
import io
import json
import os
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import numpy as np
from PIL import Image

from cassi.errors import InputError
from cassi.files.atomic import write_text
from cassi.files.frames import natural
from cassi.looking.color import cube_to_srgb
from cassi.looking.report_data import ReportData, read_report
from cassi.looking.report_page import escape_text, policy_of, thinned

MAX_SIDE = 192  # of a small picture [pixel]
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5rem auto; max-width: 1500px; padding: 0 1rem; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: 1.5rem 1rem; }
img { width: 100%; max-width: 12rem; display: block; border-radius: 6px; }
h2 { font-size: 1rem; margin: 0.4rem 0 0.1rem; overflow-wrap: anywhere; }
p { margin: 0; font-size: 0.875rem; } a { color: inherit; }
.bad { border-left: 5px solid #c62828; padding-left: 0.5rem; }
"""


def inline_html(data: ReportData) -> str:
    """A result as HTML for a notebook: small picture, size, numbers, and problems.

    It has no script, and text from the input is escaped.
    """
    return f'<div style="display: flex; gap: 1em">{_image(data)}<div>{_words(data)}</div></div>'


def write_index(folder: str | os.PathLike[str]) -> Path:
    """Write `index.html` into a folder of results: a small picture of each, its numbers, and whether it can be trusted.

    Results are the HDF5 files in the folder with a cube; of a stack the first is shown. Each card links to its report,
    if there is one, or to its file. Failed snapshots are listed with the reason, from `index.jsonl`. An older index is
    replaced.

    Raises:
        InputError: the folder has no result.
        OutputError: the page cannot be written.
    """
    place = Path(folder)
    cards, bad, methods = [], 0, Counter[str]()
    for path in sorted(place.glob("*.h5"), key=natural):
        try:
            data = read_report(path)
        except InputError:  # not a result: a measurement, a calibration
            continue
        bad += bool(data.problems())
        kind = ' class="bad"' if data.problems() else ""
        method = str(data.choice.get("prior") or data.choice.get("solver") or "")
        methods[method] += 1
        by = f"<p>{escape_text(method)}</p>" if method else ""
        cards.append(f"<article{kind}>{_image(data)}<h2>{_links(path)}</h2>{_words(data)}{by}</article>")
    if not cards:
        raise InputError(f"{place}: no result in it, expected HDF5 files with a cube")
    failed = _failures(place)
    cards += [
        f'<article class="bad"><h2>{escape_text(name)}</h2>'
        f'<p style="color: #c62828">failed: {escape_text(reason)}</p></article>'
        for name, reason in failed
    ]
    parts = [f"{len(cards) - len(failed)} results", f"{bad} of them not to be trusted" if bad else ""]
    summary = ", ".join(filter(None, [*parts, f"{len(failed)} failed" if failed else ""]))
    if len(methods) > 1:  # would mislead a comparison of frames
        listed = "; ".join(f"{count} by {method or 'an unknown method'}" for method, count in methods.most_common())
        summary += f". The method differs from snapshot to snapshot ({listed}): give --prior to compare them"
    html = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{escape_text(policy_of())}"><meta name="viewport" content="width=device-width">'
        f"<title>{escape_text(place.resolve().name)}</title><style>{_STYLE}</style>"
        f"<h1>{escape_text(place.resolve().name)}</h1><p>{escape_text(summary)}</p><main>{''.join(cards)}</main></html>"
    )
    index = place / "index.html"
    write_text(index, html)
    return index


def _links(path: Path) -> str:
    """The name of a result as a link to its report, if there is one, else to its file."""
    report = path.with_name(f"{path.stem.removesuffix('_cube')}_report.html")
    target = report if report.exists() else path
    return f'<a href="{quote(os.fsencode(target.name))}">{escape_text(path.name)}</a>'


def _failures(place: Path) -> list[tuple[str, str]]:
    """Names and reasons of failed snapshots, as recorded by the run."""
    try:
        lines = [json.loads(line) for line in (place / "index.jsonl").read_text(encoding="utf-8").splitlines()]
        return [(str(one["frame"]), str(one["reason"])) for one in lines if one.get("status") == "failed"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # no such run, or a file of another kind
        return []


def _image(data: ReportData) -> str:
    """The picture of a cube as an inline PNG."""
    small = thinned(data.cube, -(-max(data.cube.shape[1:]) // MAX_SIDE))
    file = io.BytesIO()
    colors = cube_to_srgb(small, data.wavelengths)
    Image.fromarray((255 * colors).round().astype(np.uint8)).save(file, "PNG")
    picture = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="the cube as a picture" src="data:image/png;base64,{picture}">'


def _words(data: ReportData) -> str:
    bands, height, width = data.cube.shape
    lines = [f"{bands} bands, {height} x {width} px", *(f"{name}: {value}" for name, value in data.numbers())]
    problems = "".join(f'<p style="color: #c62828">{escape_text(one)}</p>' for one in data.problems())
    return problems + "".join(f"<p>{escape_text(line)}</p>" for line in lines)
