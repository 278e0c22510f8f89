"""docs/redis-cli.md shows every key, and what its commands really print."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import subprocess
from urllib.parse import unquote, urlsplit

import pytest

from pages.redis_cli.aliases import Aliases
from pages.redis_cli.guide import PAGE, commands, layout, nothing, played
from pages.redis_cli.story import NAMESPACE, told
from pages.redis_cli.terminal import Line, Terminal, raw


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """An order of the story fails, as it should."""
    caplog.set_level(logging.CRITICAL)


async def test_the_commands_of_the_guide_print_what_it_says() -> None:
    text = PAGE.read_text("utf-8")
    assert await played(text) == text, "docs/redis-cli.md is out of date: run `python -m pages.redis_cli`"


def test_every_key_of_the_layout_has_a_section_with_a_command_that_reads_it() -> None:
    sections = re.split(r"^#+ (?=`ns:)", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    shown = {section.partition("`\n")[0].strip("`"): section for section in sections}
    assert shown.keys() == layout().keys()
    for name, section in shown.items():
        prefix = re.split(r"WF|LIFE|NAME|WORKER", name.replace("{p}", "{0}").replace("ns", NAMESPACE, 1))[0]
        assert any(prefix in command for command in commands(section)), name


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="the machine has no redis-cli")
async def test_redis_cli_itself_prints_the_same() -> None:
    text = PAGE.read_text("utf-8")
    async with told() as story, Terminal(story.url) as terminal:
        aliases = Aliases()
        await aliases.read(terminal, NAMESPACE)
        program = f"LC_ALL=C redis-cli -s '{unquote(urlsplit(story.url).path)}'"
        compared = 0
        for command in map(aliases.real, commands(text)):
            line = Line.parse(command)
            if line.comment:  # something happens meanwhile
                continue
            ours = await terminal.run(line, nothing)
            shell = program + command.removeprefix("redis-cli")
            theirs = await asyncio.to_thread(subprocess.check_output, shell, shell=True, text=True, timeout=60)
            shown = [[aliases.shown(each, line.words) for each in lines] for lines in (ours, theirs.splitlines())]
            assert shown[0] == shown[1], command
            compared += 1
    assert compared > 40


def test_what_the_terminal_cannot_do_is_refused() -> None:
    for text in ("rm -rf build", "redis-cli GET a | grep b", "redis-cli GET a | sort | sort | sort"):
        with pytest.raises(ValueError, match=re.escape(text)):
            Line.parse(text)


def test_replies_are_lines_as_redis_cli_prints_them_raw() -> None:
    assert list(raw([b"a", [1, None, [b"b\nc"]], []])) == ["a", "1", "", "b", "c", ""]
