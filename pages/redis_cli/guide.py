"""The guide, played again: its commands are run one after the other, and what they print is put below them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from memable import keys
from pages.redis_cli.aliases import Aliases
from pages.redis_cli.story import NAMESPACE, Story, told
from pages.redis_cli.terminal import PROMPT, Line, Terminal

PAGE = Path(__file__).parent.parent.parent / "docs" / "redis-cli.md"
_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^### `(ns:.+)`\n\n.*$", re.MULTILINE)
_MEANWHILE = re.compile(r"(?:meanwhile|after): ")


@dataclass(frozen=True)
class Row:
    """A row of the table in keys.py."""

    type: str
    content: str
    lifetime: str


def layout() -> Mapping[str, Row]:
    """Every key of a namespace, by its name in that table."""
    assert keys.__doc__
    rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in keys.__doc__.splitlines() if line[:3] == "| `"
    )
    return {name.strip("`"): Row(type, content, lifetime) for name, type, content, lifetime in rows}


def described(heading: re.Match[str]) -> str:
    """The heading of a key, and below it what the table says of it."""
    row = layout()[heading[1]]
    lifetime = "" if row.lifetime == "–" else f" Lifetime: {row.lifetime}."
    return f"### `{heading[1]}`\n\n**{row.type}**: {row.content}.{lifetime}"


async def played(text: str) -> str:
    """The guide as it must be."""
    parts = list[str]()
    at = 0
    async with told() as story, Terminal(story.url) as terminal:
        aliases = Aliases()
        await aliases.read(terminal, NAMESPACE)
        for block in _BLOCK.finditer(text):
            parts += [text[at : block.start()], await _block(block[0], story, terminal, aliases)]
            at = block.end()
    return _HEADING.sub(described, "".join([*parts, text[at:]]))


async def _block(block: str, story: Story, terminal: Terminal, aliases: Aliases) -> str:
    lines = list[str]()
    for prompt in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
        line = Line.parse(aliases.real(prompt))
        act = story.acts[_MEANWHILE.sub("", line.comment)] if _MEANWHILE.match(line.comment) else nothing
        printed = await terminal.run(line, act)
        if act is not nothing:
            await aliases.read(terminal, NAMESPACE)
        lines += [PROMPT + prompt, *(aliases.shown(each, line.words) for each in printed)]
    return "".join(f"{line}\n" for line in lines)


async def nothing() -> None:
    """Happens meanwhile."""


def commands(text: str) -> Iterator[str]:
    """Each line behind a prompt."""
    for block in _BLOCK.findall(text):
        yield from re.findall(r"^\$ (.*)$", block, re.MULTILINE)
