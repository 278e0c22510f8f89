"""What the API reference needs of the docstrings: examples as code, and what pydantic knows of settings."""

from __future__ import annotations

import re
from typing import Any

import griffe

from memable import Settings

_EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> |\s*$).*\n?)*)+", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes docstrings after they were read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that was read."""
        field = Settings.model_fields.get(obj.name) if obj.path.startswith("memable.settings.Settings.") else None
        if field is not None and isinstance(obj, griffe.Attribute):
            obj.docstring = griffe.Docstring(f"{field.description}", parent=obj)
            obj.value = repr(field.default)
        elif obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its examples between fences: `>>>` at the start of a line is a quotation in Markdown."""
    return _EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
