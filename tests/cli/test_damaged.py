"""What is damaged in Redis keeps nobody from looking at the rest, and is told in a line: never a traceback."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

import memable
from memable import App, Context, Engine, Settings
from memable.keys import Keys
from memable.state import Status
from tests.cli.command_line import AsyncCli, Ran

pytestmark = pytest.mark.disorderly
app = App()
JUNK = b"\xff\x1b[2J[red]"


@app.workflow("pick")
async def pick(ctx: Context) -> str:
    return await ctx.step("take:v1", str.upper, "taken")


@app.workflow("batch")
async def batch(ctx: Context) -> list[str]:
    return await ctx.fan_out("picks:v1", [None], pick)


@app.workflow("nap")
async def nap(ctx: Context) -> None:
    await ctx.timer("rest:v1", 3600)


@pytest.fixture
async def there(redis_url: str, namespace: str) -> AsyncIterator[tuple[Any, Keys]]:
    async with Engine(app, url=redis_url, settings=Settings(namespace=namespace)) as engine:
        for id in ("sound", "hurt"):
            await (await engine.invoke(pick, id=id)).wait()
        await (await engine.invoke(batch, id="b")).result()
        await (await engine.invoke(nap, id="n")).wait()
    async with redis.asyncio.Redis.from_url(redis_url) as hand:
        yield hand, Keys(namespace, partitions=1)


LOOKS = [["list"], ["show", "pick/hurt"], ["show", "batch/b"], ["watch", "--once"], ["watch", "pick/hurt", "--once"],
         ["workers"], ["stats"], ["schedules"], ["doctor"]]  # fmt: skip


async def look_everywhere(acli: AsyncCli) -> dict[str, Ran]:
    seen = {" ".join(each): await acli(*each) for each in LOOKS}
    for what, ran in seen.items():
        assert ran.code in (0, 1, 2), (what, ran)
        assert "Traceback" not in ran.err
        shown = ran.out + ran.err
        assert all(char == "\n" or char.isprintable() for char in shown), (what, shown)
    return seen


@pytest.mark.parametrize(
    "field", ["status", "created_us", "completed_ms", "attempt", "message", "labels", "parent", "version", "worker"]
)
async def test_a_damaged_instance_hides_no_other(there: tuple[Any, Keys], acli: AsyncCli, field: str) -> None:
    hand, keys = there
    await hand.hset(keys.of("pick", "hurt").instance, field, JUNK)
    seen = await look_everywhere(acli)
    assert "pick/sound" in seen["list"].out
    assert {seen[each].code for each in ("list", "watch --once", "stats", "workers", "schedules")} == {0}


async def test_a_damaged_instance_is_named(
    there: tuple[Any, Keys], acli: AsyncCli, caplog: pytest.LogCaptureFixture
) -> None:
    hand, keys = there
    await hand.hset(keys.of("pick", "hurt").instance, "status", "lost")
    (await acli("show", "pick/hurt")).is_refused("instance pick/hurt", "damaged")
    await acli("list")
    assert "instance pick/hurt is left out" in caplog.text


@pytest.mark.parametrize(
    "record", [JUNK, b"", b"{", b"[]", b"null", b'{"state":"completed"', b'{"state":"failed","error":{"class":"os"}}']
)
async def test_a_damaged_record_is_told_with_its_instance(
    there: tuple[Any, Keys], acli: AsyncCli, record: bytes
) -> None:
    hand, keys = there
    await hand.hset(keys.of("pick", "hurt").steps, "take:v1", record)
    await look_everywhere(acli)
    (await acli("show", "pick/hurt")).is_refused("journal of pick/hurt", "damaged")


@pytest.mark.parametrize("score", [1, 1e300, float("inf"), float("-inf")])
async def test_what_stands_in_an_index_and_is_no_instance_hides_none(
    there: tuple[Any, Keys], acli: AsyncCli, score: float
) -> None:
    hand, keys = there
    one = keys.of("pick", "sound")
    for status in Status:
        await hand.zadd(one.index(status), {JUNK: score})
    for index in (keys.partitions[0].timers, keys.partitions[0].expiry):
        await hand.zadd(index, {JUNK: score, b"pick/\xff/k": score, b"nap/n/other": score})
    seen = await look_everywhere(acli)
    assert "pick/sound" in seen["list"].out
    assert "nap/n" in seen["schedules"].out


async def test_names_that_are_no_text_are_shown_escaped(there: tuple[Any, Keys], acli: AsyncCli) -> None:
    hand, keys = there
    stream = keys.of("pick", "x").stream
    await hand.hset(keys.workflows, JUNK, JUNK)
    await hand.zadd(keys.workers, {JUNK: time.time() * 1000})
    await hand.set(keys.partitions[0].leader, JUNK)
    await hand.xadd(stream, {"i": JUNK})
    await hand.xreadgroup("workers", JUNK, {stream: ">"})
    seen = await look_everywhere(acli)
    assert r"\xff" in seen["workers"].out


@pytest.mark.parametrize(
    "said",
    [
        JUNK,
        b"[]",
        b'{"host":null,"pid":1e400,"version":[],"up_s":1,"slots":0,"in_use":1,"workflows":5}',
        b'{"host":"h","pid":1,"version":"x","up_s":1e308,"slots":-3,"in_use":1,"workflows":"abc"}',
        b'{"host":"h","pid":1,"version":"x","up_s":1,"slots":3,"in_use":1,"workflows":["x"],"clock_s":"z"}',
        b'{"host":"h","pid":1,"version":"x","up_s":1,"slots":3,"in_use":1,"workflows":["x"],"clock_s":1e308}',
    ],
)
async def test_a_worker_may_say_anything(there: tuple[Any, Keys], acli: AsyncCli, said: bytes) -> None:
    hand, keys = there
    await hand.zadd(keys.workers, {"w1": time.time() * 1000})
    await hand.set(keys.worker("w1"), said)
    seen = await look_everywhere(acli)
    assert "w1" in seen["workers"].out


@pytest.mark.parametrize("field", ["_created:picks:v1", "_total:picks:v1", "_workflow:picks:v1"])
async def test_a_damaged_family_is_told(there: tuple[Any, Keys], acli: AsyncCli, field: str) -> None:
    hand, keys = there
    await hand.hset(keys.of("batch", "b").family, field, JUNK)
    await look_everywhere(acli)
    (await acli("show", "batch/b")).is_refused("family of batch/b", "damaged")


async def test_a_key_of_another_type_hides_no_other(
    there: tuple[Any, Keys], acli: AsyncCli, caplog: pytest.LogCaptureFixture
) -> None:
    hand, keys = there
    await hand.delete(keys.of("pick", "hurt").instance)
    await hand.rpush(keys.of("pick", "hurt").instance, "x")
    seen = await look_everywhere(acli)
    assert "pick/sound" in seen["list"].out
    assert "pick/hurt is left out" in caplog.text


@pytest.mark.parametrize("field", ["layout", "partitions"])
async def test_a_damaged_namespace_is_told(there: tuple[Any, Keys], acli: AsyncCli, field: str) -> None:
    hand, keys = there
    await hand.hset(Keys.meta(keys.namespace), field, JUNK)
    seen = await look_everywhere(acli)
    seen["list"].is_refused()
    assert seen["doctor"].code == 1


@pytest.mark.parametrize("field", ["life", "parent", "waiting", "entry", "lease", "ends_ms", "labels"])
async def test_the_doctor_goes_on(there: tuple[Any, Keys], acli: AsyncCli, field: str) -> None:
    hand, keys = there
    await hand.hset(keys.workflows, "pick", JUNK)
    await hand.hset(keys.of("batch", "b").instance, mapping={field: JUNK, "status": "running"})
    family = await hand.hgetall(keys.of("batch", "b").family)
    (child,) = [name async for name in hand.scan_iter(f"{keys.namespace}:*:instance:pick/b~*")]
    await hand.hset(child, mapping={field: JUNK, "status": "suspended"})
    await hand.hset(keys.of("batch", "b").family, mapping={**family, "_living": "1"})
    for options in ((), ("--fix",)):
        ran = await acli("doctor", *options)
        assert (ran.code, ran.err) == (1, "")
        assert "leftovers" in ran.out  # the last of the checks
        assert all(char == "\n" or char.isprintable() for char in ran.out)


async def test_a_client_is_told_of_damage_as_of_any_trouble_with_redis(there: tuple[Any, Keys], redis_url: str) -> None:
    hand, keys = there
    await hand.hset(keys.of("pick", "hurt").instance, mapping={"status": "lost", "life": JUNK})
    async with memable.connect(redis_url, namespace=keys.namespace) as client:
        for asked in (client.get_metadata, client.cancel, client.delete):
            with pytest.raises(memable.StorageError):
                await asked("pick", "hurt")
        with pytest.raises(memable.StorageError):
            await client.get("pick", "hurt").wait()
