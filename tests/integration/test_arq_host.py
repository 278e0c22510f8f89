"""arq as the host: real arq processes, real signals, a real server that dies."""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import arq
import arq.connections
import pytest
import redis.asyncio
from arq.worker import get_kwargs

import memable
from memable import App, Client, Status
from memable.arq_serializers import JobFailed, job_deserializer, job_serializer
from memable.embedded import TemporaryServer
from memable.keys import Keys
from memable.runtime import arq_host
from tests.apps import hosted
from tests.worker_process import TOO_LONG_S, Started, WorkerProcess, until

# arq's own close() calls a method that redis-py has renamed
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")


@pytest.fixture
async def client(server: TemporaryServer) -> AsyncGenerator[Client]:
    async with await memable.connect(server.url, app=hosted.app) as client:
        yield client


@asynccontextmanager
async def queue_of(server: TemporaryServer, **serializers: Any) -> AsyncGenerator[Any]:
    """A plain arq client, as a web app would have one."""
    given = serializers or {"job_serializer": job_serializer, "job_deserializer": job_deserializer}
    pool = redis.asyncio.ConnectionPool.from_url(server.url)
    queue = arq.ArqRedis(pool, **given)
    try:
        yield queue
    finally:
        await pool.disconnect()


async def add_up(server: TemporaryServer) -> None:
    """A plain arq job is run."""
    async with queue_of(server) as queue:
        job = await queue.enqueue_job("add", 20, 22)
        assert job is not None
        assert await job.result(timeout=TOO_LONG_S, poll_delay=0.02) == 42


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# ── what it runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_runs_workflows_and_plain_functions_between_the_hooks_of_the_user(
    server: TemporaryServer, worker: Started, client: Client, tmp_path: Path
) -> None:
    async with worker() as process:
        assert await (await client.invoke(hosted.greet, "ada")).result(timeout=TOO_LONG_S) == "hello ada"
        waiting = await client.invoke(hosted.patient)
        await until(lambda: is_at(waiting, Status.SUSPENDED), "the wait for a signal")
        await waiting.signal(hosted.GO, "and on")
        assert await waiting.result(timeout=TOO_LONG_S) == "and on"
        await add_up(server)
        assert lines(tmp_path / "hooks") == ["startup"]
        assert await process.terminate() == 0
    assert lines(tmp_path / "hooks") == ["startup", "shutdown by on_startup"]
    assert "Traceback" not in process.log


async def test_a_signal_that_finds_a_job_just_over_ends_the_worker_as_any_other(
    server: TemporaryServer, worker: Started, client: Client, tmp_path: Path
) -> None:
    async with worker(MEMABLE_LEASE="60", MEMABLE_SHUTDOWN_GRACE="0") as process:
        held = await client.invoke(hosted.hold, "end")
        await until(lambda: bool(lines(tmp_path / "end.started")), "a run to be handed back")
        async with queue_of(server) as queue:
            await queue.enqueue_job("stop_at_the_end")
        assert await asyncio.to_thread(process.process.wait, 30) == 0
    assert lines(tmp_path / "hooks") == ["startup", "shutdown by on_startup"]
    assert "Traceback" not in process.log
    found = await held.metadata()
    assert found is not None
    assert found.status is Status.QUEUED


async def is_at(invocation: memable.Invocation[Any], status: Status) -> bool:
    found = await invocation.metadata()
    return found is not None and found.status is status


async def test_uvloop_is_used_where_it_is_installed(worker: Started, client: Client) -> None:
    pytest.importorskip("uvloop")
    async with worker():
        assert await (await client.invoke(hosted.loop)).result(timeout=TOO_LONG_S) == "uvloop"


async def test_memable_invoke_starts_one_instance_for_a_job_that_arq_runs_twice(
    server: TemporaryServer, worker: Started, client: Client
) -> None:
    async with worker(), queue_of(server) as queue:
        for _ in range(2):
            job = await queue.enqueue_job("memable.invoke", "greet", "ada", _job_id="job-1")
            assert job is not None
            assert await job.result(timeout=TOO_LONG_S, poll_delay=0.02) == "job-1"
            await queue.delete("arq:result:job-1")  # or arq would not take it again
        assert await client.get(hosted.greet, "job-1").result(timeout=TOO_LONG_S) == "hello ada"
        page = await client.list_instances("greet")
        assert [item.instance_id for item in page.items] == ["job-1"]

        named = await queue.enqueue_job("memable.invoke", "greet", input="eve", id="chosen")
        assert named is not None
        assert await named.result(timeout=TOO_LONG_S, poll_delay=0.02) == "chosen"


