"""What the README shows is run."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

from memable.cli.root import run
from tests.markdown import README, blocks, run_example
from tests.worker_process import WorkerProcess

EXAMPLES = blocks(README, "python")


async def test_the_first_example_prints_what_its_comments_say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_example(EXAMPLES[0], README.name, capsys, monkeypatch)


@pytest.fixture
async def shop(tmp_path: Path, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The README's three files, where they can be imported; Redis is where the tests have it."""
    for name in [name for name in os.environ if name.startswith("MEMABLE_") and name != "MEMABLE_REDIS_SERVER"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MEMABLE_NAMESPACE", namespace)
    monkeypatch.setenv("MEMABLE_REDIS_URL", redis_url)
    for code in EXAMPLES[1:]:
        file = tmp_path / code.partition("\n")[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(code.replace('"redis://localhost:6379"', repr(redis_url)))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shop", "shop.workflows", "shop.web", "shop.worker"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def started(shop: Path, url: str, namespace: str) -> WorkerProcess:
    """`arq shop.worker.WorkerSettings`."""
    command = ("-m", "arq", "shop.worker.WorkerSettings")
    return WorkerProcess(shop, url, *command, MEMABLE_NAMESPACE=namespace, PYTHONPATH=str(shop))


async def test_the_three_files_work_together(shop: Path, redis_url: str, namespace: str) -> None:
    async with started(shop, redis_url, namespace):
        workflows, web = import_module("shop.workflows"), import_module("shop.web")
        assert await web.place_and_approve(workflows.Order(id="42")) == "charge of 42"


async def test_the_commands_do_what_their_comments_say(
    shop: Path, redis_url: str, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = (block for block in blocks(README, "sh") if block.startswith("memable worker"))
    commands = [shlex.split(line, comments=True) for line in shown.splitlines()]
    assert [words[:2] for words in commands[:2]] == [["memable", "worker"], ["memable", "dev"]]
    printed = {}
    async with started(shop, redis_url, namespace):
        for words in commands[3:]:
            assert words[0] == "memable"
            assert await asyncio.to_thread(run, words[1:]) == 0
            printed[words[1]] = capsys.readouterr().out
    assert "order/order-42 suspended: approval:v1" in printed["invoke"]
    assert "order/order-42 got approval:v1" in printed["signal"]
    assert "charge:v1" in printed["show"]
    assert "order/order-42" in printed["resume"]
