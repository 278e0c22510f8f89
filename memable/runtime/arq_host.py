"""arq as the host of the memable runtime: the only file that imports arq.

`worker_settings(app)` is what arq calls a settings class. arq makes its `Worker` from the attributes of that class and
from nothing else, so everything is done through them: `on_startup` starts the runtime, `on_shutdown` waits for its end,
and the client in `redis_pool` waits for Redis where arq's own would end the process, and withholds arq's health check
while the runtime is not healthy.

- SIGTERM, SIGINT: arq cancels its own jobs (to be run again by others), or waits `job_completion_wait` for them; then
  the runtime takes no more work, and hands back what has not ended within `MEMABLE_SHUTDOWN_GRACE`. A second one, from
  then on, hands back at once.
- `arq … --check` is 0 while some worker of this namespace and queue on this host is healthy, else 1, at most 12 s late.
- A job whose start was cut off by the loss of Redis is run `job_timeout` + 10 s later, as after the death of a worker.
- `arq … --watch` is refused: arq makes its second client without what it was told for the first.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import logging.config
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, NoReturn, cast, overload
from uuid import uuid4

import arq
import arq.connections
import arq.constants
import arq.logs
import arq.worker
import redis.exceptions
from arq.cron import CronJob
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from memable.arq_serializers import job_deserializer, job_serializer
from memable.client import Client, connect
from memable.connection import Endpoint
from memable.errors import MemableError, NotStarted, StorageError
from memable.runtime.enduring import EnduringClient, EnduringPool, Phase
from memable.runtime.logs import JsonFormatter, set_up_logging
from memable.runtime.runtime import Runtime
from memable.settings import Settings, load_settings
from memable.workflow import App

__all__ = ["invoke", "run", "worker_settings"]

_log = logging.getLogger("memable.arq")

WRONG_START: Final = 2
"""The exit code of a process that cannot start as it was told to."""

POLL_DELAY_S: Final = 1.0
"""How often an idle worker asks arq's queue, each time with one call of Redis; arq's own 0.5 s means twice as many."""

HEALTH_CHECK_S: Final = 5.0
HEALTH_SLACK_MS: Final = 5_000
"""How much longer than arq says its health check lives: its one second is less than a poll can take."""

INVOKE_TRIES: Final = 100
INVOKE_DEFER_S: Final = 60.0
"""`memable.invoke` is tried again while Redis refuses: for an hour and a half in all, at most a minute apart."""

_HOST: Final = "memable"
"""Where arq's ctx has the host, for `invoke`."""

_SETTINGS_OF_MEMABLE: Final = ("redis_settings", "redis_pool")
_DRAIN_POLL_S: Final = 0.05

_COLLECT_EVERY: Final = 10_000
"""How many objects more than before make the garbage collector look at the young ones; Python's own 700 is for less."""

Hook = Callable[[dict[Any, Any]], Awaitable[Any]]


def worker_settings(
    app: App,
    *,
    settings: Settings | None = None,
    functions: Sequence[Any] = (),
    cron_jobs: Sequence[CronJob] = (),
    **arq_options: Any,
) -> type[Any]:
    """A worker process that runs the workflows of `app`, for `arq MODULE.WorkerSettings`.

    `functions` and `cron_jobs` are arq's, as are `arq_options`: `on_startup` (before the runtime starts), `on_shutdown`
    (after it has stopped), `queue_name`, `max_jobs` and so on; an unknown one is a `TypeError`. Redis is where
    `settings.redis_url` says. The environment is read when arq makes its worker, not here.

    Jobs and results are JSON: see `memable.arq_serializers`. With a `job_deserializer` of your own that reads pickle,
    whoever can write to Redis can run what they like in the worker.
    """
    known = inspect.signature(arq.Worker).parameters
    for name in arq_options:
        if name in _SETTINGS_OF_MEMABLE:
            raise TypeError(f"worker_settings() takes no {name!r}: arq uses the same Redis, MEMABLE_REDIS_URL")
        if name not in known:
            raise TypeError(f"worker_settings() got {name!r}, which neither memable nor arq {arq.VERSION} knows")
    attributes = {**arq_options, "functions": tuple(functions), "cron_jobs": tuple(cron_jobs)}
    return _SettingsClass("WorkerSettings", (), {"__module__": __name__, **attributes, "host_of": (app, settings)})


def run(app: App, *, settings: Settings | None = None, burst: bool = False, verbose: bool = False) -> None:
    """Be a worker process of `app` until a signal, as `arq MODULE.WorkerSettings` would be.

    With `burst`, until nothing is queued or running. If it cannot start: one line on stderr, `SystemExit` with code 2.
    """
    logging.config.dictConfig(arq.logs.default_log_config(verbose))
    arq.run_worker(cast("Any", worker_settings(app, settings=settings)), burst=burst)