async def test_the_errors_of_memable_invoke_are_those_of_the_client(server: TemporaryServer, worker: Started) -> None:
    async with worker(), queue_of(server) as queue:

        async def error_of(*args: Any, **options: Any) -> JobFailed:
            job = await queue.enqueue_job("memable.invoke", *args, **options)
            assert job is not None
            with pytest.raises(JobFailed) as caught:
                await job.result(timeout=TOO_LONG_S, poll_delay=0.02)
            return caught.value

        assert (await error_of("no-such", "ada")).error_type == "WorkflowNotFound"
        assert (await error_of("greet")).error_type == "InputMissing"
        assert (await error_of("greet", 7)).error_type == "TypeMismatch"
        assert (await error_of("greet", "ada", _job_id="a/b")).error_type == "InvalidKey"


async def test_a_cron_function_starts_workflows(worker: Started, client: Client) -> None:
    async with worker(HOSTED_CRON="1"), worker(HOSTED_CRON="1"):

        async def has_two() -> bool:
            return len((await client.list_instances("greet", status=Status.COMPLETED)).items) >= 2

        await until(has_two, "two instances by cron")
        ids = [item.instance_id for item in (await client.list_instances("greet")).items]
        assert all(each.startswith("cron:tick:") for each in ids)


async def test_a_burst_ends_when_nothing_is_left_to_run(worker: Started, client: Client) -> None:
    handles = await client.invoke_many(hosted.greet, [f"n{index}" for index in range(20)])
    done = await asyncio.to_thread(worker().run, "--burst")
    assert done.returncode == 0, done.stderr
    for index, handle in enumerate(handles):
        assert isinstance(handle, memable.Invocation)
        assert await handle.result(timeout=TOO_LONG_S) == f"hello n{index}"


RUN = """
from memable.runtime.arq_host import run
from tests.apps.hosted import app
run(app, burst={burst})
"""


async def test_run_is_the_same_without_arqs_command_line(worker: Started, client: Client) -> None:
    invocation = await client.invoke(hosted.greet, "ada")
    done = await asyncio.to_thread(worker("-c", RUN.format(burst=True)).run)
    assert done.returncode == 0, done.stderr
    assert await invocation.result(timeout=TOO_LONG_S) == "hello ada"
    async with worker("-c", RUN.format(burst=False)) as process:
        assert await (await client.invoke(hosted.greet, "eve")).result(timeout=TOO_LONG_S) == "hello eve"
        assert await process.terminate() == 0


# ── jobs as JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


