"""What every test has: a real server of its own process, and a namespace of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from memable.embedded import TemporaryServer, stop_server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A server shared by the tests of this pytest process: MEMABLE_TEST_REDIS_URL, else a temporary one."""
    if given := os.environ.get("MEMABLE_TEST_REDIS_URL"):
        yield given
        return
    with TemporaryServer() as server:
        yield server.url


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses, nor this one the next time."""
    return f"test-{uuid4().hex}"


@pytest.fixture
def server() -> Iterator[TemporaryServer]:
    """A server for this test alone, to kill and restart: what it has acknowledged it keeps."""
    with TemporaryServer(appendonly=True) as server:
        yield server


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory to be, whose embedded server, which outlives its starter, is stopped at the end."""
    directory = tmp_path / "data"
    yield directory
    stop_server(directory)
