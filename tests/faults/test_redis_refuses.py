"""Redis is there and does not serve, or has lost what workers rely on: they wait, calmly, and go on by themselves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import redis

import memable.client
import memable.watching
from memable import Client, InstanceNotFound, Invocation, StorageError, WorkflowNotFound
from memable.embedded import TemporaryServer, find_server
from memable.keys import GROUP, Keys
from tests.apps import errands
from tests.worker_process import TOO_LONG_S, Started, WorkerProcess, until

GIVE_UP_S = 1.0
LASTS_S = 2.0
CALM_CALLS_PER_S = 600
"""What the work of these tests asks of Redis at the most, counting what scripts do; a hot loop asks for thousands."""


@pytest.fixture
async def client(server: TemporaryServer, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Client]:
    """One that gives up soon."""
    monkeypatch.setattr(memable.client, "GIVE_UP_S", GIVE_UP_S)
    async with await memable.connect(server.url, app=errands.app) as client:
        yield client


@pytest.fixture
def errand_worker(worker: Started) -> Started:
    def make() -> WorkerProcess:
        command = ("-m", "arq", "tests.apps.errands.WorkerSettings")
        return worker(*command, MEMABLE_CONCURRENCY="4", MEMABLE_LEASE="1")

    return make


# ── what Redis says when it cannot serve ─────────────────────────────────────────────────────────────────────────────

Fault = Callable[[TemporaryServer, redis.Redis, Path], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def oom(_: TemporaryServer, admin: redis.Redis, __: Path) -> AsyncIterator[None]:
    admin.config_set("maxmemory", 1)
    yield
    admin.config_set("maxmemory", 0)


@asynccontextmanager
async def readonly(_: TemporaryServer, admin: redis.Redis, __: Path) -> AsyncIterator[None]:
    admin.replicaof("127.0.0.1", "1")
    yield
    admin.replicaof("NO", "ONE")


@asynccontextmanager
async def misconf(server: TemporaryServer, admin: redis.Redis, __: Path) -> AsyncIterator[None]:
    """A snapshot that cannot be written."""
    in_its_place = server.directory / "dump.rdb"
    in_its_place.mkdir()
    admin.config_set("save", "3600 1000000")
    admin.bgsave()
    await until(lambda: not has_saved(admin), "a snapshot that fails")
    yield
    in_its_place.rmdir()
    # not while the one that failed is still at its end
    await until(lambda: can_save(admin), "a snapshot")


def has_saved(admin: redis.Redis) -> bool:
    return bool(info(admin, "persistence")["rdb_last_bgsave_status"] == "ok")


def can_save(admin: redis.Redis) -> bool:
    with suppress(redis.ResponseError):
        admin.save()
    return has_saved(admin)


def info(admin: redis.Redis, section: str) -> dict[str, Any]:
    return cast("dict[str, Any]", admin.info(section))


@asynccontextmanager
async def loading(server: TemporaryServer, admin: redis.Redis, directory: Path) -> AsyncIterator[None]:
    """Killed, and with much to read, slowly for as long as it is to."""
    admin.eval("for number = 1, 200000 do redis.call('RPUSH', KEYS[1], number) end", 1, "much")
    slow = directory / "slow-server"
    slow.write_text(f'#!/bin/sh\nexec {find_server().path} "$@" --key-load-delay 50\n')
    slow.chmod(0o755)
    server.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMABLE_REDIS_SERVER", str(slow))
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        await until(lambda: refuses(admin), "a server that loads")
    yield
    assert not starting.done(), "it has loaded too fast to be told from one that answers"
    admin.config_set("key-load-delay", 0)
    await starting


def refuses(admin: redis.Redis) -> bool:
    try:
        admin.get("any")
    except redis.BusyLoadingError:
        return True
    except (redis.ConnectionError, redis.TimeoutError):
        pass
    return False


# ── what workers rely on, and somebody takes away ────────────────────────────────────────────────────────────────────


def repeated(take_away: Callable[[redis.Redis], object]) -> Fault:
    """As often as it comes back."""

    @asynccontextmanager
    async def fault(_: TemporaryServer, admin: redis.Redis, __: Path) -> AsyncIterator[None]:
        async def go_on() -> None:
            while True:
                take_away(admin)
                await asyncio.sleep(0.1)

        going_on = asyncio.create_task(go_on())
        yield
        assert not going_on.done()
        going_on.cancel()

    return fault


def destroy_groups(admin: redis.Redis) -> None:
    (partition,) = Keys("memable", partitions=1).partitions
    for workflow in errands.app:
        with suppress(redis.ResponseError):  # there is none
            admin.xgroup_destroy(partition.stream(workflow.name), GROUP)


REFUSALS: dict[str, Fault] = {"OOM": oom, "READONLY": readonly, "MISCONF": misconf, "LOADING": loading}
LOSSES: dict[str, Fault] = {"groups": repeated(destroy_groups), "scripts": repeated(lambda admin: admin.script_flush())}


# ── calm ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def asked(admin: redis.Redis) -> int:
    """How many commands Redis was asked for so far."""
    return sum(each["calls"] + each.get("rejected_calls", 0) for each in info(admin, "commandstats").values())


@asynccontextmanager
async def calmly(admin: redis.Redis, process: WorkerProcess) -> AsyncIterator[None]:
    """What happens here happens without a hot loop, and without a log that is full of it."""
    loop = asyncio.get_running_loop()
    begun_s, before, said_before = loop.time(), asked(admin), process.log.count("\n")
    yield
    for_s = loop.time() - begun_s
    assert asked(admin) - before < CALM_CALLS_PER_S * for_s
    assert process.log.count("\n") - said_before < 60
    assert process.is_alive


def health(directory: Path) -> list[str]:
    """What the worker has said, each time that it changed."""
    return (directory / "health").read_text().split()


async def held_and_queued(client: Client, directory: Path) -> list[Invocation[list[str]]]:
    """Four instances in the middle of a step, which is all that the worker can hold, and ten that wait their turn."""
    invocations = await invoked(client, [f"n{number}" for number in range(14)])
    await until(lambda: len(errands.calls(directory)) == 4, "the worker full")
    return invocations


async def invoked(client: Client, names: list[str]) -> list[Invocation[list[str]]]:
    made = await client.invoke_many(errands.wait, names, ids=names)
    return [each for each in made if isinstance(each, Invocation)]


async def all_done(invocations: list[Invocation[list[str]]], directory: Path) -> None:
    """What was queued is done, and each step was called once."""
    results = await asyncio.gather(*(each.result(timeout=TOO_LONG_S) for each in invocations))
    assert len(results) == 14
    assert sorted(call for calls in results for call in calls) == sorted(errands.calls(directory))


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_refusal_is_waited_out(
    server: TemporaryServer, errand_worker: Started, client: Client, admin: redis.Redis, tmp_path: Path, code: str
) -> None:
    async with errand_worker() as process:
        invocations = await held_and_queued(client, tmp_path)
        async with REFUSALS[code](server, admin, tmp_path):
            await until(lambda: health(tmp_path)[-1] == "red", "the worker unwell")
            changes = len(health(tmp_path))
            async with calmly(admin, process):
                # the steps end now, and their records are refused
                (tmp_path / "go").touch()

                async def is_told() -> bool:
                    with pytest.raises(StorageError, match="did not answer script invoke within 1 s") as refused:
                        await client.invoke(errands.wait, "refused")
                    # while the server was away, it has looked for it more and more seldom
                    return code in str(refused.value)

                await until(is_told, "a client that knows why")
                await asyncio.sleep(LASTS_S - GIVE_UP_S)
            # connected anew to one that is read-only, it looks well until the first refusal
            assert health(tmp_path)[changes:].count("green") == 0
        await all_done(invocations, tmp_path)
        await until(lambda: health(tmp_path)[-1] == "green", "the worker well")
        assert (await client.invoke(errands.wait, "accepted")).created
        assert "Traceback" not in process.log


async def test_the_check_of_arq_is_red_while_redis_refuses_and_green_after(
    server: TemporaryServer, errand_worker: Started, admin: redis.Redis, tmp_path: Path
) -> None:
    async with errand_worker() as process:

        async def check() -> int:
            return (await asyncio.to_thread(process.run, "--check")).returncode

        assert await check() == 0
        async with oom(server, admin, tmp_path):
            await until(lambda: health(tmp_path)[-1] == "red", "the worker unwell")
            # its time comes, only sooner
            admin.delete(f"arq:queue:health-check:memable:{socket.gethostname()}")
            assert await check() == 1

        async def is_green() -> bool:
            return await check() == 0

        await until(is_green, "a check that is green")


@pytest.mark.parametrize("what", LOSSES)
async def test_what_is_lost_again_and_again_is_made_anew(
    server: TemporaryServer, errand_worker: Started, client: Client, admin: redis.Redis, tmp_path: Path, what: str
) -> None:
    async with errand_worker() as process:
        invocations = await held_and_queued(client, tmp_path)
        async with LOSSES[what](server, admin, tmp_path), calmly(admin, process):
            (tmp_path / "go").touch()
            await asyncio.sleep(LASTS_S)
        await all_done(invocations, tmp_path)
        await until(lambda: health(tmp_path)[-1] == "green", "the worker well")
        assert "Traceback" not in process.log


async def test_a_worker_outlives_the_loss_of_everything(
    server: TemporaryServer,
    errand_worker: Started,
    client: Client,
    admin: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memable.watching, "REREAD_S", 0.5)
    async with errand_worker() as process:
        lost = await held_and_queued(client, tmp_path)
        waiting = [asyncio.ensure_future(each.result(timeout=TOO_LONG_S)) for each in lost]
        async with repeated(lambda admin: admin.flushall())(server, admin, tmp_path), calmly(admin, process):
            for number in range(20):
                await client.invoke(errands.wait, f"lost-{number}")
                await asyncio.sleep(LASTS_S / 20)
        # whoever waits is told, and no run that has nothing to carry on keeps a slot
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, InstanceNotFound)
        (tmp_path / "go").touch()
        names = [f"new-{number}" for number in range(14)]
        done = [await invocation.result(timeout=TOO_LONG_S) for invocation in await invoked(client, names)]
        assert [[call.split()[0] for call in calls] for calls in done] == [
            [f"{name}-first", f"{name}-second"] for name in names
        ]
        await until(lambda: health(tmp_path)[-1] == "green", "the worker well")
        assert "Traceback" not in process.log
        async with await memable.connect(server.url) as stranger:

            async def is_announced() -> bool:
                with suppress(WorkflowNotFound):
                    return (await stranger.invoke("wait", "by name")).created
                return False

            await until(is_announced, "the workflows announced anew")


@asynccontextmanager
async def no_right_to_read(_: TemporaryServer, admin: redis.Redis, __: Path) -> AsyncIterator[None]:
    cast("Any", admin).execute_command("ACL", "SETUSER", "default", "-xreadgroup")
    yield
    cast("Any", admin).execute_command("ACL", "SETUSER", "default", "+xreadgroup")


@asynccontextmanager
async def no_stream(_: TemporaryServer, admin: redis.Redis, __: Path) -> AsyncIterator[None]:
    (partition,) = Keys("memable", partitions=1).partitions
    admin.set(partition.stream("wait"), "no stream")
    yield
    admin.delete(partition.stream("wait"))


@pytest.mark.parametrize("fault", [no_right_to_read, no_stream])
async def test_a_worker_that_can_take_no_work_is_unwell(
    server: TemporaryServer, errand_worker: Started, client: Client, admin: redis.Redis, tmp_path: Path, fault: Fault
) -> None:
    async with errand_worker() as process:
        await until(lambda: health(tmp_path)[-1:] == ["green"], "the worker well")
        async with fault(server, admin, tmp_path):
            await until(lambda: health(tmp_path)[-1] == "red", "the worker unwell")
            async with calmly(admin, process):
                await asyncio.sleep(LASTS_S)
            assert health(tmp_path)[-1] == "red"
        await until(lambda: health(tmp_path)[-1] == "green", "the worker well")
        (tmp_path / "go").touch()
        assert len(await (await client.invoke(errands.wait, "x")).result(timeout=TOO_LONG_S)) == 2