async def test_a_pickle_is_refused_and_never_executed(server: TemporaryServer, worker: Started, tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    async with worker() as process, queue_of(server, job_serializer=pickle.dumps) as queue:
        assert await queue.enqueue_job("add", Evil(trap), 1, _job_id="evil") is not None
        await process.logged("deserializing job evil failed")
        await add_up(server)
        assert process.is_alive
        assert not trap.exists()
        assert not await queue.exists("arq:job:evil")


@pytest.mark.parametrize(
    "record",
    [
        b"[]",
        b"null",
        b"{}",
        b'{"f":["add"],"a":[],"k":{},"t":null,"et":1}',
        b'{"f":"add","a":{},"k":{},"t":null,"et":1}',
        b'{"f":"add","a":[],"k":[],"t":null,"et":1}',
        b'{"f":"add","a":[],"k":{},"t":"1","et":1}',
        b'{"f":"add","a":[],"k":{},"t":null,"et":"1"}',
        b'{"f":"add","a":[],"k":{},"t":null,"et":1e300}',
        b'{"f":"add","a":[],"k":{},"t":null,"et":9999999999999999}',
        b'{"f":"add","a":[],"k":{},"t":null,"et":true}',
        b"\xff",
    ],
)
def test_a_record_that_would_end_the_worker_is_refused(record: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - arq knows no other
        job_deserializer(record)


def test_a_job_comes_back_as_it_was_written_or_is_refused() -> None:
    job: dict[str, Any] = {"f": "add", "a": (1, [2.5, None]), "k": {"x": "é"}, "t": None, "et": 7}
    assert job_deserializer(job_serializer(job)) == {**job, "a": [1, [2.5, None]]}
    for argument in (float("nan"), {1: 2}, b"bytes", (1,), {1}):
        with pytest.raises(memable.SerializationError, match="arq job add"):
            job_serializer({**job, "a": (argument,)})


def test_an_exception_is_kept_as_its_name_and_text() -> None:
    job: dict[str, Any] = {"f": "add", "a": [], "k": {}, "t": 1, "et": 7, "s": False}
    back = job_deserializer(job_serializer({**job, "r": ValueError("no \ud800")}))["r"]
    assert isinstance(back, JobFailed)
    assert (back.error_type, back.error_message) == ("ValueError", "no ?")
    aborted = job_deserializer(job_serializer({**job, "r": asyncio.CancelledError()}))["r"]
    assert isinstance(aborted, asyncio.CancelledError)


async def test_a_plain_function_that_fails_tells_its_error(server: TemporaryServer, worker: Started) -> None:
    async with worker(), queue_of(server) as queue:
        job = await queue.enqueue_job("fail")
        assert job is not None
        with pytest.raises(JobFailed, match="ValueError: no such thing"):
            await job.result(timeout=TOO_LONG_S, poll_delay=0.02)


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────

NO_TAKEOVER = {"MEMABLE_LEASE": "600"}
"""What is taken over in a test with it was handed back."""


async def held_by(tmp_path: Path, name: str, process: WorkerProcess) -> None:
    await until(lambda: str(process.pid) in lines(tmp_path / f"{name}.started"), "the step in that process")


async def test_sigterm_hands_a_long_step_to_another_worker_at_once(
    worker: Started, client: Client, tmp_path: Path
) -> None:
    async with worker(MEMABLE_SHUTDOWN_GRACE="0.1", **NO_TAKEOVER) as first:
        invocation = await client.invoke(hosted.hold, "x")
        await held_by(tmp_path, "x", first)
        async with worker(**NO_TAKEOVER) as second:
            assert await first.terminate() == 0
            await held_by(tmp_path, "x", second)
            assert await is_at(invocation, Status.RUNNING)
            (tmp_path / "x.go").touch()
            assert await invocation.result(timeout=TOO_LONG_S) == second.pid
            assert lines(tmp_path / "x.started") == [str(first.pid), str(second.pid)]


async def test_sigterm_lets_a_step_end_within_the_grace(worker: Started, client: Client, tmp_path: Path) -> None:
    async with worker(**NO_TAKEOVER) as process:
        invocation = await client.invoke(hosted.hold, "x")
        await held_by(tmp_path, "x", process)
        process.process.send_signal(signal.SIGTERM)
        await process.logged("shutdown on SIGTERM")
        (tmp_path / "x.go").touch()
        assert await invocation.result(timeout=TOO_LONG_S) == process.pid
        assert await process.ended() == 0


TOLD_TWICE = """
import os
import arq
from tests.apps.hosted import WorkerSettings

handle, told = arq.Worker.handle_sig, []

def handle_and_be_told_again(worker, number):
    handle(worker, number)
    told.append(number)
    if len(told) == 1:
        os.kill(os.getpid(), number)

arq.Worker.handle_sig = handle_and_be_told_again
arq.run_worker(WorkerSettings)
"""


async def test_a_second_signal_that_comes_at_once_ends_the_grace_too(
    worker: Started, client: Client, tmp_path: Path
) -> None:
    """While arq's main loop ends, the signals are still arq's, which does nothing more at a second one."""
    async with worker("-c", TOLD_TWICE, MEMABLE_SHUTDOWN_GRACE="600", **NO_TAKEOVER) as process:
        invocation = await client.invoke(hosted.hold, "x")
        await held_by(tmp_path, "x", process)
        process.process.send_signal(signal.SIGTERM)
        assert await process.ended() == 0
        assert "told to stop again: 1 instances are handed back now" in process.log
        assert await is_at(invocation, Status.QUEUED)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_grace(
    worker: Started, client: Client, tmp_path: Path, number: signal.Signals
) -> None:
    async with worker(MEMABLE_SHUTDOWN_GRACE="600", **NO_TAKEOVER) as first:
        invocation = await client.invoke(hosted.hold, "x")
        await held_by(tmp_path, "x", first)
        first.process.send_signal(number)
        await first.logged(f"shutdown on {number.name}")
        first.process.send_signal(number)
        assert await first.ended() == 0
        async with worker(**NO_TAKEOVER) as second:
            await held_by(tmp_path, "x", second)
            (tmp_path / "x.go").touch()
            assert await invocation.result(timeout=TOO_LONG_S) == second.pid


@pytest.mark.spec("called-again")
async def test_sigkill_is_survived_by_another_worker(worker: Started, client: Client, tmp_path: Path) -> None:
    async with worker(MEMABLE_LEASE="1") as first:
        invocation = await client.invoke(hosted.hold, "x")
        await held_by(tmp_path, "x", first)
        async with worker(MEMABLE_LEASE="1") as second:
            first.process.kill()
            await held_by(tmp_path, "x", second)
            (tmp_path / "x.go").touch()
            assert await invocation.result(timeout=TOO_LONG_S) == second.pid


async def test_a_worker_ends_on_sigterm_while_redis_is_away(server: TemporaryServer, worker: Started) -> None:
    async with worker() as process:
        server.kill()
        await process.logged("arq waits for it")
        assert await process.terminate() == 0
        assert "Traceback" not in process.log


# ── a Redis that goes away ───────────────────────────────────────────────────────────────────────────────────────────


async def works(server: TemporaryServer, client: Client, process: WorkerProcess, name: str) -> None:
    """Both kinds of work are done by a process that has never ended."""
    assert await (await client.invoke(hosted.greet, name)).result(timeout=TOO_LONG_S) == f"hello {name}"
    await add_up(server)
    assert process.is_alive


async def test_the_process_outlives_a_redis_that_is_killed_again_and_again(
    server: TemporaryServer, worker: Started, client: Client
) -> None:
    async with worker() as process:
        for attempt in range(1, 4):
            server.kill()
            await process.logged("arq waits for it", times=attempt)
            server.start()
            await until(lambda: has_returned(server), "Redis")
            await works(server, client, process, f"n{attempt}")


async def has_returned(server: TemporaryServer) -> bool:
    async with queue_of(server) as queue:
        return bool(await queue.ping())


async def test_the_process_outlives_the_death_of_its_connections(
    server: TemporaryServer, worker: Started, client: Client
) -> None:
    async with worker() as process, queue_of(server) as admin:
        for attempt in range(5):
            await admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await works(server, client, process, f"n{attempt}")


REFUSALS: dict[str, tuple[list[tuple[str, ...]], list[tuple[str, ...]]]] = {
    "READONLY": ([("REPLICAOF", "127.0.0.1", "1")], [("REPLICAOF", "NO", "ONE")]),
    "MASTERDOWN": (
        [("CONFIG", "SET", "replica-serve-stale-data", "no"), ("REPLICAOF", "127.0.0.1", "1")],
        [("REPLICAOF", "NO", "ONE")],
    ),
    "OOM": ([("CONFIG", "SET", "maxmemory", "1")], [("CONFIG", "SET", "maxmemory", "0")]),
    "NOREPLICAS": (
        [("CONFIG", "SET", "min-replicas-to-write", "1")],
        [("CONFIG", "SET", "min-replicas-to-write", "0")],
    ),
}


@pytest.mark.parametrize("code", REFUSALS)
async def test_the_process_outlives_a_redis_that_refuses(
    server: TemporaryServer, worker: Started, client: Client, code: str
) -> None:
    refuse, serve = REFUSALS[code]
    async with worker() as process, queue_of(server) as admin:
        # due while Redis refuses: arq meets that too
        due = await admin.enqueue_job("add", 1, 2, _defer_by=0.5)
        assert due is not None
        for words in refuse:
            await admin.execute_command(*words)
        await process.logged("memable.connection: Redis at")
        for words in serve:
            await admin.execute_command(*words)
        await works(server, client, process, code)
        assert await due.result(timeout=TOO_LONG_S, poll_delay=0.02) == 3


# ── the health check ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_check_is_green_while_the_worker_is_well(
    server: TemporaryServer, worker: Started, tmp_path: Path
) -> None:
    async with worker() as process, queue_of(server) as queue:
        assert (await asyncio.to_thread(process.run, "--check")).returncode == 0
        # arq runs on, and the runtime does not
        assert await queue.enqueue_job("stop_reading") is not None
        key = f"arq:queue:health-check:memable:{socket.gethostname()}"
        await until(lambda: is_gone(queue, key), "the expiry of the health check")
        unwell = await asyncio.to_thread(process.run, "--check")
        assert unwell.returncode == 1
        assert "no health check sentinel value found" in unwell.stderr
        assert process.is_alive


async def is_gone(queue: Any, key: str) -> bool:
    return not await queue.exists(key)


async def test_the_check_is_red_without_a_worker_and_without_a_redis(server: TemporaryServer, worker: Started) -> None:
    async with worker() as process:
        assert await process.terminate() == 0
    assert (await asyncio.to_thread(process.run, "--check")).returncode == 1
    server.kill()
    away = await asyncio.to_thread(process.run, "--check")
    assert away.returncode == 1
    assert "Redis cannot be reached" in away.stderr
    assert "Traceback" not in away.stderr


# ── a wrong start ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"MEMABLE_REDIS_URL": "redis://127.0.0.1:1"}, "cannot reach Redis at redis://127.0.0.1:1"),
        ({"MEMABLE_REDIS_URL": "amqp://u:secret@h"}, "the Redis URL is wrong"),
        ({"MEMABLE_LEASE": "never"}, "MEMABLE_LEASE is 'never'"),
        ({"MEMABLE_PARTITIONS": "3"}, "has 1 partitions, not 3"),
    ],
)
async def test_what_keeps_a_worker_from_starting_is_one_line_and_exit_code_2(
    worker: Started, client: Client, environment: dict[str, str], said: str
) -> None:
    # the client has entered the namespace, with one partition
    done = await asyncio.to_thread(worker(**environment).run)
    assert done.returncode == 2
    ours = [line for line in done.stderr.splitlines() if line.startswith("memable: ")]
    assert len(ours) == 1
    assert said in ours[0]
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


