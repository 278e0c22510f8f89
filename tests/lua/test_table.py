"""The table of scripts that people read is the one that the headers make."""

from __future__ import annotations

from importlib.resources import files

from memable.lua.__main__ import table


def test_the_table_beside_the_scripts_is_what_their_headers_say() -> None:
    assert files("memable.lua").joinpath("README.md").read_text("utf-8") == table(), (
        "run: python -m memable.lua > memable/lua/README.md"
    )
