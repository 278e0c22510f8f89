"""A key that has a stream's name and is none (somebody else wrote there) stops its own workflow, and no other."""

from __future__ import annotations

import pytest
import redis

from memable import App, Context, Engine
from memable.embedded import TemporaryServer
from memable.keys import Keys
from memable.runtime import intake

app = App()


@app.workflow("one")
async def one(ctx: Context) -> str:
    return "one"


@app.workflow("other")
async def other(ctx: Context) -> str:
    return "other"


def stream(workflow: str) -> str:
    return Keys("memable", partitions=1).of(workflow, "1").stream


@pytest.mark.parametrize("when", ["before a worker starts", "while it runs"])
async def test_a_stream_that_is_none_keeps_no_other_from_being_read(
    server: TemporaryServer, admin: redis.Redis, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_FOREIGN_S", 0.05)
    if when == "before a worker starts":
        admin.set(stream("one"), "mine")
    async with Engine(app, url=server.url) as engine:
        assert await (await engine.invoke(other)).result(timeout=30) == "other"
        admin.set(stream("one"), "mine")
        for _ in range(3):
            assert await (await engine.invoke(other)).result(timeout=30) == "other"
        admin.delete(stream("one"))
        assert await (await engine.invoke(one)).result(timeout=30) == "one"


async def test_a_worker_whose_streams_are_all_none_waits_for_them(
    server: TemporaryServer, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_FOREIGN_S", 0.05)
    for name in ("one", "other"):
        admin.set(stream(name), "mine")
    async with Engine(app, url=server.url) as engine:
        admin.delete(stream("one"))
        assert await (await engine.invoke(one)).result(timeout=30) == "one"
        admin.delete(stream("other"))