async def test_a_namespace_of_another_layout_is_refused(server: TemporaryServer, worker: Started) -> None:
    async with queue_of(server) as queue:
        await queue.hset(Keys.meta("memable"), "layout", "999")
    done = await asyncio.to_thread(worker().run)
    assert done.returncode == 2
    assert "layout version 999" in done.stderr
    assert "Traceback" not in done.stderr


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_log_is_json_where_that_is_asked_for(worker: Started, client: Client) -> None:
    process = worker(MEMABLE_LOG_FORMAT="json")
    process.start()
    try:
        invocation = await client.invoke(hosted.loop, id="logged")
        await invocation.result(timeout=TOO_LONG_S)
        assert await process.terminate() == 0
        records = [json.loads(line) for line in process.log.splitlines()]
    finally:
        process.process.kill()
        process.process.wait()
    assert {record["logger"] for record in records} >= {"arq.worker", "memable.runtime", "memable.workflow"}
    (said,) = [record for record in records if "asking for the loop" in record["message"]]
    assert (said["workflow"], said["instance_id"], said["level"]) == ("loop", "logged", "info")


# ── the settings class ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_environment_is_read_when_arq_makes_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = memable.worker_settings(App())
    monkeypatch.setenv("MEMABLE_REDIS_URL", "unix:///tmp/a%20b/r.sock?db=2")
    found = get_kwargs(settings)
    assert isinstance(found, dict)
    checked: Any = found["redis_settings"]
    assert (checked.unix_socket_path, checked.database) == ("/tmp/a b/r.sock", 2)

    monkeypatch.setenv("MEMABLE_REDIS_URL", "rediss://us%40er:p%2Fw@host:1/3?ssl_cert_reqs=none")
    checked = get_kwargs(settings)["redis_settings"]
    assert (checked.username, checked.password, checked.database) == ("us@er", "p/w", 3)
    assert (checked.ssl, checked.ssl_cert_reqs, checked.host, checked.port) == (True, "none", "host", 1)


