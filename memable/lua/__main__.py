"""Prints README.md of this folder, made from the scripts' headers: `python -m memable.lua > memable/lua/README.md`."""

from __future__ import annotations

import sys

from memable.lua import Script, load, names

_HEAD = """\
# The state machine, script by script

Made from the headers by `python -m memable.lua`; a test compares. One script is one transition: nothing is ever half
done. A caller whose connection broke does not know whether its script ran, so it runs it again: each script recognises
that, and gives the answer that it gave, or would have given, the first time.

| script | promise | moves | answers | how a retry is recognised, and what it gets |
|---|---|---|---|---|
"""


def _cell(text: str) -> str:
    return text.replace("|", "·")


def _moves(script: Script) -> str:
    """To each status, from where."""
    targets = sorted({target for _, target in script.moves})
    return ", ".join(
        f"{' | '.join(sorted(source for source, to in script.moves if to == target))} → {target}" for target in targets
    )


def _row(script: Script) -> str:
    cells = (f"`{script.name}`", script.promise, _moves(script), script.returns, script.retry)
    return f"| {' | '.join(_cell(cell) for cell in cells)} |\n"


def table() -> str:
    """The page as it should be."""
    return _HEAD + "".join(_row(load(name)) for name in names())


if __name__ == "__main__":
    sys.stdout.write(table())
