"""One page of results for all benchmarks: a run replaces its own section and leaves all else alone."""

from __future__ import annotations

import re
from pathlib import Path


def replace_section(page: Path, name: str, title: str, command: str, tables: str) -> None:
    """Put the tables of one benchmark into a page, between the comments that mark their place.

        <!-- begin speed -->
        ...
        <!-- end speed -->

    A page that has no such place gets one at its end, under a heading; a page that does not exist is made.

    Args:
        page: Markdown file.
        name: of the benchmark, as in the comments.
        title: the heading, where the page has no such place yet.
        command: what was run to make the tables.
        tables: Markdown.

    Raises:
        ValueError: the page has a beginning without an end, or a place twice.

    Example:
        >>> page = Path(tempfile.mkdtemp(), "results.md")
        >>> replace_section(page, "speed", "Speed", "python speed.py", "fast")
        >>> replace_section(page, "speed", "Speed", "python speed.py", "faster")
        >>> print(page.read_text())
        # Results
        <BLANKLINE>
        ## Speed
        <BLANKLINE>
        <!-- begin speed -->
        Made by `python speed.py`.
        <BLANKLINE>
        faster
        <!-- end speed -->
        <BLANKLINE>
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\nMade by `{command}`.\n\n{tables.strip()}\n{end}"
    text = page.read_text(encoding="utf-8") if page.exists() else "# Results\n"
    counts = text.count(begin), text.count(end)
    if counts not in ((0, 0), (1, 1)) or text.find(begin) > text.find(end):
        raise ValueError(f"{page}: expected one {begin} and one {end} after it, found {counts[0]} and {counts[1]}")
    if counts == (1, 1):
        text = re.sub(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: section, text, flags=re.DOTALL)
    else:
        text = f"{text.rstrip()}\n\n## {title}\n\n{section}\n"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
