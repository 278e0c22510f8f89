"""A namespace played by hand: what clients, workers and the leader would do, one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from memable import lua
from memable.annotations import ALL_JSON_TYPES
from memable.calls import AnyScript
from memable.children_call import ChildrenCall
from memable.codec import to_json
from memable.connection import Endpoint, Script, ScriptConnection, ServerRefused
from memable.errors import StepFailed
from memable.family import Family, NewChild, Standing
from memable.holding import AnyPoint, BackOff, ChildrenPoint, Held, Member, Outcome, Payload, Point
from memable.journal import Draft, Record
from memable.keys import DEADLINE_KEY, DELAY_KEY, GROUP, InstanceKeys, Keys
from memable.lua import Answer
from memable.moments import Due
from memable.pubsub import Subscriptions
from memable.reading import Identity, Reader
from memable.state import Status, StepKind, WorkflowState
from memable.store import Store, new_token
from tests.lua import invariants
from tests.worker_process import TOO_LONG_S

WORKFLOW = "order"
CHILD = "parcel"
LONG_MS = 7 * 24 * 3600 * 1000
YES = Payload("bool", "boolean", b"true")
DONE = Outcome(Status.COMPLETED, b'"shipped"', "")
BROKEN = Outcome(Status.FAILED, b'{"type":"ValueError","message":"no","step":null}', "ValueError: no")
STEP = Draft.completed(StepKind.STEP, "str", b'"done"')


def approval(key: str = "approval", *, after_ms: float | None = None, choice: str = "") -> Point:
    """A point that waits for a signal."""
    return Point(key, StepKind.SIGNAL, "bool", ["boolean"], after_ms, choice=choice)


def timer(
    key: str = "cooling-off", *, after_ms: float | None = None, at_ms: float | None = None, choice: str = ""
) -> Point:
    """A point that waits for a deadline."""
    return Point(key, StepKind.TIMER, "None", ["null"], after_ms, at_ms, choice=choice)


def member(key: str, kind: StepKind = StepKind.SIGNAL) -> Member:
    """One of those between which a `first` chooses; its name is its key in capitals."""
    return Member(kind, key, Draft.completed(StepKind.CHOICE, "str", to_json(key.upper())))


def first(key: str, *members: Member) -> Point:
    """What waits for the first of `members`."""
    return Point(key, StepKind.CHOICE, "str", ["string"], members=members)


def receive(key: str = "next", mailbox: str = "chat", *, after_ms: float | None = None) -> Point:
    """A point that waits for a message."""
    return Point(key, StepKind.MESSAGE, "", ALL_JSON_TYPES, after_ms, mailbox=mailbox)


def back_off(
    key: str = "charge", *, after_ms: float = 1e9, attempts: int = 1, allowed: int = 5, age_ms: int = 0
) -> BackOff:
    """A step that has failed, and is to be called again."""
    failure = StepFailed(
        f"step {key!r} of order/42", key=key, attempts=attempts, error_type="ConnectionError", error_message="away"
    )
    return BackOff(key, attempts, allowed, Draft.retrying(failure, attempts), after_ms, elapsed_ms=0, age_ms=age_ms)


def calling(total: int = 1, workflow: str = CHILD) -> ChildrenCall:
    """A fan_out of `total` children, or a call of one."""
    return ChildrenCall("call" if total == 1 else "fan_out", "kids", workflow, [1] * total, None, True)


def children(*, wake_at: int = 1, created: int = 1, fail_fast: bool = True) -> ChildrenPoint:
    """A point that waits for children."""
    waits_for = f"{wake_at} {created} {int(fail_fast)}"
    return ChildrenPoint("kids", waits_for)


@dataclass(frozen=True)
class Call:
    """A script's call as it was made."""

    script: Script
    arguments: tuple[lua.Argument, ...]
    reply: asyncio.Future[Any]


def answer_of(reply: Any) -> Answer:
    """What a script answered first."""
    return Answer(reply[0] if isinstance(reply, list) else reply)


