"""For the API pages: docstrings of this package say `Example:` where the parser expects `Examples:`, and may begin a
line with a comparison, which Markdown takes for a quotation."""

import re

import griffe


class Examples(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"(^\s*|: )>(?=[= ])", r"\1\\>", text, flags=re.MULTILINE)
