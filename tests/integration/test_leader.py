"""What the leader does beside timers: it sweeps, though not too soon, and it trims the listing."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from memable import App, Client, Context, Engine, Settings, Status
from memable.announcement import announcement
from memable.codec import Codec
from memable.connection import Endpoint, ScriptConnection
from memable.embedded import TemporaryServer
from memable.entering import enter
from memable.holding import Held
from memable.keys import DEADLINE_KEY, GROUP, Keys, child_id
from memable.runtime.leader import Leader
from memable.runtime.observing import Observer
from memable.store import Store, new_token
from tests.integration.connecting import connected
from tests.resting import hasten
from tests.worker_process import TOO_LONG_S, until

LEASE_S = 60.0


async def order(ctx: Context) -> None: ...


async def abandoned(connection: ScriptConnection, store: Store) -> Held:
    """An instance whose worker has not renewed for ten leases."""
    keys = store.keys.of("order", "42")
    await store.invoke(keys, new_token(), b"null")
    await connection.command("XGROUP", "CREATE", keys.stream, GROUP, 0)
    reply = await connection.command("XREADGROUP", "GROUP", GROUP, "w1", "STREAMS", keys.stream, ">")
    held = Held(keys, reply[0][1][0][0].decode(), new_token())
    await store.claim(held, "w1")
    idle_ms = round(LEASE_S * 10_000)
    await connection.command("XCLAIM", keys.stream, GROUP, "w1", 0, held.entry, "IDLE", idle_ms, "JUSTID")
    app = App()
    workflow = app.register("order", order)
    await connection.command("HSET", store.keys.workflows, "order", announcement(workflow, Codec(max_payload_bytes=1)))
    return held


class Told(Observer):
    """What a leader tells those who watch it."""

    def __init__(self) -> None:
        self.recoveries: list[tuple[str, bool]] = []
        self.fired: list[tuple[str, float]] = []

    def timer_fired(self, workflow: str, late_s: float) -> None:
        self.fired.append((workflow, late_s))

    def recovered(self, workflow: str, *, has_failed: bool) -> None:
        self.recoveries.append((workflow, has_failed))


async def test_nobody_sweeps_before_having_been_connected_for_a_lease(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection:
        store = Store(connection, await enter(connection, Endpoint.from_url(redis_url), namespace, None))
        (partition,) = store.keys.partitions
        held = await abandoned(connection, store)
        told = Told()
        leader = Leader(
            store,
            connection,
            partition,
            "me",
            lease_s=LEASE_S,
            max_recoveries=5,
            default_retention_ms=round(1e9),
            observer=told,
        )

        async def status_after_a_round(connected_for_s: float | None) -> Status:
            since_s = None if connected_for_s is None else time.monotonic() - connected_for_s
            leader._swept_s, connection.connected_at_s = 0.0, since_s
            await leader._once()
            return Status((await connection.command("HGET", held.keys.instance, "status")).decode())

        # after an outage everything looks idle, and those who hold it must have had the time to renew
        assert await status_after_a_round(0.0) is Status.RUNNING
        assert await status_after_a_round(LEASE_S / 2) is Status.RUNNING
        assert await status_after_a_round(None) is Status.RUNNING
        assert not told.recoveries
        assert await status_after_a_round(LEASE_S + 1) is Status.QUEUED
        assert told.recoveries == [("order", False)]
        await store.resign(partition, leader._token)


async def test_what_has_outlived_its_retention_leaves_the_listing(redis_url: str, namespace: str) -> None:
    app = App()
    app.register("order", order)
    settings = Settings(redis_url=redis_url, namespace=namespace, retention=0.001)
    async with Engine(app, url=redis_url, settings=settings) as engine:
        await (await engine.invoke("order", id="42", labels={"tenant": "acme"})).wait()
    (partition,) = Keys(namespace, partitions=1).partitions
    left = (partition.index("order", Status.COMPLETED), partition.label("order", "tenant=acme"), partition.expiry)
    async with connected(redis_url) as connection, Engine(app, url=redis_url, settings=settings):

        async def is_forgotten() -> bool:
            return not await connection.command("EXISTS", *left)

        await until(is_forgotten, "the leader of a new worker trims at once")


async def test_a_worker_that_stops_lets_another_lead_at_once(redis_url: str, namespace: str) -> None:
    app = App()
    app.register("order", order)
    (partition,) = Keys(namespace, partitions=1).partitions
    async with connected(redis_url) as connection:

        async def is_led() -> bool:
            return bool(await connection.command("EXISTS", partition.leader))

        async with Engine(app, url=redis_url, settings=Settings(namespace=namespace, lease=LEASE_S)):
            await until(is_led, "a leader")
        assert not await is_led()


async def test_a_leader_that_may_not_sweep_yet_gives_way_to_one_that_may(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as mine, connected(redis_url) as others:
        keys = await enter(mine, Endpoint.from_url(redis_url), namespace, None)
        (partition,) = keys.partitions
        held = await abandoned(mine, Store(mine, keys))
        new, old = (
            Leader(
                Store(connection, keys),
                connection,
                partition,
                name,
                lease_s=LEASE_S,
                max_recoveries=5,
                default_retention_ms=round(1e9),
            )
            for connection, name in ((mine, "new"), (others, "old"))
        )
        others.connected_at_s = time.monotonic() - LEASE_S - 1
        await new._once()
        assert await mine.command("GET", partition.leader) == f"{new._token} new".encode()
        assert (new.is_leading, old.is_leading) == (True, False)
        await old._once()
        assert await mine.command("GET", partition.leader) == old._token.encode()
        assert await mine.command("HGET", held.keys.instance, "status") == b"queued"
        await new._once()
        assert await mine.command("GET", partition.leader) == old._token.encode()
        assert (new.is_leading, old.is_leading) == (False, True)
        await old._store.resign(partition, old._token)


async def test_how_late_a_timer_fired_is_told(redis_url: str, namespace: str) -> None:
    app = App()
    workflow = app.register("order", order)
    async with Client(redis_url, app=app, namespace=namespace) as client, connected(redis_url) as connection:
        store = Store(connection, await enter(connection, Endpoint.from_url(redis_url), namespace, None))
        (partition,) = store.keys.partitions
        await client.invoke(workflow, delay=1_000)
        await hasten(client, 1_500)
        told = Told()
        leader = Leader(
            store, connection, partition, "me", lease_s=LEASE_S, max_recoveries=5, default_retention_ms=1, observer=told
        )
        await leader._once()
        ((name, late_s),) = told.fired
        assert name == "order"
        assert 499 < late_s < 500 + TOO_LONG_S


async def test_what_was_lost_outside_of_memable_is_mended_and_told(
    redis_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.workflow("patient")
    async def patient(ctx: Context) -> str:
        await ctx.timer("rest", 0.5)
        return "rested"

    settings = Settings(redis_url=redis_url, namespace=namespace)
    (partition,) = Keys(namespace, partitions=1).partitions
    async with connected(redis_url) as connection:
        async with Engine(app, url=redis_url, settings=settings) as engine:
            waiting = await engine.invoke(patient, id="waiting")
            await waiting.wait(TOO_LONG_S)
        await connection.command("DEL", partition.timers)
        async with Client(redis_url, app=app, namespace=namespace) as client:
            queued = await client.invoke(patient, id="queued")
            await connection.command("XTRIM", partition.stream("patient"), "MAXLEN", 0)
            async with Engine(app, url=redis_url, settings=settings):
                assert await client.get(patient, "waiting").result(TOO_LONG_S) == "rested"
                assert await queued.result(TOO_LONG_S) == "rested"
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "patient/waiting: a timer of it was lost" in told
    assert "patient/queued: its stream entry was lost" in told


async def test_a_leader_that_was_stopped_itself_lets_the_others_renew_first(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(redis_url) as connection:
        store = Store(connection, await enter(connection, Endpoint.from_url(redis_url), namespace, None))
        (partition,) = store.keys.partitions
        leader = Leader(
            store, connection, partition, "me", lease_s=LEASE_S, max_recoveries=5, default_retention_ms=round(1e9)
        )
        connection.connected_at_s = time.monotonic() - 2 * LEASE_S
        await leader._once()
        held = await abandoned(connection, store)  # as everything looks after a whole machine was frozen
        monotonic = time.monotonic
        monkeypatch.setattr("memable.runtime.leader.time.monotonic", lambda: monotonic() + 10 * LEASE_S)
        await leader._once()
        monkeypatch.undo()
        assert await connection.command("HGET", held.keys.instance, "status") == b"running"
        await store.resign(partition, leader._token)


async def evalsha_calls(connection: ScriptConnection) -> int:
    stats = (await connection.command("INFO", "commandstats")).decode()
    found = re.search(r"cmdstat_evalsha:calls=(\d+)", stats)
    return int(found[1]) if found else 0


@pytest.mark.disorderly
@pytest.mark.parametrize("how", ["of the wrong type", "half lost"])
async def test_one_broken_instance_neither_keeps_the_others_from_being_mended_nor_the_leader_spinning(
    server: TemporaryServer, namespace: str, how: str
) -> None:
    app = App()
    app.register("order", order)
    keys = Keys(namespace, partitions=1)
    broken, lost = keys.of("order", "broken"), keys.of("order", "lost")
    settings = Settings(redis_url=server.url, namespace=namespace)
    async with connected(server.url) as connection:
        await connection.command("ZADD", broken.index(Status.QUEUED), 1, "broken")
        if how == "of the wrong type":
            await connection.command("SET", broken.instance, "no hash")
        else:
            await connection.command("HSET", broken.instance, "status", "suspended")
        async with Client(server.url, app=app, namespace=namespace) as client:
            invocation = await client.invoke("order", id="lost")
            await connection.command("XTRIM", lost.stream, "MAXLEN", 0)
            async with Engine(app, url=server.url, settings=settings):
                await invocation.result(TOO_LONG_S)
                before = await evalsha_calls(connection)
                await asyncio.sleep(1)
                assert await evalsha_calls(connection) - before < 100


@pytest.mark.disorderly
async def test_what_is_announced_of_one_workflow_and_cannot_be_read_keeps_none_from_being_recovered(
    redis_url: str, namespace: str
) -> None:
    async with connected(redis_url) as connection:
        store = Store(connection, await enter(connection, Endpoint.from_url(redis_url), namespace, None))
        (partition,) = store.keys.partitions
        held = await abandoned(connection, store)
        await connection.command("HSET", store.keys.workflows, "order", "no announcement")
        leader = Leader(
            store, connection, partition, "me", lease_s=LEASE_S, max_recoveries=5, default_retention_ms=round(1e9)
        )
        connection.connected_at_s = time.monotonic() - 2 * LEASE_S
        await leader._once()
        assert await connection.command("HGET", held.keys.instance, "status") == b"queued"
        await store.resign(partition, leader._token)


@pytest.mark.disorderly
@pytest.mark.parametrize(
    ("field", "value"), [("parent", b"\xff"), ("parent", b"nobody"), ("deadline_ms", b"soon")], ids=str
)
async def test_a_damaged_instance_whose_deadline_is_over_keeps_none_from_being_recovered(
    redis_url: str, namespace: str, field: str, value: bytes
) -> None:
    async with connected(redis_url) as connection:
        store = Store(connection, await enter(connection, Endpoint.from_url(redis_url), namespace, None))
        (partition,) = store.keys.partitions
        held = await abandoned(connection, store)
        damaged = store.keys.of("order", child_id("p", "life", "k", 0))  # only a child's parent is asked for
        await connection.command("HSET", damaged.instance, "status", "suspended", field, value)
        await connection.command("ZADD", damaged.timers, 1, f"{damaged.name}/{DEADLINE_KEY}")
        await connection.command("HSET", store.keys.workflows, b"\xff", "of nobody")
        leader = Leader(
            store, connection, partition, "me", lease_s=LEASE_S, max_recoveries=5, default_retention_ms=round(1e9)
        )
        connection.connected_at_s = time.monotonic() - 2 * LEASE_S
        await leader._once()
        assert await connection.command("HGET", held.keys.instance, "status") == b"queued"
        due = await connection.command("ZSCORE", damaged.timers, f"{damaged.name}/{DEADLINE_KEY}")
        assert float(due) > 1, "it would keep the leader spinning"
        await store.resign(partition, leader._token)
