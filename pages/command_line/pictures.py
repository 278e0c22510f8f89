"""The pictures of `memable watch` and `show`, taken of three workers at work."""

from __future__ import annotations

import asyncio
import io
import re
from dataclasses import replace
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType

from memable import Client
from memable.cli.frames import screen
from memable.cli.timeline import drawn, look
from memable.cli.watch import Looker
from pages.command_line.story import PAGE, SHOWN_URL, Story, told, until

IMAGES = PAGE.parent / "images"
_WIDTH = 132
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Without fonts from elsewhere: whoever looks at a picture asks nobody for anything."""


async def draw(directory: Path = IMAGES) -> None:
    """Write both."""
    async with told("box-1", "box-2", "box-3", slots=20) as story:
        await _deliver(story)
        _save(directory / "show.svg", "memable show delivery/d1", await _shown(story.client))
        _save(directory / "watch.svg", "memable watch", await _watched(story))


async def _deliver(story: Story) -> None:
    client = story.client
    delivery = await client.invoke("delivery", [1, 2, 3, 4], id="d1", labels={"tenant": "acme"})

    async def waits() -> bool:
        known = await delivery.metadata()
        return known is not None and known.waiting_on == ["approval:v1"]

    await until(waits)
    await asyncio.sleep(0.6)
    await delivery.signal("approval:v1", True)
    await delivery.wait()


async def _shown(client: Client) -> RenderableType:
    return drawn(await look(client, "delivery", "d1"), _paper())


async def _watched(story: Story) -> RenderableType:
    client = story.client
    orders = [{"id": number, "amount": 2000 if number % 20 == 13 else 12} for number in range(40)]
    await client.invoke_many("order", orders, ids=[str(each["id"]) for each in orders])
    await until(story.is_quiet)
    await client.invoke("order", {"id": 100, "amount": 5}, id="100", delay=7200)
    await client.invoke_many("thumbnail", list(range(900)))
    looker = Looker(client)
    await looker.look()
    await asyncio.sleep(1.5)
    return screen(replace(await looker.look(), where=SHOWN_URL))


def _paper() -> Console:
    return Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")


def _save(file: Path, title: str, picture: RenderableType) -> None:
    paper = _paper()
    paper.print(picture)
    paper.save_svg(str(file), title=title, code_format=_FORMAT, unique_id=file.stem)