class Wiretap:
    """A connection that remembers the calls made over it, so that each can be made again exactly as it was."""

    def __init__(self, connection: ScriptConnection) -> None:
        self.connection = connection
        self.calls: list[Call] = []
        self.moves: set[tuple[str, str, str]] = set()
        """Each script that was seen to move an instance, and from which status to which."""
        self._seen: list[tuple[Call, str, asyncio.Future[Any], asyncio.Future[Any]]] = []

    def call(self, script: AnyScript, arguments: Sequence[lua.Argument]) -> asyncio.Future[Any]:
        plain = Script(script.name, script.source, script.sha, script.key_count)
        # the commands of one connection are done in order: this is what the script found, and what it left
        instances = {key for key in map(str, arguments[: script.key_count]) if ":instance:" in key}
        before = [self.connection.command("HGET", key, "status") for key in instances]
        reply = self.connection.call(plain, arguments)
        self.calls.append(call := Call(plain, tuple(arguments), reply))
        after = [self.connection.command("HGET", key, "status") for key in instances]
        self._seen += ((call, *each) for each in zip(instances, before, after, strict=True))
        return reply

    def command(self, *words: lua.Argument) -> asyncio.Future[Any]:
        return self.connection.command(*words)

    async def check_moves(self) -> None:
        """AssertionError if a script moved an instance from a status to another as its header does not say."""
        seen, self._seen = self._seen, []
        for call, key, before, after in seen:
            source, target = [(await each or b"").decode() for each in (before, after)]
            # any may expire meanwhile
            if source != target and (target or call.script.name == "delete"):
                move = (source or "new", target or "gone")
                assert move in lua.load(call.script.name).moves, f"{call.script.name} moves {key} {' -> '.join(move)}"
                self.moves.add((call.script.name, *move))


class Heard:
    """What was published on a channel since the beginning."""

    def __init__(self, stage: Stage, channel: str) -> None:
        self._stage, self._channel = stage, channel
        self._messages: list[bytes] = []
        self._marker, self._marked = b"", asyncio.Event()

    def hear(self, message: bytes | None) -> None:
        if message == self._marker:
            self._marked.set()
        elif message is not None:
            self._messages.append(message)

    async def so_far(self) -> list[bytes]:
        """All messages until now: one of our own, sent over the connection of the calls, is the last to come."""
        self._marker = new_token().encode()
        self._marked.clear()
        await self._stage.command("PUBLISH", self._channel, self._marker)
        async with asyncio.timeout(TOO_LONG_S):
            await self._marked.wait()
        return list(self._messages)


