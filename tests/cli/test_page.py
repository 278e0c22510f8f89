"""docs/cli.md: each command is run again, and prints what stands there; no command is left out."""

from __future__ import annotations

import re

from memable.cli.root import _COMMANDS
from pages.command_line.pictures import IMAGES
from pages.command_line.story import PAGE, blocks, normal, played


async def test_every_command_prints_what_the_page_says() -> None:
    text = PAGE.read_text("utf-8")
    shown, printed = blocks(text), blocks(await played(text))
    assert [normal(block) for block in printed] == [normal(block) for block in shown]


def test_the_page_has_every_command() -> None:
    assert set(re.findall(r"^### `memable (\w+)`$", PAGE.read_text("utf-8"), re.MULTILINE)) == set(_COMMANDS)


def test_the_pictures_show_what_the_screens_have_and_ask_nobody_for_anything() -> None:
    for name, words in (("watch", ["WORKER", "SLOTS", "WAITING", "OLDEST"]), ("show", ["ATTEMPTS", "TIME", "━"])):
        picture = (IMAGES / f"{name}.svg").read_text("utf-8")
        assert not re.findall(r"url\(\W*http", picture)
        for word in words:
            assert word in picture, (name, word)
