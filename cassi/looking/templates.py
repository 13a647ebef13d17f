"""Templates of pages and texts, in `page/` beside this file; those of pages escape text from the input."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined


def page_of(template: str, content: Mapping[str, object]) -> str:
    """A template of `page/` with its content; in HTML, text from the input is escaped."""
    return _templates().get_template(template).render(content)


@cache
def _templates() -> Environment:
    blocks = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    made = Environment(loader=FunctionLoader(page_part), autoescape=lambda name: str(name).endswith(".html"), **blocks)  # type: ignore[arg-type]
    made.globals["policy"] = policy_of
    return made


def page_part(name: str) -> str:
    """The text of a file in `page/`."""
    return files("cassi.looking").joinpath("page", name).read_text("utf-8")


def policy_of(script: str = "") -> str:
    """A policy that allows only this script, by its hash, and no requests."""
    allowed = f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" if script else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