class Stage:
    """One namespace over one connection."""

    def __init__(self, wiretap: Wiretap, keys: Keys, endpoint: Endpoint) -> None:
        self.wiretap, self.keys, self.endpoint = wiretap, keys, endpoint
        self.store = Store(wiretap, keys)
        self._grouped: set[str] = set()

    # ── seeing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def command(self, *words: lua.Argument) -> Any:
        return await self.wiretap.command(*words)

    @property
    def last_call(self) -> Call:
        return self.wiretap.calls[-1]

    def answered(self) -> Answer:
        """What the last call was answered."""
        return answer_of(self.last_call.reply.result())

    async def again(self, call: Call | None = None) -> Any:
        """Make a call (the last one) once more with the same arguments, as if its reply had been lost."""
        call = call or self.last_call
        return await self.wiretap.connection.call(call.script, call.arguments)

    async def check(self) -> invariants.Scene:
        """The whole namespace; `AssertionError` if it is not in order, or came there by a move that no header has."""
        await self.wiretap.check_moves()
        return await invariants.check(self.wiretap, self.keys)

    async def broken(self, scene: invariants.Scene) -> list[object]:
        """What `memable doctor` would find broken, which looks while others work: nothing, wherever they are."""
        found, store = list[object](), Store(self.wiretap.connection, self.keys)  # not over the wiretap
        for partition in self.keys.partitions:
            for status in Status:
                listed = partition.index(WORKFLOW, status)
                ids = [id for id in scene.zsets.get(listed, {}) if partition.of(WORKFLOW, id).instance in scene.hashes]
                found += await store.reconcile(partition, WORKFLOW, status, ids, mends=False) if ids else []
                for id in ids if status.is_terminal else ():
                    found += [id] * await store.retain(partition.of(WORKFLOW, id), LONG_MS, mends=False)
            stream = scene.streams.get(partition.stream(WORKFLOW))
            if stream is not None and stream.entries:
                found += await store.tidy(partition, WORKFLOW, list(stream.entries.items()), mends=False)
        return found

    async def fields(self, keys: InstanceKeys) -> dict[str, str]:
        return (await self.check()).hashes[keys.instance]

    async def status(self, keys: InstanceKeys) -> Status:
        return Status((await self.fields(keys))["status"])

    async def identity(self, keys: InstanceKeys) -> Identity:
        return await Reader(self.store).identity(keys)

    async def life(self, keys: InstanceKeys) -> str:
        """What tells the instance from a namesake."""
        return (await self.identity(keys)).invoked_as

    async def record(self, keys: InstanceKeys, key: str) -> Record | None:
        raw = await self.command("HGET", keys.steps, key)
        return None if raw is None else Record(raw)

    @asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator[Heard]:
        subscriptions = Subscriptions(self.endpoint)
        heard = Heard(self, channel)
        try:
            await subscriptions.open(channel, heard.hear)
            yield heard
        finally:
            await subscriptions.close()

    # ── doing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def of(self, instance_id: str = "42") -> InstanceKeys:
        return self.keys.of(WORKFLOW, instance_id)

    async def invoke(self, instance_id: str = "42") -> InstanceKeys:
        keys = self.of(instance_id)
        assert await self.store.invoke(keys, new_token(), b'{"id":"42"}')
        return keys

    async def delayed(self, delay: timedelta = timedelta(days=1), instance_id: str = "42") -> InstanceKeys:
        """An instance whose beginning is delayed."""
        keys = self.of(instance_id)
        assert await self.store.invoke(keys, new_token(), b'{"id":"42"}', Due.of(delay, ""))
        return keys

    async def mortal(self, deadline_ms: int = LONG_MS, instance_id: str = "42") -> InstanceKeys:
        """A new instance that has a deadline."""
        keys = self.of(instance_id)
        assert await self.store.invoke(keys, new_token(), b'{"id":"42"}', deadline_ms=deadline_ms)
        return keys

    async def make_deadline_due(self, keys: InstanceKeys) -> None:
        """Move the end of an instance into the past."""
        await self.command("ZADD", keys.timers, "XX", 1000, f"{keys.name}/{DEADLINE_KEY}")
        await self.command("HSET", keys.instance, "ends_ms", 1000)

    async def make_delay_due(self, keys: InstanceKeys) -> None:
        """Move the beginning of a delayed instance into the past."""
        await self.command("ZADD", keys.timers, "XX", 1000, f"{keys.name}/{DELAY_KEY}")
        await self.command("HSET", keys.instance, "due", 1000)

    async def deliver(self, keys: InstanceKeys, worker: str = "w1") -> list[Held]:
        """What the workflow's stream has for `worker`."""
        await self.make_group(keys.stream)
        reply = await self.command("XREADGROUP", "GROUP", GROUP, worker, "STREAMS", keys.stream, ">")
        entries = reply[0][1] if reply else []
        return [
            Held(self.keys.of(keys.workflow, fields[1].decode()), entry.decode(), new_token())
            for entry, fields in entries
        ]

    async def make_group(self, stream: str) -> None:
        if stream not in self._grouped:
            try:
                await self.command("XGROUP", "CREATE", stream, GROUP, 0, "MKSTREAM")
            except ServerRefused as error:
                if error.code != "BUSYGROUP":
                    raise
            self._grouped.add(stream)

    async def make_group_again(self, stream: str) -> None:
        """The stream was deleted, and its group with it."""
        self._grouped.discard(stream)
        await self.make_group(stream)

    async def take(self, keys: InstanceKeys, worker: str = "w1") -> Held:
        """A run of an instance that is queued."""
        (held,) = await self.deliver(keys, worker)
        assert held.keys.name == keys.name
        await self.store.claim(held, worker)
        return held

    async def run(self, instance_id: str = "42", worker: str = "w1") -> Held:
        """A run of a new instance."""
        return await self.take(await self.invoke(instance_id), worker)

    async def parked(self, *points: AnyPoint, instance_id: str = "42") -> Held:
        """A run of a new instance that has come to rest."""
        held = await self.run(instance_id)
        assert await self.store.park(held, points or [approval()], [], "") == {}
        return held

    async def ended(self, outcome: Outcome = DONE, *, retention_ms: int = LONG_MS, instance_id: str = "42") -> Held:
        """The run of a new instance that has ended it."""
        held = await self.run(instance_id)
        await self.store.finish(held, outcome, retention_ms)
        return held

    async def cancel(self, keys: InstanceKeys, reason: str = "", *, retention_ms: int = LONG_MS) -> WorkflowState:
        """What a client does."""
        known = await self.identity(keys)
        return await self.store.cancel(keys, known.invoked_as, new_token(), reason, retention_ms, parent=known.parent)

    # ── children ─────────────────────────────────────────────────────────────────────────────────────────────────

    def family(self, parent: Held) -> Family:
        """The children of a parent in the hands of this run."""
        return Family(self.store, parent)

    async def spawn(
        self, parent: Held, *, call: ChildrenCall | None = None, first: int = 0, count: int = 1
    ) -> Standing:
        """Make some of the children of a call, by default its one child."""
        call = call or calling()
        family = self.family(parent)
        children = [NewChild(family.child(call, first + at), new_token(), b"1") for at in range(count)]
        return await family.spawn(call, first, children)

    async def parent_of_one(self, *, parked: bool = True) -> tuple[Held, InstanceKeys]:
        """A run of a parent that has one child; parked, it waits for it."""
        parent = await self.run("parent")
        await self.spawn(parent)
        if parked:
            assert await self.store.park(parent, [children()], [], "") == {}
        return parent, self.family(parent).child(calling(), 0)

    async def make_due(self, keys: InstanceKeys, key: str) -> None:
        """Move a deadline into the past, with its record, which the script does not read."""
        await self.command("ZADD", keys.timers, "XX", 1000, f"{keys.name}/{key}")
        record = await self.record(keys, key)
        assert record is not None
        head, _, _ = record.raw.partition(b',"due_ms":')
        await self.command("HSET", keys.steps, key, head + b',"due_ms":1000}')

    async def recover(
        self, held: Held, *, lease_ms: int = 0, latest_ms: float = 1e15, max_recoveries: int = 5, alone: bool = True
    ) -> Answer:
        """What the leader does; the run had its worker for itself, unless it is said otherwise."""
        if alone and await self.command("HEXISTS", held.keys.instance, "lease"):
            await self.command("HSET", held.keys.instance, "alone", 1)
        return await self.store.recover(
            held.keys,
            held.entry,
            lease_ms=lease_ms,
            latest_ms=latest_ms,
            max_recoveries=max_recoveries,
            failure=BROKEN,
            retention_ms=LONG_MS,
            parent=held.parent,
        )

    async def renew(self, worker: str, *held: Held) -> list[int]:
        """What the thread of a worker process does; all instances are of one stream."""
        script = lua.load("renew")
        arguments = script.bind(
            stream=held[0].keys.stream,
            instances=[each.keys.instance for each in held],
            worker=worker,
            entries_and_leases=[word for each in held for word in (each.entry, each.lease)],
        )
        answers: list[int] = await self.wiretap.call(
            Script(script.name, script.source, script.sha, 1 + len(held)), arguments
        )
        return answers

    async def pending(self, held: Held) -> tuple[str, int, int] | None:
        """Who an entry was delivered to, for how many ms it is idle, and how often it was delivered."""
        found = await self.command("XPENDING", held.keys.stream, GROUP, held.entry, held.entry, 1)
        return (found[0][1].decode(), found[0][2], found[0][3]) if found else None

    async def make_idle(self, held: Held, idle_ms: int) -> None:
        """Let an entry look as if its worker had not renewed for `idle_ms`."""
        pending = await self.pending(held)
        assert pending is not None
        await self.command("XCLAIM", held.keys.stream, GROUP, pending[0], 0, held.entry, "IDLE", idle_ms, "JUSTID")

    async def delete(self, keys: InstanceKeys) -> None:
        """Remove every trace of an instance."""
        entry = await self.command("HGET", keys.instance, "entry")
        if entry is not None:
            await self.command("XACK", keys.stream, GROUP, entry)
            await self.command("XDEL", keys.stream, entry)
        for member in await self.command("ZRANGE", keys.timers, 0, -1):
            if member.decode().startswith(keys.name + "/"):
                await self.command("ZREM", keys.timers, member)
        for status in Status:
            await self.command("ZREM", keys.index(status), keys.instance_id)
        await self.command("ZREM", keys.expiry, keys.name)
        labels = await self.command("HGET", keys.instance, "labels")
        for index in keys.labels(labels.decode().split("\n") if labels else ()):
            await self.command("ZREM", index, keys.instance_id)
        await self.command("DEL", keys.instance, keys.steps, keys.inbox, keys.family)

    async def claimed_by_another(self, keys: InstanceKeys, worker: str = "w2") -> Held:
        """Bring an instance that exists into the hands of another run, from wherever it is."""
        fields = await self.fields(keys)
        status = Status(fields["status"])
        if status is Status.RUNNING:
            assert await self.recover(Held(keys, fields["entry"], fields["lease"])) is Answer.DONE
        elif status.is_at_rest:
            await self.store.resume(keys, new_token())
        elif "due" in fields:
            await self.make_delay_due(keys)
            assert await self.store.begin(keys) is Answer.DONE
        elif "entry" not in fields:
            key = fields["retrying"].split("\n")[0]
            await self.make_due(keys, key)
            assert await self.store.fire_timer(keys, key) is Answer.DONE
        return await self.take(keys, worker)
