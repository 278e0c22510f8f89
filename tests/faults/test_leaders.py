"""Leaders that die, sleep or are two: timers fire once and never early, and what the dead held is taken over once."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memable import App, Client, Context, Engine, Invocation, Settings
from memable.keys import InstanceKeys, Partition
from memable.lua import Answer
from memable.store import Store
from tests.faults.orphans import abandon, staged
from tests.lua.stage import Stage
from tests.resting import rests_at
from tests.worker_process import TOO_LONG_S, WorkerProcess, until

LEASE_S = 1.0
FIRE, RECOVER = "fire_timer", "recover"
MOST_LATE = timedelta(seconds=20)
"""50 ms are promised while a leader lives, 5 s after its death: to whom has a machine of their own."""

Gate = Callable[[Store, str], Awaitable[None]]
"""Called with the store of a leader, and what that is about to fire or recover."""

app = App()


@app.workflow("alarm")
async def alarm(ctx: Context, when: datetime) -> None:
    await ctx.sleep_until("ring:v1", when)


@app.workflow("order")
async def order(ctx: Context) -> str:
    return await ctx.step("charge:v1", lambda: "charged", returns=str)


def engine(url: str, namespace: str) -> Engine:
    return Engine(app, url=url, settings=Settings(namespace=namespace, lease=LEASE_S))


def spread(count: int, first_s: float, last_s: float) -> list[float]:
    return [first_s + (last_s - first_s) * number / count for number in range(count)]


async def set_alarms(client: Client, seconds: Sequence[float]) -> list[Alarm]:
    """An instance for each of `seconds`, at rest, with a timer that is due so long after they all are."""
    far = datetime.now(UTC) + timedelta(hours=1)
    invocations = [await client.invoke(alarm, far) for _ in seconds]
    await asyncio.gather(*(rests_at(each, "ring:v1") for each in invocations))
    # only now: what is due before it waits says nothing of its leader
    now = datetime.now(UTC)
    alarms = [Alarm(each, now + timedelta(seconds=after_s)) for each, after_s in zip(invocations, seconds, strict=True)]
    online = client._online()
    for each in alarms:
        keys = online.store.keys.of("alarm", each.invocation.instance_id)
        due_ms = each.due.timestamp() * 1000
        await online.connection.command("ZADD", keys.timers, "XX", due_ms, f"{keys.name}/ring:v1")
        await online.connection.command("PUBLISH", keys.partition.wake, "")
    return alarms


class Alarm(NamedTuple):
    invocation: Invocation[None]
    due: datetime

    async def lateness(self, client: Client) -> timedelta:
        """How long after its deadline the timer has fired, by the clock of Redis, which is that of this machine."""
        await self.invocation.result(TOO_LONG_S)
        [ring] = await client.steps(alarm, self.invocation.instance_id)
        assert ring.completed_at is not None
        return ring.completed_at - self.due


async def latest(client: Client, alarms: Sequence[Alarm]) -> timedelta:
    """How late they were; an `AssertionError` if one was early, or its instance was run for more than one firing."""
    late = await asyncio.gather(*(each.lateness(client) for each in alarms))
    assert min(late) >= timedelta(0)
    assert max(await runs(each.invocation for each in alarms)) <= 2
    return max(late)


async def runs(invocations: Iterable[Invocation[Any]]) -> Counter[int]:
    """How many instances have been run how often."""
    found = await asyncio.gather(*(invocation.metadata() for invocation in invocations))
    return Counter(each.attempt for each in found if each is not None)


async def orphaned_orders(client: Client, stage: Stage, count: int) -> list[Invocation[str]]:
    orders = [await client.invoke(order) for _ in range(count)]
    await abandon(stage, "order")
    return orders


async def leader_of(stage: Stage) -> bytes | None:
    """The token of who leads."""
    (partition,) = stage.keys.partitions
    said: bytes | None = await stage.command("GET", partition.leader)
    return None if said is None else said.split()[0]


async def settled_leader(stage: Stage) -> bytes:
    """The token of who leads, when it has led for so long that it gives way to nobody."""
    (partition,) = stage.keys.partitions

    async def is_settled() -> bool:
        said: bytes | None = await stage.command("GET", partition.leader)
        return said is not None and len(said.split()) == 1

    await until(is_settled, "a leader that is not new")
    token = await leader_of(stage)
    assert token is not None
    return token


@asynccontextmanager
async def leading_process(directory: Path, stage: Stage, url: str, namespace: str) -> AsyncIterator[WorkerProcess]:
    """A worker that leads, and runs none of the workflows of this file: its death ends nothing but its lead."""
    environment = {"MEMABLE_NAMESPACE": namespace, "MEMABLE_LEASE": str(LEASE_S)}
    async with WorkerProcess(directory, url, **environment) as worker:
        await settled_leader(stage)
        yield worker


async def test_timers_fire_when_due_and_never_early(redis_url: str, namespace: str) -> None:
    async with engine(redis_url, namespace) as only:
        late = await latest(only, await set_alarms(only, spread(100, 0.3, 1.5)))
        assert late < MOST_LATE


async def test_timers_that_are_due_when_the_leader_is_killed_fire_once_and_soon(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        staged(redis_url, namespace) as stage,
        leading_process(tmp_path, stage, redis_url, namespace) as leader,
        engine(redis_url, namespace) as other,
    ):
        its_token = await leader_of(stage)
        alarms = await set_alarms(other, [0.1])
        await alarms[0].invocation.result(TOO_LONG_S)
        assert await leader_of(stage) == its_token
        # some are due before it dies, most before there is another, some after that
        alarms += await set_alarms(other, spread(60, 0, 3))
        leader.process.kill()
        late = await latest(other, alarms)
        assert late < MOST_LATE

        async def another_leads() -> bool:
            return await leader_of(stage) not in (its_token, None)

        await until(another_leads, "another leader")


async def test_a_leader_that_was_stopped_for_longer_than_its_lease_hurts_nothing_when_it_returns(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        staged(redis_url, namespace) as stage,
        leading_process(tmp_path, stage, redis_url, namespace) as leader,
        engine(redis_url, namespace) as other,
    ):
        its_token = await leader_of(stage)
        alarms = await set_alarms(other, spread(60, 0.5, 3))
        await alarms[0].invocation.result(TOO_LONG_S)
        leader.process.send_signal(signal.SIGSTOP)

        async def another_leads() -> bool:
            return await leader_of(stage) not in (its_token, None)

        await until(another_leads, "another leader")
        # its rounds meet timers that are due while it wakes, and those of the new leader
        alarms += await set_alarms(other, spread(60, 0.05, 1.55))
        leader.process.send_signal(signal.SIGCONT)
        late = await latest(other, alarms)
        assert late < MOST_LATE
        # it takes new work
        greeting = await other.invoke("greet", "you")
        assert await greeting.result(TOO_LONG_S) == "hello you"


class Answers:
    """What leaders did, and how the script answered; each call waits at the `gate` before it is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
        self.given: Counter[tuple[str, Answer]] = Counter()
        self._gate = gate
        for name in (FIRE, RECOVER):
            self._watch(monkeypatch, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        method = getattr(Store, name)

        async def watched(store: Store, keys: InstanceKeys, which: str, **named: Any) -> Any:
            await self._gate(store, f"{keys.name} {which}")
            answer = await method(store, keys, which, **named)
            self.given[name, answer] += 1
            return answer

        monkeypatch.setattr(Store, name, watched)

    async def are(self, expected: dict[tuple[str, Answer], int]) -> None:
        """Return when that many were given; an `AssertionError` if they are others."""
        await until(lambda: self.given.total() >= sum(expected.values()), "the answers to all leaders")
        assert self.given == expected


async def overdue_alarms(client: Client, stage: Stage, count: int) -> None:
    """Instances that wait for timers which are all due already when a leader next looks."""
    for each in [await client.invoke(alarm, datetime.now(UTC) + timedelta(hours=1)) for _ in range(count)]:
        assert (await each.wait(TOO_LONG_S)).key == "ring:v1"
        await stage.make_due(stage.keys.of("alarm", each.instance_id), "ring:v1")


@pytest.mark.parametrize("what", [FIRE, RECOVER])
async def test_a_leader_that_stops_in_the_middle_of_its_work_finds_it_done_when_it_returns(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    asked, may_go_on, count = set[str](), asyncio.Event(), 30

    async def gate(store: Store, subject: str) -> None:
        if store is first._runtime._store and not may_go_on.is_set():
            asked.add(subject)
            await may_go_on.wait()

    answers = Answers(monkeypatch, gate)
    async with staged(redis_url, namespace) as stage, Client(redis_url, app=app, namespace=namespace) as client:
        if what == RECOVER:
            await orphaned_orders(client, stage, count)
        first = engine(redis_url, namespace)
        async with first:
            if what == FIRE:
                await settled_leader(stage)
                await overdue_alarms(client, stage, count)
            # it has read what is to be done, and has done nothing yet
            await until(lambda: bool(asked), "the first leader at work")
            async with engine(redis_url, namespace):
                await answers.are({(what, Answer.DONE): count})
                may_go_on.set()
                await answers.are({(what, Answer.DONE): count, (what, Answer.NOT_REACHED): len(asked)})


@pytest.mark.parametrize("what", [FIRE, RECOVER])
async def test_of_two_leaders_at_once_one_fires_each_timer_and_one_counts_each_recovery(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    lead, asked, both_asked, count = Store.lead, Counter[str](), dict[str, asyncio.Event](), 30

    async def lead_anyway(store: Store, partition: Partition, *arguments: Any, **named: Any) -> Any:
        # sent with the call itself, so that nobody else comes between
        deleted = store.connection.command("DEL", partition.leader)
        answer = await lead(store, partition, *arguments, **named)
        await deleted
        return answer

    async def gate(_: Store, subject: str) -> None:
        event = both_asked.setdefault(subject, asyncio.Event())
        asked[subject] += 1
        if asked[subject] == 2:
            event.set()
        await event.wait()

    monkeypatch.setattr(Store, "lead", lead_anyway)
    answers = Answers(monkeypatch, gate)
    async with staged(redis_url, namespace) as stage, Client(redis_url, app=app, namespace=namespace) as client:
        if what == RECOVER:
            await orphaned_orders(client, stage, count)
        async with engine(redis_url, namespace), engine(redis_url, namespace):
            if what == FIRE:
                await overdue_alarms(client, stage, count)
            await answers.are({(what, Answer.DONE): count, (what, Answer.NOT_REACHED): count})
