"""Waiting for instances: no wake-up is lost, nothing goes back, whatever happens to the connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

import memable
from memable import Client, Status, WorkflowState
from memable.codec import to_json
from memable.connection import ScriptConnection
from memable.embedded import TemporaryServer
from memable.reading import parse_event
from memable.watching import _Inbox
from tests.hand_worker import HandRun, HandWorker, point
from tests.integration.applications import app, maybe, ping
from tests.worker_process import TOO_LONG_S


@pytest.fixture
async def worker(redis_url: str, namespace: str) -> AsyncIterator[HandWorker]:
    async with HandWorker(redis_url, namespace) as worker:
        yield worker


@pytest.fixture
async def client(redis_url: str, namespace: str, worker: HandWorker) -> AsyncIterator[Client]:
    async with memable.connect(redis_url, app=app, namespace=namespace) as client:
        yield client


def shown(states: list[WorkflowState]) -> list[str]:
    return [str(state) for state in states]


class Watched:
    """Collects the states of an instance, and tells when one has come."""

    def __init__(self, states: AsyncIterator[WorkflowState]) -> None:
        self.seen: list[WorkflowState] = []
        self._came = asyncio.Condition()
        self.task = asyncio.create_task(self._collect(states))

    async def _collect(self, states: AsyncIterator[WorkflowState]) -> None:
        async for state in states:
            async with self._came:
                self.seen.append(state)
                self._came.notify_all()

    async def until(self, text: str) -> None:
        async with self._came:
            await self._came.wait_for(lambda: text in shown(self.seen))


class TestSubscribe:
    @pytest.mark.spec("subscribe", "invocation")
    async def test_states_come_in_order_and_end_with_the_terminal_one(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(ping, id="1")
        watched = Watched(handle.states())
        await watched.until("queued")
        run = await worker.take("ping")
        await run.set_status("half-way")
        await run.park(point("go"), message='waiting for "go" / ü')
        await handle.signal("go")
        run = await worker.take("ping")
        await run.complete("pong", message="half-way")
        await watched.task
        assert shown(watched.seen) == [
            "queued",
            "running",
            "in progress: half-way",
            'suspended: waiting for "go" / ü',
            "queued",
            "in progress: half-way",
            "completed: half-way",
        ]
        assert watched.seen[3].key == "go"
        assert shown([state async for state in client.subscribe("ping", "1")]) == ["completed: half-way"]

    @pytest.mark.spec("state")
    async def test_the_first_of_several_points_is_the_key(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(ping, id="1")
        watched = Watched(handle.states())
        await watched.until("queued")
        await (await worker.take("ping")).park(point("first"), point("second"))
        await watched.until("suspended: first")
        assert await handle.wait() == WorkflowState(Status.SUSPENDED, None, "first")
        watched.task.cancel()

    async def test_an_unknown_instance_is_not_found(self, client: Client) -> None:
        with pytest.raises(memable.InstanceNotFound):
            await anext(aiter(client.subscribe(ping, "1")))

    @pytest.mark.spec("subscribe-reconnect")
    async def test_it_survives_the_loss_of_its_connection(self, server: TemporaryServer, namespace: str) -> None:
        async with (
            HandWorker(server.url, namespace) as worker,
            memable.connect(server.url, app=app, namespace=namespace) as client,
        ):
            watched = [Watched((await client.invoke(ping, id=str(i))).states()) for i in range(5)]
            runs = []
            for each in watched:
                await each.until("queued")
                runs.append(await worker.take("ping"))
                await each.until("running")
            for round in range(3):
                with redis.Redis.from_url(server.url) as admin:
                    admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                # said while nobody can hear it
                for run in runs:
                    await run.set_status(f"round {round}")
                for each in watched:
                    await each.until(f"in progress: round {round}")
            with redis.Redis.from_url(server.url) as admin:
                admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            for run in runs:
                await run.complete("pong", message="round 2")
            for each in watched:
                await each.task
                assert shown(each.seen) == [
                    "queued",
                    "running",
                    *(f"in progress: round {round}" for round in range(3)),
                    "completed: round 2",
                ]

    @pytest.mark.spec("subscribe-reconnect")
    async def test_it_survives_a_crash_of_the_server(
        self, server: TemporaryServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("memable.client.GIVE_UP_S", 0.5)
        monkeypatch.setattr("memable.watching._AGAIN_S", 0.05)
        async with (
            HandWorker(server.url, namespace) as worker,
            memable.connect(server.url, app=app, namespace=namespace) as client,
        ):
            handle = await client.invoke(ping, id="1")
            waiting = asyncio.create_task(handle.result())
            watched = Watched(handle.states())
            await watched.until("queued")
            server.kill()
            # a call of its own gives up …
            with pytest.raises(memable.StorageError):
                await client.get_metadata(ping, "1")
            server.restart()
            # … and those who wait do not
            await (await worker.take("ping")).complete("pong")
            assert await waiting == "pong"
            await watched.task
            assert shown(watched.seen)[-1] == "completed"

    @pytest.mark.spec("subscribe")
    async def test_a_state_that_redis_has_lost_is_not_shown_again(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(ping, id="1")
        watched = Watched(handle.states())
        await watched.until("queued")
        run = await worker.take("ping")
        await run.set_status("one")
        await watched.until("in progress: one")
        keys = run.held.keys
        # as after a failover to a replica that was behind
        await worker.command("HSET", keys.instance, "version", 1, "message", "", "status", "queued")
        [inbox] = client._online().watcher._inboxes
        inbox.put(None)
        # a round trip that lets the watcher ask, and one that is answered after what it has asked
        await worker.command("PING")
        await client.get_metadata(ping, "1")
        await run.set_status("two")
        await run.complete("pong")
        await watched.task
        assert shown(watched.seen) == ["queued", "running", "in progress: one", "in progress: two", "completed"]

    async def test_what_somebody_else_publishes_does_no_harm(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(ping, id="1")
        watched = Watched(handle.states())
        await watched.until("queued")
        for noise in (b"", b"{", b"[]", b'{"version":"9"}', b'{"version":9,"status":"odd"}'):
            await worker.command("PUBLISH", worker.keys.of("ping", "1").events, noise)
        await (await worker.take("ping")).complete("pong")
        await watched.task
        assert shown(watched.seen) == ["queued", "running", "completed"]


class TestWait:
    @pytest.mark.spec("wait")
    async def test_it_returns_the_state_at_rest(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(ping, id="1")
        waiting, result = asyncio.create_task(handle.wait()), asyncio.create_task(handle.result())
        run = await worker.take("ping")
        await run.park(point("go"))
        assert (await waiting).status is Status.SUSPENDED
        assert (await handle.wait(timeout=0)).status is Status.SUSPENDED
        await handle.signal("go")
        waiting = asyncio.create_task(handle.wait())
        await (await worker.take("ping")).fail("ValueError", "no")
        assert str(await waiting) == "failed: ValueError: no"
        with pytest.raises(memable.WorkflowFailed, match="ValueError: no"):  # it has waited for the end
            await result

    @pytest.mark.spec("result-timeout")
    async def test_a_timeout_leaves_the_instance_alone(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(ping, id="1")
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError, match=f"ping/1 is not at rest after {timeout} s"):
                await handle.wait(timeout)
            with pytest.raises(TimeoutError, match=f"ping/1 is not over after {timeout} s"):
                await handle.result(timeout=timeout)
        with pytest.raises(ValueError, match="timeout must be a finite number"):
            await handle.wait(float("nan"))
        await (await worker.take("ping")).complete("pong")
        assert await handle.result(timeout=TOO_LONG_S) == "pong"

    @pytest.mark.disorderly
    async def test_an_instance_that_goes_while_it_is_waited_for_is_not_found(
        self, client: Client, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("memable.watching.REREAD_S", 0.01)
        handle = await client.invoke(ping, id="1")
        watched = Watched(handle.states())
        await watched.until("queued")
        await worker.command("DEL", worker.keys.of("ping", "1").instance)
        with pytest.raises(memable.InstanceNotFound):
            await watched.task
        with pytest.raises(memable.InstanceNotFound):
            await handle.wait()

    @pytest.mark.disorderly
    async def test_a_state_that_no_event_tells_is_read_slowly(
        self, client: Client, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("memable.watching.REREAD_S", 0.01)
        handle = await client.invoke(ping, id="1")
        waiting = asyncio.create_task(handle.result())
        fields = ("status", "completed", "version", 9, "output", b'"pong"')
        await worker.command("HSET", worker.keys.of("ping", "1").instance, *fields)
        assert await waiting == "pong"


class TestManyAtOnce:
    async def finish_all(self, worker: HandWorker, number: int) -> None:
        async def finish(run: HandRun) -> None:
            await run.complete(int(run.claim.input))

        finishing = [asyncio.create_task(finish(await worker.take("maybe"))) for _ in range(number)]
        await asyncio.gather(*finishing)

    async def test_no_wake_up_is_lost(self, client: Client, worker: HandWorker) -> None:
        number = 200
        handles = [await client.invoke(maybe, i, id=str(i)) for i in range(number)]

        async def result(position: int) -> Any:
            # begun at every moment of the others' ends
            for _ in range(position % 50):
                await asyncio.sleep(0)
            return await handles[position].result()

        finishing = asyncio.create_task(self.finish_all(worker, number))
        assert await asyncio.gather(*(result(i) for i in range(number))) == list(range(number))
        await finishing
        assert client._online().watcher._inboxes == set()

    async def test_many_may_wait_for_one(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(maybe, 7, id="1")
        waiting = [asyncio.create_task(handle.result()) for _ in range(50)]
        cancelled = [asyncio.create_task(handle.result()) for _ in range(50)]
        await handle.metadata()
        for task in cancelled:
            task.cancel()
        await (await worker.take("maybe")).complete(7)
        assert await asyncio.gather(*waiting) == [7] * 50

    async def test_a_result_costs_three_commands(
        self, server: TemporaryServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        ask = ScriptConnection._ask

        def spy(connection: ScriptConnection, words: Any, script: Any) -> Any:
            if connection is online.connection:
                asked.append(script.name if script else words[0])
            return ask(connection, words, script)

        admin: Any
        with redis.Redis.from_url(server.url, decode_responses=True) as admin:
            async with (
                HandWorker(server.url, namespace) as worker,
                memable.connect(server.url, app=app, namespace=namespace) as client,
            ):
                online = client._online()
                monkeypatch.setattr(ScriptConnection, "_ask", spy)
                for number in range(2):
                    waiting = asyncio.create_task((await client.invoke(ping, id=str(number))).result())
                    run = await worker.take("ping")
                    while asked != ["invoke", "HMGET"]:
                        await asyncio.sleep(0)
                    if number:
                        await run.complete("pong")
                        assert await waiting == "pong"
                    else:
                        await run.fail("ValueError", "no")
                        with pytest.raises(memable.WorkflowFailed, match="ValueError: no"):
                            await waiting
                    while admin.pubsub_numsub(run.held.keys.events)[0][1]:
                        await asyncio.sleep(0)
                    assert asked == ["invoke", "HMGET"]
                    asked.clear()
            stats = admin.info("commandstats")
        assert (stats["cmdstat_subscribe"]["calls"], stats["cmdstat_unsubscribe"]["calls"]) == (2, 2)


def test_an_event_is_cut_without_being_parsed_anew() -> None:
    state = WorkflowState(Status.COMPLETED, 'said ,"output":1 and ,"error":2', None)
    message = to_json(state.message)
    for output in (b"[]", b'{"a":1e400,"output":[{}]}', b"12345678901234567890123", b'",\\"output\\":"'):
        seen = parse_event(b'{"version":7,"status":"completed","message":%b,"output":%b}' % (message, output))
        assert seen is not None
        assert (seen.version, seen.state, seen.output, seen.error) == (7, state, output, None)
    failed = parse_event(b'{"version":7,"status":"failed","message":%b,"error":{"output":1,"error":2}}' % message)
    assert failed is not None
    assert (failed.output, failed.error) == (None, b'{"output":1,"error":2}')
    bare = parse_event(b'{"version":1,"status":"queued"}')
    assert bare is not None
    assert (bare.state, bare.output, bare.error) == (WorkflowState(Status.QUEUED), None, None)


async def test_a_slow_reader_keeps_the_newest_events() -> None:
    inbox = _Inbox()
    for number in range(1000):
        inbox.put(b"%d" % number)
    heard = [await inbox.get(0) for _ in range(256)]
    assert heard[-1] == b"999"
    assert await inbox.get(0) is None