async def invoke(ctx: Mapping[Any, Any], workflow: str, input: Any = None, id: str | None = None) -> str:
    """The arq function `memable.invoke`: starts an instance, and returns its id.

    The id is the job's own unless one is given, so that a job which arq runs twice starts one instance. Errors are
    those of `Client.invoke`; while Redis cannot be used, the job is tried again later. A cron function may call it:

        async def nightly(ctx):
            await invoke(ctx, "sync", {"batch_size": 16})
    """
    host = ctx.get(_HOST)
    if not isinstance(host, _Host):
        raise NotStarted(
            "memable.invoke is for arq workers of memable: this one's settings are not of worker_settings()"
        )
    try:
        client = await host.client()
        invocation = await client.invoke(workflow, input, id=ctx["job_id"] if id is None else id)
    except StorageError as error:
        defer_s = min(INVOKE_DEFER_S, 2.0 ** min(ctx["job_try"], 10))
        _log.warning("job %s cannot invoke %s, and tries again in %g s: %s", ctx["job_id"], workflow, defer_s, error)
        raise arq.Retry(defer=defer_s) from error
    return invocation.instance_id


class _SettingsClass(type):
    """The type of settings classes. arq looks at `__dict__` when it makes a worker, or checks one: a host is made then.

    Subclasses are fine, as everywhere in Python: what they define goes before what they inherit.
    """

    host_of: tuple[App, Settings | None]

    def __getattribute__(cls, name: str) -> Any:
        return cls._for_arq() if name == "__dict__" else super().__getattribute__(name)

    def _for_arq(cls) -> Mapping[str, Any]:
        inherited: dict[str, Any] = {}
        for each in reversed(cls.__mro__):
            inherited |= type.__getattribute__(each, "__dict__")
        known = inspect.signature(arq.Worker).parameters
        options = {name: value for name, value in inherited.items() if name in known}
        try:
            app, settings = cls.host_of
            host = _Host(app, settings or load_settings(), options)
        except MemableError as error:
            cannot_start(error)
        return MappingProxyType({**inherited, **host.for_arq()})