def test_options_are_arqs_and_a_subclass_goes_first() -> None:
    class Own(memable.worker_settings(App(), queue_name="q", max_jobs=3)):  # type: ignore[misc]  # made at run time
        max_jobs = 4
        functions = (hosted.add,)

    found: dict[str, Any] = get_kwargs(Own)
    assert (found["queue_name"], found["max_jobs"]) == ("q", 4)
    assert [arq.worker.func(each).name for each in found["functions"][:]] == ["memable.invoke", "add"]
    assert found["health_check_key"] == f"q:health-check:memable:{socket.gethostname()}"


def test_the_queue_is_arqs_default_one_and_an_idle_worker_asks_it_once_a_second() -> None:
    found: dict[str, Any] = get_kwargs(memable.worker_settings(App()))
    assert (found["queue_name"], found["poll_delay"]) == ("arq:queue", 1.0)


def test_an_option_that_arq_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="queue_nam"):
        memable.worker_settings(App(), queue_nam="q")
    with pytest.raises(TypeError, match="MEMABLE_REDIS_URL"):
        memable.worker_settings(App(), redis_settings=arq.connections.RedisSettings())


async def test_memable_invoke_outside_of_a_memable_worker_says_so() -> None:
    with pytest.raises(memable.NotStarted, match="worker_settings"):
        await arq_host.invoke({"job_id": "x"}, "greet")
