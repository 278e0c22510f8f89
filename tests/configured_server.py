"""A server that is started with files of deploy/."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from memable.connection import Endpoint
from memable.embedded import find_server


@contextmanager
def server_with(configuration: Path, directory: Path, *options: str, user: str = "") -> Iterator[Any]:
    """The hand of `user` on a server started with that file, and options that go before it; killed at the end.

    Its socket is `directory / "s"`: with a path that is short enough.
    """
    socket = directory / "s"
    socket.unlink(missing_ok=True)
    words = (configuration, "--dir", directory, "--port", "0", "--unixsocket", socket, "--logfile", directory / "log")
    process = subprocess.Popen([find_server().path, *words, *options], stdin=subprocess.DEVNULL)
    try:
        with Endpoint.from_url(f"unix://{user}{socket}").sync_client() as client:
            while True:
                assert process.poll() is None, (directory / "log").read_text()
                try:
                    client.ping()
                    break
                except redis.RedisError:  # not there yet, or loading
                    time.sleep(0.01)
            yield client
    finally:
        process.kill()
        process.wait()