class _Host:
    """One worker process: what arq is told, and the runtime that it hosts."""

    def __init__(self, app: App, settings: Settings, options: Mapping[str, Any]) -> None:
        self.app, self.settings, self.options = app, settings, options
        self.endpoint = Endpoint.from_url(settings.redis_url, client_name="memable-arq")
        self.runtime = Runtime(app, settings)
        self.queue_name: str = options.get("queue_name") or arq.constants.default_queue_name
        # a key for each machine: the check of one container must not be answered by another container's worker
        self.health_check_key: str = options.get("health_check_key") or (
            f"{self.queue_name}{arq.constants.health_check_key_suffix}:{settings.namespace}:{socket.gethostname()}"
        )
        self.pool = EnduringPool(self.endpoint, self._cannot_start)
        self._client: asyncio.Task[Client] | None = None
        self._main: asyncio.Task[Any] | None = None
        self._stop: asyncio.Task[None] | None = None
        self._has_failed = False
        self._signals = 0
        self._told = asyncio.Event()

    def for_arq(self) -> dict[str, Any]:
        """The attributes of the settings class, as `arq.Worker` takes them."""
        serializers: dict[str, Any] = {"job_serializer": job_serializer, "job_deserializer": job_deserializer}
        queue_options: dict[str, Any] = {name: self.options.get(name) or serializers[name] for name in serializers}
        if (expires_ms := self.options.get("expires_extra_ms")) is not None:
            queue_options["expires_extra_ms"] = expires_ms
        queue = _Queue(self.pool, default_queue_name=self.queue_name, **queue_options)
        queue.host = self
        return {
            "poll_delay": POLL_DELAY_S,
            "health_check_interval": HEALTH_CHECK_S,
            **self.options,
            **queue_options,
            "functions": _Functions(self, (_INVOKE, *(self.options.get("functions") or ()))),
            "queue_name": self.queue_name,
            "health_check_key": self.health_check_key,
            "on_startup": self.start,
            "on_shutdown": self.stop,
            "redis_pool": queue,
            # for `arq --check`: a worker has its pool
            "redis_settings": _settings_for_check(self.endpoint),
        }

    # ── arq's hooks ──────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self, ctx: dict[Any, Any]) -> None:
        """`on_startup`: the user's first, which may prepare what workflows use."""
        if not isinstance(ctx.get("redis"), _Queue):
            self._cannot_start(NotStarted("arq --watch cannot restart a memable worker: restart the process instead"))
        ctx[_HOST] = self
        # arq's client sends again what may have arrived, which is not right for whatever a function asks of Redis
        ctx["redis"] = self._plain_client(ctx["redis"])
        await self._call("on_startup", ctx)
        try:
            await self.runtime.start()
        except MemableError as error:
            self._cannot_start(error)
        except BaseException:
            with suppress(Exception):
                await self.runtime.stop(grace_s=0)
            raise
        self.pool.enter(Phase.RUNNING)
        _leave_modules_to_themselves()
        self._main = asyncio.current_task()
        assert self._main is not None  # arq calls this from a task
        if (worker := _worker_of(self._main)) is not None:
            _end_whatever_its_jobs(worker)
            worker.on_stop = self._note_signal
        # not in on_shutdown, which arq calls when all its own jobs are over
        self._main.add_done_callback(lambda _: self._begin_to_stop())

    async def stop(self, ctx: dict[Any, Any]) -> None:
        """`on_shutdown`: the runtime ends first, then what its workflows may use."""
        try:
            if self._main is not None:
                await self._begin_to_stop()
            if self._client is not None:
                with suppress(MemableError):
                    await (await self._client).aclose()
        finally:
            await self._call("on_shutdown", ctx)

    def _cannot_start(self, error: MemableError) -> NoReturn:
        # arq, on its way out, comes here again
        if self._has_failed:
            raise SystemExit(WRONG_START)
        self._has_failed = True
        cannot_start(error)

    async def _call(self, hook: str, ctx: dict[Any, Any]) -> None:
        given: Hook | None = self.options.get(hook)
        if given is not None:
            await given(ctx)

    def _plain_client(self, queue: _Queue) -> arq.ArqRedis:
        return arq.ArqRedis(
            self.pool,
            job_serializer=queue.job_serializer,
            job_deserializer=queue.job_deserializer,
            default_queue_name=self.queue_name,
            expires_extra_ms=queue.expires_extra_ms,
        )

    def set_up_logging(self) -> None:
        """memable's log, and arq's own in the same format."""
        arq_logger = logging.getLogger("arq")
        set_up_logging(self.settings.log_format, arq_logger.level or logging.INFO)
        for handler in arq_logger.handlers:
            # arq's own handler, as its command line makes it; whoever configures another wants it so
            if self.settings.log_format == "json" and handler.name == "arq.standard":
                handler.setFormatter(JsonFormatter())

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_to_stop(self) -> asyncio.Task[None]:
        if self._stop is None:
            assert self._main is not None  # without a start there is nothing to stop
            is_burst = self._main.done() and not self._main.cancelled() and self._main.exception() is None
            self._stop = asyncio.get_running_loop().create_task(self._end(drain=is_burst))
        return self._stop

    async def _end(self, *, drain: bool) -> None:
        """Let the runtime end. From here on the signals are ours: arq has nothing left to do at a further one."""
        if drain:
            self._on_signals(self._note_signal)
            await self._drain()
        self.pool.enter(Phase.STOPPING)
        self._on_signals(self._hand_back)
        if self._signals > 1:  # a further one came before it could be heard here
            self._hand_back()
        await self.runtime.stop()

    def _note_signal(self, *_: object) -> None:
        self._signals += 1
        self._told.set()

    async def _drain(self) -> None:
        """`--burst` is over when arq's queue is empty, and for memable when its streams are."""
        draining = asyncio.ensure_future(self._drained())
        telling = asyncio.ensure_future(self._told.wait())
        await asyncio.wait([draining, telling], return_when=asyncio.FIRST_COMPLETED)
        for each in (draining, telling):
            each.cancel()
        await asyncio.wait([draining, telling])

    async def _drained(self) -> None:
        # asked again and again: what is left may be in the hands of other processes
        while not await self.runtime.is_idle():  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)

    def _on_signals(self, do: Callable[[], object]) -> None:
        # as arq does, unless it was told not to
        if not self.options.get("handle_signals", True) or threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, do)

    def _hand_back(self) -> None:
        """Told again while runs have their grace: hand them back now."""
        _log.warning("told to stop again: %d instances are handed back now", self.runtime.running)
        self.runtime.hand_all_back()

    # ── what arq functions use ───────────────────────────────────────────────────────────────────────────────────

    async def client(self) -> Client:
        """The client of `memable.invoke`, connected at the first use: most workers never need it."""
        if self._client is None:
            self._client = asyncio.get_running_loop().create_task(self._connect())
        connecting = self._client
        try:
            # several jobs may wait for it, and one that is cancelled must not take it from the others
            return await asyncio.shield(connecting)
        except MemableError:
            if self._client is connecting:
                self._client = None
            raise

    async def _connect(self) -> Client:
        return await connect(self.settings.redis_url, app=self.app, settings=self.settings)


