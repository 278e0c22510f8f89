"""The command in this process, before a namespace that is each test's own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import memable
from memable import Client
from memable.cli.root import run
from tests.cli.command_line import AsyncCli, Cli, Ran, memable_worker
from tests.worker_process import WorkerProcess


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, redis_url: str, namespace: str) -> None:
    for name in [name for name in os.environ if name.startswith("MEMABLE_") and name != "MEMABLE_REDIS_SERVER"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MEMABLE_REDIS_URL", redis_url)
    monkeypatch.setenv("MEMABLE_NAMESPACE", namespace)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # rich tells a terminal by these, too
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """The command in this process: `main` does no more than exit with its code."""

    def call(*arguments: str) -> Ran:
        code = run(arguments)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture
async def acli(cli: Cli) -> AsyncCli:
    """The same beside a loop that runs."""

    async def call(*arguments: str) -> Ran:
        return await asyncio.to_thread(cli, *arguments)

    return call


@pytest.fixture
async def worker(tmp_path: Path, redis_url: str, namespace: str) -> AsyncIterator[WorkerProcess]:
    async with memable_worker(tmp_path, redis_url, namespace) as process:
        yield process


@pytest.fixture
async def client(redis_url: str, namespace: str) -> AsyncIterator[Client]:
    async with memable.connect(redis_url, namespace=namespace) as client:
        yield client
