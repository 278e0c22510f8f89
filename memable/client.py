"""`Client`: what an application holds to start, signal and watch instances."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from memable.codec import DEFAULT_MAX_PAYLOAD_BYTES, Codec
from memable.connection import Endpoint, ScriptConnection
from memable.definitions import AnyWorkflow, Definitions, name_of
from memable.entering import enter
from memable.errors import InputConflict, NotStarted, presentable
from memable.forking import finished_before, name_of_fork
from memable.inputs import encode_payload
from memable.invocation import Invocation
from memable.keys import InstanceKeys, check_existing_id, check_existing_key, check_key, check_name, is_child
from memable.labels import check_labels
from memable.listing import Listing
from memable.missing import MISSING
from memable.moments import Due
from memable.pubsub import Subscriptions
from memable.reading import Reader
from memable.retry import Duration
from memable.state import Page, Status, StepRecord, WorkflowMetadata, WorkflowState
from memable.store import Store, new_token
from memable.watching import Watcher
from memable.workflow import App, SuspendPoint, Workflow, key_of

if TYPE_CHECKING:
    from memable.settings import Settings

I = TypeVar("I")  # noqa: E741  (the contract's own letters: Workflow[I, O])
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")

GIVE_UP_S: Final = 5.0
"""How long a call of a client waits for a Redis that is away, before it raises `StorageError`."""

_BATCH: Final = 4000
"""How many instances `invoke_many` has on their way at a time."""

Delay = Duration | datetime | None


@dataclass(frozen=True, slots=True)
class Online:
    """What a client has while it is connected."""

    connection: ScriptConnection
    subscriptions: Subscriptions
    store: Store
    reader: Reader
    watcher: Watcher

    @classmethod
    async def connect(cls, url: str, namespace: str, partitions: int | None) -> Self:
        """Connect, and enter the namespace; `StorageError`, one line, if either is not possible."""
        endpoint = Endpoint.from_url(url)
        connection = ScriptConnection(endpoint, give_up_after_s=GIVE_UP_S)
        await connection.start()
        try:
            store = Store(connection, await enter(connection, endpoint, namespace, partitions))
        except BaseException:
            await connection.close()
            raise
        subscriptions = Subscriptions(endpoint, give_up_after_s=GIVE_UP_S)
        reader = Reader(store)
        return cls(connection, subscriptions, store, reader, Watcher(subscriptions, reader))

    async def close(self) -> None:
        """End what still waits, and close both connections."""
        self.watcher.close()
        await self.subscriptions.close()
        await self.connection.close()


class Client:
    """Starts, signals and watches instances of one namespace. Made by `memable.connect`; an `Engine` is one, too.

    Safe to share between all tasks of an event loop: their calls travel together over one connection. While Redis is
    away a call waits up to 5 s, then raises `StorageError`; waiting for an instance outlasts any outage.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        app: App | None = None,
        settings: Settings | None = None,
        namespace: str | None = None,
    ) -> None:
        self.app = app
        self._url, self._namespace, self._given_settings = url, namespace, settings
        self._codec = Codec(max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES)
        self._connected: Online | None = None
        self._definitions = self._define()

    # ── beginning and end ────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        await self._open(self._load_settings())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; calls that wait for an instance end with `NotStarted`. Twice is fine."""
        online, self._connected = self._connected, None
        if online is not None:
            await online.close()

    async def close(self) -> None:
        """The same as `aclose`."""
        await self.aclose()

    def _load_settings(self) -> Settings:
        if self._given_settings is not None and self._url is None and self._namespace is None:
            return self._given_settings
        # not at the top: pydantic-settings takes longer to import than all the rest
        from memable.settings import load_settings

        return load_settings(self._given_settings, redis_url=self._url, namespace=self._namespace)

    async def _open(self, settings: Settings) -> None:
        """Connect by `settings`, once."""
        if self._connected is None:
            self._codec = Codec(max_payload_bytes=settings.max_payload)
            self._definitions = self._define()
            self._connected = await Online.connect(settings.redis_url, settings.namespace, settings.partitions)

    def _define(self) -> Definitions:
        return Definitions(self._codec, self.app, lambda: self._online().reader)

    def _online(self) -> Online:
        """The connections, for whatever needs them; `NotStarted` without."""
        if self._connected is None:
            raise NotStarted("the client is not connected: use 'client = await memable.connect(…)', before close()")
        return self._connected

    def _require_started(self) -> Online:
        """The connections, for what makes new work; `NotStarted` when none is taken any more."""
        return self._online()

    # ── starting ─────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    async def invoke(
        self,
        workflow: Workflow[None, O],
        *,
        id: str | None = None,
        delay: Delay = None,
        labels: Mapping[str, str] | None = None,
    ) -> Invocation[O]: ...
    @overload
    async def invoke(
        self,
        workflow: Workflow[I, O],
        input: I,
        *,
        id: str | None = None,
        delay: Delay = None,
        labels: Mapping[str, str] | None = None,
    ) -> Invocation[O]: ...
    @overload
    async def invoke(
        self,
        workflow: str,
        input: Any = ...,
        *,
        id: str | None = None,
        delay: Delay = None,
        labels: Mapping[str, str] | None = None,
    ) -> Invocation[Any]: ...

    async def invoke(
        self,
        workflow: AnyWorkflow,
        input: Any = MISSING,
        *,
        id: str | None = None,
        delay: Delay = None,
        labels: Mapping[str, str] | None = None,
    ) -> Invocation[Any]:
        """Start an instance, once: when this returns, Redis has it, and some worker will run it.

        With the `id` and the input of an instance that exists, this gives a handle on it, `created` is false, and
        nothing is started; so a call whose outcome is not known can be repeated. Without an `id` it gets a random
        one. `delay`: seconds, a `timedelta` or an aware datetime until which it stays queued (`queued: delayed until
        12:00:05`, in UTC); negative or past is at once. It is kept in Redis, needs no process meanwhile, and is no
        part of what the instance is: the same id with another delay changes nothing. Neither are `labels`, by which
        `list_instances` finds it: at most 10, for as long as the instance is kept.

        `InvalidKey`; `WorkflowNotFound` for a name that neither this client's app has nor a worker announced;
        `InputMissing`, `TypeMismatch`, `SerializationError` or `PayloadTooLarge` before anything is written;
        `InputConflict` if the id is taken by an instance with another input; `InvalidLabel`; `ValueError` for a naive
        datetime, NaN and infinity; `StorageError`, `NotStarted`.
        """
        name = name_of(workflow)
        chosen = new_token() if id is None else check_name("instance id", id)
        due = Due.of(delay, f"the delay of {name}/{chosen}")
        called = check_labels(labels)
        online = self._require_started()
        known = await self._definitions.known(workflow)
        raw = await self._definitions.encode(known, input, f"the input of {name}/{chosen}")
        created = await online.store.invoke(
            online.store.keys.of(name, chosen), new_token(), raw, due, called, known.deadline_ms
        )
        return self._handle(workflow, chosen, created=created)

    @overload
    async def invoke_many(
        self,
        workflow: Workflow[I, O],
        inputs: Iterable[I],
        *,
        ids: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[Invocation[O] | InputConflict]: ...
    @overload
    async def invoke_many(
        self,
        workflow: str,
        inputs: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[Invocation[Any] | InputConflict]: ...

    async def invoke_many(
        self,
        workflow: AnyWorkflow,
        inputs: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[Invocation[Any] | InputConflict]:
        """Start an instance for each of `inputs`, in few round trips: handles in order.

        Where an id is taken by an instance with another input, an `InputConflict` stands in the handle's place. All
        inputs are checked before anything is written. It is not atomic: after a `StorageError` some may have been
        started; with `ids` the call can be repeated. For a workflow without input give `None` for each instance. All
        of them get the `labels`.
        Errors as for `invoke`; `ValueError` if there are not as many ids as inputs.
        """
        name = name_of(workflow)
        values = list(inputs)
        chosen = [new_token() for _ in values] if ids is None else [check_name("instance id", each) for each in ids]
        if len(chosen) != len(values):
            raise ValueError(f"invoke_many of {name!r} got {len(values)} inputs and {len(chosen)} ids")
        called = check_labels(labels)
        online = self._require_started()
        known = await self._definitions.known(workflow)
        encoded = [
            await self._definitions.encode(known, value, f"the input of {name}/{each}")
            for each, value in zip(chosen, values, strict=True)
        ]
        handles: list[Invocation[Any] | InputConflict] = []
        for first in range(0, len(chosen), _BATCH):
            batch = chosen[first : first + _BATCH]
            raws = encoded[first : first + _BATCH]
            answers = await online.store.invoke_many(
                [(online.store.keys.of(name, each), new_token(), raw) for each, raw in zip(batch, raws, strict=True)],
                called,
                known.deadline_ms,
            )
            handles += (
                answer if isinstance(answer, InputConflict) else self._handle(workflow, each, created=answer)
                for each, answer in zip(batch, answers, strict=True)
            )
        return handles

    # ── acting on instances ──────────────────────────────────────────────────────────────────────────────────────

    @overload
    def get(self, workflow: Workflow[Any, O], id: str) -> Invocation[O]: ...
    @overload
    def get(self, workflow: str, id: str) -> Invocation[Any]: ...

    def get(self, workflow: AnyWorkflow, id: str) -> Invocation[Any]:
        """A handle on an instance, whether it exists or not: nothing is asked of Redis. `InvalidKey`."""
        name_of(workflow)
        return self._handle(workflow, check_existing_id("instance id", id))

    @overload
    async def signal(
        self,
        workflow: Workflow[Any, O],
        id: str,
        point: SuspendPoint[T],
        payload: T,
        *,
        buffer: bool = False,
        signal_id: str | None = None,
    ) -> Invocation[O]: ...
    @overload
    async def signal(
        self,
        workflow: Workflow[Any, O],
        id: str,
        point: SuspendPoint[None] | str,
        payload: Any = None,
        *,
        buffer: bool = False,
        signal_id: str | None = None,
    ) -> Invocation[O]: ...
    @overload
    async def signal(
        self,
        workflow: str,
        id: str,
        point: SuspendPoint[T],
        payload: T,
        *,
        buffer: bool = False,
        signal_id: str | None = None,
    ) -> Invocation[Any]: ...
    @overload
    async def signal(
        self,
        workflow: str,
        id: str,
        point: SuspendPoint[None] | str,
        payload: Any = None,
        *,
        buffer: bool = False,
        signal_id: str | None = None,
    ) -> Invocation[Any]: ...

    async def signal(
        self,
        workflow: AnyWorkflow,
        id: str,
        point: SuspendPoint[Any] | str,
        payload: Any = None,
        *,
        buffer: bool = False,
        signal_id: str | None = None,
    ) -> Invocation[Any]:
        """Complete a point at which the instance waits, and queue its run: both, or neither.

        Of several concurrent signals exactly one succeeds, the others get `SignalSuperseded`. A `signal_id` that this
        point has seen is answered with success, without a second effect; so a call whose outcome is not known can be
        repeated. A timer's key completes the timer early.

        With `buffer=True` a signal to a point that is not reached yet is kept for it, and completes it as soon as the
        instance comes there. One is kept for a key; a second is `SignalSuperseded`. A payload of another type than the
        point will declare is not known to be one before: then `suspend` raises `TypeMismatch`, and when that has
        failed the instance, `resume` waits for another.

        `SignalRejected` with the reason if the point is not reached (and `buffer` is false), the instance is terminal,
        or there is none; `TypeMismatch` for a payload of another type than the point declares, and the point stays
        open; `InvalidKey`, `SerializationError`, `PayloadTooLarge`, `StorageError`, `NotStarted`.
        """
        name = name_of(workflow)
        check_existing_id("instance id", id)
        key = check_key("suspend point", key_of(point))
        token = new_token() if signal_id is None else check_name("signal id", signal_id)
        online = self._require_started()
        sent = encode_payload(self._codec, point, payload, f"signal {key!r} to {name}/{id}")
        await online.store.signal(online.store.keys.of(name, id), key, token, sent, keeps=buffer)
        return self._handle(workflow, id)

    @overload
    async def send(
        self, workflow: Workflow[Any, O], id: str, mailbox: str, message: Any, *, message_id: str | None = None
    ) -> Invocation[O]: ...
    @overload
    async def send(
        self, workflow: str, id: str, mailbox: str, message: Any, *, message_id: str | None = None
    ) -> Invocation[Any]: ...

    async def send(
        self, workflow: AnyWorkflow, id: str, mailbox: str, message: Any, *, message_id: str | None = None
    ) -> Invocation[Any]:
        """Append a message to a mailbox of the instance, for `ctx.receive`: when this returns, it is not lost.

        Messages are received in the order in which they were sent, each once; those that were sent before anybody
        receives are kept, however many. A message is plain JSON, or a model, a datetime … by its own type. A
        `message_id` among the last 1,000 that the mailbox has seen is answered with success, without a second effect;
        so a call whose outcome is not known can be repeated.

        `SignalRejected` with the reason if the instance is terminal, or there is none; `InvalidKey`,
        `SerializationError`, `PayloadTooLarge`, `StorageError`, `NotStarted`.
        """
        name = name_of(workflow)
        check_existing_id("instance id", id)
        check_name("mailbox", mailbox)
        token = new_token() if message_id is None else check_name("message id", message_id)
        online = self._require_started()
        sent = encode_payload(self._codec, mailbox, message, f"message for mailbox {mailbox!r} to {name}/{id}")
        await online.store.send(online.store.keys.of(name, id), mailbox, token, sent)
        return self._handle(workflow, id)

    @overload
    async def resume(
        self, workflow: Workflow[Any, O], id: str, *, rerun: Iterable[SuspendPoint[Any] | str] = ()
    ) -> Invocation[O]: ...
    @overload
    async def resume(
        self, workflow: str, id: str, *, rerun: Iterable[SuspendPoint[Any] | str] = ()
    ) -> Invocation[Any]: ...

    async def resume(
        self, workflow: AnyWorkflow, id: str, *, rerun: Iterable[SuspendPoint[Any] | str] = ()
    ) -> Invocation[Any]:
        """Run an instance at rest again; finished steps stay, a failed one gets a fresh attempt at what failed it.

        A suspended one comes back to rest as suspended, its deadlines unchanged. One that is queued or running is
        joined.

        The records of the keys in `rerun` are dropped, all of them or none: those steps are called again, those waits
        wait anew, their deadlines counted from then. Records of later steps stay: name those, too, that depend on what
        the step returns. That needs an instance at rest: `InstanceBusy`. `RecordNotFound`, and nothing is done, if a
        key has no record.

        `InstanceNotFound`, `InvalidKey`, `StorageError`, `NotStarted`.
        """
        if isinstance(rerun, str):
            raise TypeError(f"rerun takes a list of keys, not one: [{rerun!r}]")
        dropped = {check_existing_key("key to rerun", key_of(each)): None for each in rerun}
        keys = self._find(workflow, id)
        online = self._require_started()
        parent = (await online.reader.identity(keys)).parent if is_child(id) else None
        await online.store.resume(keys, new_token(), list(dropped), parent=parent)
        return self._handle(workflow, id)

    @overload
    async def fork(
        self,
        workflow: Workflow[Any, O],
        id: str,
        *,
        before: SuspendPoint[Any] | str | None = None,
        new_id: str | None = None,
    ) -> Invocation[O]: ...
    @overload
    async def fork(
        self, workflow: str, id: str, *, before: SuspendPoint[Any] | str | None = None, new_id: str | None = None
    ) -> Invocation[Any]: ...

    async def fork(
        self,
        workflow: AnyWorkflow,
        id: str,
        *,
        before: SuspendPoint[Any] | str | None = None,
        new_id: str | None = None,
    ) -> Invocation[Any]:
        """Start a new instance with the input and the labels of another, and with what that has recorded.

        It takes the records of finished steps and waits, in the order of `steps`: those that were started before the
        one under the key `before`, or all of them. The other instance may be in any state, and is left as it is. The
        new one has a life of its own: steps that it calls have other idempotency keys. Signals and messages that nobody
        has read are not taken.

        With a `new_id` the call can be repeated: the same fork is the same instance, and `created` is false.
        `InputConflict` if that id belongs to another instance; `InstanceNotFound`; `RecordNotFound` if there is no
        record under `before`; `InvalidKey`, `StorageError`, `NotStarted`.
        """
        until = None if before is None else check_existing_key("key to fork before", key_of(before))
        chosen = new_token() if new_id is None else check_name("instance id", new_id)
        keys = self._find(workflow, id)
        store = self._require_started().store
        origin = await store.copy(keys)
        copied = finished_before(origin, keys, until)
        fork = store.keys.of(keys.workflow, chosen)
        created = await store.fork(fork, new_token(), origin, name_of_fork(origin, keys, until), copied)
        return self._handle(workflow, chosen, created=created)

    async def delete(self, workflow: AnyWorkflow, id: str) -> None:
        """Forget an instance that has ended, now: its result, its steps, its place in listings. The id is free again.

        What was invoked under the same id meanwhile is left alone. `InstanceBusy` for one that has not ended: `cancel`
        it first. `InstanceNotFound` if there is none, also when it was deleted before; `InvalidKey`, `StorageError`,
        `NotStarted`.
        """
        keys = self._find(workflow, id)
        online = self._online()
        known = meant = await online.reader.identity(keys)
        while not await online.store.delete(keys, meant.invoked_as, meant.labels, known.life):
            known = await online.reader.identity(keys)

    async def cancel(self, workflow: AnyWorkflow, id: str, *, reason: str | None = None) -> WorkflowState:
        """End an instance at once, wherever it is: queued, running or suspended; the state that it has now.

        Nobody needs to live for that. If it runs, its worker is told, and cancels what its tasks wait for: they have
        0.9 s for their `finally` blocks, in which durable calls are refused, and are stopped then. A sync step cannot
        be stopped in its thread; nothing that still comes of it is recorded. What has been recorded stays, and `resume`
        runs the instance on from there; for compensation write a parent that calls the work.

        One that has ended already stays as it is, and its state says how: of a `cancel` and the run's own end at the
        same moment one wins, and every caller is told which. So a call whose outcome is not known can be repeated.
        `InstanceNotFound`, `InvalidKey`, `StorageError`, `NotStarted`; `TypeError` for a reason that is no string.
        """
        keys = self._find(workflow, id)
        if not isinstance(reason, str | None):
            raise TypeError(f"cancel of {keys.name} takes a string as its reason, not {reason!r}")
        online = self._online()
        known, retention_ms = await asyncio.gather(
            online.reader.identity(keys), self._definitions.retention_ms(workflow)
        )
        return await online.store.cancel(
            keys, known.invoked_as, new_token(), presentable(reason or ""), retention_ms, parent=known.parent
        )

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def get_metadata(self, workflow: AnyWorkflow, id: str) -> WorkflowMetadata | None:
        """What is known of the instance now; `None` if there is none. `InvalidKey`, `StorageError`, `NotStarted`."""
        keys = self._find(workflow, id)
        return await self._online().reader.metadata(keys)

    async def list_instances(
        self,
        workflow: AnyWorkflow | None = None,
        *,
        status: Status | str | None = None,
        labels: Mapping[str, str] | None = None,
        children: bool = True,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Instances, newest first: of one workflow or of all, of one status or of all, at most `limit`.

        `children=False` leaves out those that other instances have started; that costs nothing.

        `page.cursor` gets the next page, and is `None` after the last one. What is started meanwhile is newer than
        all pages to come; what changes its status may be missed or met by pages that ask for one. The cost grows with
        the page, not with the number of instances. An unknown workflow is an empty page.

        With `labels`, those that have all of them. There is an index for each label: of several, the one with the
        fewest instances is walked, and each instance in it that has not the other labels, or not the status, is read
        and left out.

        `InvalidCursor`; `ValueError` for a status that there is none of, or a limit below 1; `InvalidLabel`,
        `InvalidKey`, `StorageError`, `NotStarted`.
        """
        name = None if workflow is None else name_of(workflow)
        wanted, called = None if status is None else Status(status), check_labels(labels)
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit must be a whole number from 1, not {limit!r}")
        online = self._online()
        names = [name] if name is not None else await self._all_names(online)
        return await Listing(online.store, online.reader, names, wanted, called, children=children).page(limit, cursor)

    async def steps(self, workflow: AnyWorkflow, id: str) -> list[StepRecord]:
        """What the instance has recorded, in the order in which it was started.

        `InstanceNotFound`, `InvalidKey`, `StorageError`, `NotStarted`.
        """
        keys = self._find(workflow, id)
        return await self._online().reader.steps(keys)

    def subscribe(self, workflow: AnyWorkflow, id: str) -> AsyncGenerator[WorkflowState]:
        """The instance's state now, then each later one in order, ending with the terminal one.

        Nothing ever goes back. Of states that come faster than they are read, or while Redis cannot be reached, some
        may be left out, but never the last. Close it when you leave it before its end (`contextlib.aclosing`).
        `InstanceNotFound` if there is none, or none any more; `InvalidKey`, `StorageError`, `NotStarted`.

        >>> async def follow(client: Client) -> None:
        ...     async for state in client.subscribe("order", "order-42"):
        ...         print(state)
        """
        return self._states(self._find(workflow, id))

    # ── what the methods above share ─────────────────────────────────────────────────────────────────────────────

    async def _states(self, keys: InstanceKeys) -> AsyncGenerator[WorkflowState]:
        async with aclosing(self._online().watcher.follow(keys)) as states:
            async for seen in states:
                yield seen.state

    def _find(self, workflow: AnyWorkflow, id: str) -> InstanceKeys:
        """The names of an existing instance: `InvalidKey` comes before `NotStarted`."""
        name = name_of(workflow)
        check_existing_id("instance id", id)
        return self._online().store.keys.of(name, id)

    def _handle(self, workflow: AnyWorkflow, id: str, *, created: bool = False) -> Invocation[Any]:
        return Invocation(self, name_of(workflow), id, workflow=self._definitions.own(workflow), created=created)

    async def _all_names(self, online: Online) -> list[str]:
        announced = await online.reader.announced_names()
        own = [] if self.app is None else [workflow.name for workflow in self.app]
        return sorted({*announced, *own})


class Connecting(Awaitable[Client], AbstractAsyncContextManager[Client]):
    """A client to be: `await` it, and close the client yourself; or use it with `async with`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._client.__aenter__().__await__()

    async def __aenter__(self) -> Client:
        return await self._client.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()


def connect(
    url: str | None = None,
    *,
    app: App | None = None,
    settings: Settings | None = None,
    namespace: str | None = None,
) -> Connecting:
    """A connected client: `client = await connect(…)`, or `async with connect(…) as client`.

    `url` and `namespace` go before `settings`, and these before the environment (`MEMABLE_REDIS_URL` and so on). With
    `app`, workflows named by a string have their types; without, they are known by what the workers announced.

    `StorageError` if Redis cannot be reached within 5 s, is older than 7.0, or holds a namespace of another layout or
    another number of partitions; `SettingsError` for a setting that is not allowed. Each is one line that says what
    to do.
    """
    return Connecting(Client(url, app=app, settings=settings, namespace=namespace))