def _worker_of(main: asyncio.Task[Any]) -> Any | None:
    """arq's worker, whose `main` this is; nothing if it is another arq than the one that is pinned."""
    frame = getattr(main.get_coro(), "cr_frame", None)
    found = None if frame is None else frame.f_locals.get("self")
    return found if isinstance(found, arq.Worker) else None


def _end_whatever_its_jobs(worker: Any) -> None:
    """Have arq's worker end as it should also when a signal finds a job just over.

    arq cancels the task of such a job while that writes the result, and then gathers it in `close`: with the
    CancelledError of that task the process would leave at once, with code 1 and without `on_shutdown`.
    """
    close = worker.close

    async def close_after_jobs() -> None:
        if not worker._handle_signals:
            # arq's `close` does so first: no signal has told the jobs to end
            for task in worker.tasks.values():
                task.cancel()
        if worker.tasks:
            await asyncio.wait(worker.tasks.values())
        worker.tasks = {job_id: task for job_id, task in worker.tasks.items() if not task.cancelled()}
        await close()

    worker.close = close_after_jobs


_INVOKE: Final = arq.worker.func(cast("Any", invoke), name="memable.invoke", max_tries=INVOKE_TRIES)


def _leave_modules_to_themselves() -> None:
    """Spare the garbage collector what stays anyway: modules, schemas, the app. A run leaves no cycles to collect.

    In a profile of one-step instances the collector had taken 9 % of a worker's CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, *gc.get_threshold()[1:])


class _Queue(EnduringClient, arq.ArqRedis):  # type: ignore[misc]  # redis-py differs with itself
    """arq's client, as arq itself uses it."""

    host: _Host

    async def enqueue_job(self, function: str, *args: Any, _job_id: str | None = None, **options: Any) -> Any:
        """As arq's, which takes a connection lost on the way for a job that is there already."""
        job_id = _job_id or uuid4().hex
        while True:
            lost_before = self.lost_watches
            job = await super().enqueue_job(function, *args, _job_id=job_id, **options)
            if job is not None or self.lost_watches == lost_before:
                return job

    async def psetex(self, name: Any, time_ms: int | timedelta, value: Any) -> Any:
        """With it arq says that it is well; it is not while the runtime is not, and the key is left to expire."""
        if name == self.host.health_check_key and isinstance(time_ms, int):
            if not self.host.runtime.is_healthy:
                return None
            time_ms += HEALTH_SLACK_MS
        return await super().psetex(name, time_ms, value)


class _Functions(Sequence[Any]):
    """The functions of a worker. arq reads them first, asks for the event loop next, and then logs: just in time."""

    def __init__(self, host: _Host, functions: Sequence[Any]) -> None:
        self._host, self._functions = host, tuple(functions)

    def __iter__(self) -> Iterator[Any]:
        self._host.set_up_logging()
        _use_uvloop()
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._functions[index]


def _use_uvloop() -> None:
    """Have arq find a loop of uvloop, where that is installed, and nobody has chosen another."""
    if threading.current_thread() is not threading.main_thread() or _has_loop():
        return
    try:
        import uvloop
    except ImportError:
        loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)


def _has_loop() -> bool:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    if sys.version_info >= (3, 14):
        with suppress(RuntimeError):
            asyncio.get_event_loop()
            return True
        return False
    # get_event_loop would make one here
    local = getattr(asyncio.get_event_loop_policy(), "_local", None)
    return getattr(local, "_loop", None) is not None


def cannot_start(error: MemableError) -> NoReturn:
    """End the process with one clear line."""
    sys.stderr.write(f"memable: {error}\n")
    raise SystemExit(WRONG_START)


class _CheckedOnce(Retry):
    """For `arq --check`: a server that cannot be reached is one line, and exit code 1 as for every failed check."""

    async def call_with_retry(self, do: Any, fail: Any) -> Any:
        try:
            return await super().call_with_retry(do, fail)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            sys.stderr.write(f"Health check failed: Redis cannot be reached: {error}\n")
            raise SystemExit(1) from None


def _settings_for_check(endpoint: Endpoint) -> arq.connections.RedisSettings:
    """arq's own reading of a URL knows no percent signs: neither in passwords nor in paths."""
    url: MutableMapping[str, Any] = dict(parse_url(endpoint.url))
    ssl = {name: url[name] for name in _SSL_FIELDS if name in url}
    return arq.connections.RedisSettings(
        host=url.get("host", "localhost"),
        port=url.get("port", 6379),
        unix_socket_path=url.get("path"),
        database=url.get("db", 0),
        username=url.get("username"),
        password=url.get("password"),
        ssl=url.get("connection_class") is SSLConnection,
        conn_timeout=5,
        conn_retries=0,
        retry=_CheckedOnce(NoBackoff(), 0),
        **ssl,
    )


_SSL_FIELDS: Final = (
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_cert_reqs",
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_check_hostname",
)
