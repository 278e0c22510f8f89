"""deploy/acl/users.acl: with it three users can do what they are for, and have no right that they do not need.

A right that is missing is worse than it seems: Redis checks each command of a script when it comes to it, so that a
transition would stop half way. So what the scripts of a role could call is granted, not only what a test has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import re
import shlex
import socket
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arq
import pytest
import redis.asyncio
from redis.exceptions import NoPermissionError

import memable
from memable import Client, StorageError, lua
from memable.arq_serializers import job_deserializer, job_serializer
from memable.cli.root import run
from memable.connection import Endpoint
from memable.keys import GROUP, Keys
from memable.listening import listen
from memable.lua import Script
from memable.store import applications
from tests.apps import guarded
from tests.configured_server import server_with
from tests.integration.test_docs import REDIS_CONF
from tests.markdown import ROOT
from tests.worker_process import TOO_LONG_S, WorkerProcess, until

REDIS_CLI = ROOT / "docs" / "redis-cli.md"
ACL = ROOT / "deploy" / "acl" / "users.acl"
CLIENT, WORKER, READER = USERS = ("memable-client", "memable-worker", "memable-reader")
CONTAINERS = ("acl", "client", "config", "memory", "object", "pubsub", "script", "xgroup", "xinfo")
KEYS = Keys("memable", partitions=1)


def granted(user: str) -> list[str]:
    """The words of the user's line."""
    (line,) = [each for each in ACL.read_text("utf-8").splitlines() if each.startswith(f"user {user} ")]
    return line.split()[2:]


def commands(user: str) -> set[str]:
    return {word[1:] for word in granted(user) if word.startswith("+")}


@dataclass
class Guarded:
    """A server with the users of the file, and a password for each."""

    admin: Any
    port: int
    directory: Path

    def url(self, user: str) -> str:
        return f"redis://{user}:secret@127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        """For the reader."""
        return f"unix://{READER}:secret@{self.directory / 's'}"

    def client(self, user: str) -> redis.Redis:
        return Endpoint.from_url(self.url(user)).sync_client()

    def denied(self) -> set[str]:
        """What was refused, and to whom. Redis 7.0 has no right for `CLIENT SETINFO`, and redis-py can do without."""
        told = {f"{each['username']}: {each['object']}" for each in self.admin.acl_log()}
        return {each for each in told if not each.endswith("client|setinfo")}


@pytest.fixture
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("r")
    # as an operator does: in the file nobody has a password
    lines = re.sub(r"^(user memable-\w+ on)", r"\1 >secret", ACL.read_text("utf-8"), flags=re.MULTILINE)
    (acl := directory / "users.acl").write_text(f"{lines}user admin on >secret ~* &* +@all\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--aclfile", str(acl), "--bind", "127.0.0.1", "--port", str(port))
    with server_with(REDIS_CONF, directory, *options, user="admin:secret@") as admin:
        yield Guarded(admin, port, directory)


# ── who asks for what ────────────────────────────────────────────────────────────────────────────────────────────────


_OF_CHANNELS = ("PUBLISH", "SUBSCRIBE", "PSUBSCRIBE")


class Witness:
    """Hears everything that is asked of the server, commands inside of scripts included."""

    def __init__(self, guard: Guarded) -> None:
        self._guard = guard
        self._user_at: dict[str, str] = {}
        self.heard = defaultdict[str, list[list[str]]](list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        # without the timeout that others have: there may be nothing to hear for long
        ears = redis.Redis.from_url(self._guard.url("admin"))
        with self._guard.client("admin") as admin, ears, ears.monitor() as monitor:  # type: ignore[no-untyped-call]
            thread = threading.Thread(target=self._listen, args=(monitor, admin))
            thread.start()
            try:
                yield
            finally:
                self._guard.admin.execute_command("PING", "that is all")
                thread.join()

    def _listen(self, monitor: Any, admin: Any) -> None:
        caller = ""
        while (heard := monitor.next_command())["command"] != "PING that is all":
            words = heard["command"].split()
            if words[0] == "AUTH":
                continue  # nobody yet
            if heard["client_type"] == "unix":
                caller = READER  # alone there: its connections are too short to be asked for
            elif heard["client_type"] == "tcp":
                caller = self._user(f"{heard['client_address']}:{heard['client_port']}", admin)
            # what a script calls follows at once
            self.heard[caller].append(words)

    def _user(self, address: str, admin: Any) -> str:
        if address not in self._user_at:
            users = [each["user"] for each in admin.client_list() if each["addr"] == address]
            self._user_at[address] = users[0] if users else "gone"
        return self._user_at[address]

    def commands(self, user: str) -> set[str]:
        return {command_name(words) for words in self.heard[user]}

    def keys(self, user: str) -> set[str]:
        return self._named(words for words in self.heard[user] if words[0] not in _OF_CHANNELS)

    def channels(self, user: str) -> set[str]:
        return self._named(words for words in self.heard[user] if words[0] in _OF_CHANNELS)

    def _named(self, heard: Iterable[list[str]]) -> set[str]:
        return {word for words in heard for word in words[1:] if re.match(r"(memable|arq):", word)}


def command_name(words: list[str]) -> str:
    name = words[0].lower()
    return f"{name}|{words[1].lower()}" if name in CONTAINERS else name


def called_by_scripts(names: list[str]) -> set[str]:
    """What these could call, on whichever way through them."""
    calls = [each for name in names for each in re.findall(r"call\('([A-Z]+)'(?:, '([A-Z]+)')?", lua.load(name).source)]
    return {command_name([*words]) for words in calls}


OF_CLIENTS = ["enter", *(each.name for each in vars(applications).values() if isinstance(each, Script | lua._Later))]
"""The scripts that an application may send."""


def asked_for_in(part: str) -> set[str]:
    """The commands that this part of memable gives itself."""
    text = "\n".join(file.read_text("utf-8") for file in (ROOT / "memable" / part).rglob("*.py"))
    asked = re.findall(r'\bcommand\(\s*"([A-Z]+)"(?:, "([A-Z]+)")?', text)
    assert asked
    return {command_name([*words]) for words in asked}


def named_in_the_library() -> set[str]:
    """What memable's code could ask for itself."""
    files = [file for file in (ROOT / "memable").rglob("*.py") if file.name != "embedded.py"]
    calls = [re.findall(r'"([A-Z]+)"(?:, "([A-Z]+)")?', file.read_text("utf-8")) for file in files]
    return {command_name([*words]) for found in calls for words in found}


# ── what they do ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Scene:
    """What the three of them act in."""

    guard: Guarded
    client: Client
    directory: Path

    def worker(self, **environment: str) -> WorkerProcess:
        words = ("-m", "arq", "tests.apps.guarded.WorkerSettings")
        return WorkerProcess(
            self.directory,
            self.guard.url(WORKER),
            *words,
            MEMABLE_LEASE="1",
            MEMABLE_SHUTDOWN_GRACE="0",
            **environment,
        )

    async def held(self, name: str) -> None:
        """Until a step holds its worker that was given this name."""
        file = self.directory / "held"
        await until(lambda: file.exists() and name in file.read_text().split(), "a run that holds its worker")

    async def everything_a_client_does(self) -> None:
        client = self.client
        held = {"tenant": "acme", "channel": "web"}
        await client.invoke(guarded.hold, "held", id="held", labels=held)
        assert not (await client.invoke(guarded.hold, "held", id="held")).created
        assert len((await client.list_instances(labels=held)).items) == 1
        later = await client.invoke("hold", "later", id="later", delay=3600)
        await later.cancel(reason="too late")
        (wide,) = await client.invoke_many(guarded.wide, ["a wish"], ids=["wide"])
        assert isinstance(wide, memable.Invocation)
        async for state in client.subscribe(guarded.wide, "wide"):
            if state.key == guarded.ANSWER.key:
                break
        await client.send(guarded.wide, "wide", "mailbox", "mail", message_id="1")
        await client.signal(guarded.wide, "wide", "other:v1", buffer=True)
        await client.signal(guarded.wide, "wide", guarded.ANSWER, "yes", signal_id="1")
        failing = await client.invoke(guarded.failing, id="failing")
        with pytest.raises(memable.WorkflowFailed):
            await failing.result(timeout=TOO_LONG_S)
        await failing.resume()
        await failing.wait(timeout=TOO_LONG_S)
        await client.resume("failing", "failing", rerun=["fail:v1"])
        await failing.wait(timeout=TOO_LONG_S)
        assert await client.steps("failing", "failing")
        fork = await client.fork("failing", "failing", new_id="fork")
        await fork.wait(timeout=TOO_LONG_S)
        await client.delete("failing", "failing")
        bereft = await client.invoke(guarded.bereft, id="bereft")
        await bereft.wait(timeout=TOO_LONG_S)
        await bereft.cancel()
        await client.delete("bereft", "bereft")
        assert await (await client.invoke(guarded.lives, 0)).result(timeout=TOO_LONG_S) == 2
        stopped = await client.invoke(guarded.hold, "stopped", id="stopped")
        await self.held("stopped")
        await stopped.cancel()
        assert (await client.get_metadata("wide", "wide")) is not None

    async def everything_arq_does(self) -> None:
        pool = redis.asyncio.ConnectionPool.from_url(self.guard.url("admin"))
        queue = arq.ArqRedis(pool, job_serializer=job_serializer, job_deserializer=job_deserializer)
        try:
            for job, result in (
                (await queue.enqueue_job("add_later", 20, 22), 42),
                (await queue.enqueue_job("add_later", 1, 2, _job_try=2), 3),
                (await queue.enqueue_job("memable.invoke", "brief", "from a job", _job_id="a-job"), "a-job"),
            ):
                assert job is not None
                assert await job.result(timeout=TOO_LONG_S, poll_delay=0.02) == result
        finally:
            await pool.disconnect()
        await until(self.cron_has_invoked, "an instance that a cron function starts")

    async def cron_has_invoked(self) -> bool:
        page = await self.client.list_instances("brief")
        return any(each.instance_id.startswith("cron:") for each in page.items)

    async def everything_a_reader_does(self) -> None:
        url = self.guard.socket_url
        assert await asyncio.to_thread(run, ["list", "--url", url]) == 0
        assert (
            await asyncio.to_thread(run, ["list", "--label", "tenant=acme", "--label", "channel=web", "--url", url])
            == 0
        )
        for words in (["show", "wide/wide"], ["workers"], ["schedules"], ["stats"], ["watch", "--once"]):
            assert await asyncio.to_thread(run, [*words, "--url", url]) == 0
        async with memable.connect(url) as reader:
            for _ in range(2):  # a script is sent once
                assert (await reader.list_instances("wide")).items
            assert await reader.get("wide", "wide").result(timeout=TOO_LONG_S)
            with self.guard.client("admin") as admin:
                await until(lambda: not admin.pubsub_channels(), "the end of what was subscribed to")
        listening = asyncio.ensure_future(asyncio.to_thread(run, ["events", "--limit", "1", "--url", url]))
        with self.guard.client("admin") as admin:
            await until(lambda: bool(admin.pubsub_numpat()), "somebody who listens")
        async with memable.connect(self.guard.url(CLIENT)) as client:
            await client.resume("wide", "wide")
        assert await listening == 0
        with Endpoint.from_url(url).sync_client() as redis_cli:
            for words in commands_of_the_guide():
                if words[0] != "SUBSCRIBE":  # done above
                    with contextlib.suppress(redis.ResponseError):  # not everything there is here, too
                        redis_cli.execute_command(*words)


def commands_of_the_guide() -> list[list[str]]:
    lines = re.findall(r"^\$ redis-cli (?:--raw )?(.*?)(?: \| .*)?$", REDIS_CLI.read_text("utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.timeout(300)  # it starts three workers, one after the other
@pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")  # arq's own close()
async def test_everybody_can_do_their_work_and_has_no_right_that_they_do_not_need(
    guard: Guarded, tmp_path: Path
) -> None:
    witness = Witness(guard)
    with witness.listening():
        async with memable.connect(guard.url(CLIENT), app=guarded.app) as client:
            scene = Scene(guard, client, tmp_path)
            async with scene.worker() as first, scene.worker(MEMABLE_METRICS_PORT="0") as second:
                await scene.everything_a_client_does()
                await scene.everything_arq_does()
                first.process.kill()
                assert (await client.get(guarded.wide, "wide").result(timeout=TOO_LONG_S))[0] == "yes"
                # what it runs at the end is handed back
                assert await second.terminate() == 0
            (tmp_path / "go").touch()
            async with scene.worker():
                assert await client.get(guarded.hold, "held").result(timeout=TOO_LONG_S) == "held"
        await scene.everything_a_reader_does()
    assert guard.denied() == set()
    # what is missing there belongs to what happens once in a while, or to who was quicker
    assert commands(CLIENT) - witness.commands(CLIENT) <= called_by_scripts(OF_CLIENTS)
    assert commands(WORKER) - witness.commands(WORKER) <= called_by_scripts(lua.names()) | named_in_the_library()
    assert commands(READER) == witness.commands(READER)
    for user in USERS:
        for pattern in patterns(user):
            rest = [each for each in patterns(user) if each != pattern and each[0] == pattern[0] != "%"]
            if pattern[0] == "%":
                rest = [each for each in patterns(user) if each[0] == "~"]
            names = witness.channels(user) if pattern[0] == "&" else witness.keys(user)
            needing = [
                name for name in names if matches(name, pattern) and not any(matches(name, each) for each in rest)
            ]
            assert needing, f"{user}: {pattern}"


def patterns(user: str) -> list[str]:
    """Those of its keys and channels."""
    return [word.replace("{*}", "{0}") for word in granted(user) if word[0] in "~&%"]


def matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern.lstrip("%R~&"))


def test_no_script_of_a_role_can_be_stopped_half_way() -> None:
    assert called_by_scripts(OF_CLIENTS) <= commands(CLIENT)
    assert called_by_scripts(lua.names()) | asked_for_in("runtime") | asked_for_in("store") <= commands(WORKER)
    assert called_by_scripts(["page"]) <= commands(READER)


# ── what they cannot do ──────────────────────────────────────────────────────────────────────────────────────────────


def refused(connection: Any, *words: str) -> bool:
    try:
        connection.execute_command(*words)
    except NoPermissionError:
        return True
    return False


HARMFUL = """FLUSHALL|FLUSHDB|SWAPDB 0 1|SHUTDOWN|SAVE|REPLICAOF NO ONE|CONFIG SET maxmemory 1|CONFIG GET *
|ACL LIST|CLIENT LIST|CLIENT KILL ADDR 1:1|MONITOR|KEYS *|SCRIPT FLUSH|FUNCTION LIST|SUBSCRIBE other|HGET other:1 field
|HSET memable-of-others:meta layout 1|EVAL return(redis.call('GET',KEYS[1])) 1 other:1"""


@pytest.mark.parametrize("user", USERS)
def test_nobody_can_harm_the_server_or_touch_what_is_not_of_memable(guard: Guarded, user: str) -> None:
    with guard.client(user) as connection:
        for line in HARMFUL.split("|"):
            assert refused(connection, *line.split()), line


def test_a_client_cannot_do_what_only_workers_may(guard: Guarded) -> None:
    stream, leader = KEYS.partitions[0].stream("hold"), KEYS.partitions[0].leader
    with guard.client(CLIENT) as connection:
        for words in (
            ["XREADGROUP", "GROUP", GROUP, "me", "STREAMS", stream, ">"],
            ["XCLAIM", stream, GROUP, "me", "0", "1-1"],
            ["XAUTOCLAIM", stream, GROUP, "me", "0", "0"],
            ["XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM"],
            ["SET", leader, "me"],
            ["HSET", KEYS.workflows, "hold", "{}"],
            ["ZADD", KEYS.workers, "1", "me"],
            ["HGET", "arq:job:1", "x"],
            ["ZADD", "arq:queue", "1", "job"],
            *(["EVAL", lua.load(name).source, "1", key] for name, key in (("lead", leader), ("beat", KEYS.workers))),
        ):
            assert refused(connection, *words), words


async def test_a_reader_cannot_change_anything(guard: Guarded) -> None:
    async with (
        memable.connect(guard.url(CLIENT), app=guarded.app) as client,
        memable.connect(guard.url(READER), app=guarded.app) as reader,
    ):
        invocation = await client.invoke(guarded.hold, "here", id="here")
        before = guard.admin.lastsave(), await client.get_metadata("hold", "here"), guard.admin.dbsize()
        for attempt in (
            reader.invoke(guarded.hold, "mine", id="mine"),
            reader.cancel("hold", "here"),
            reader.resume("hold", "here"),
            reader.signal("hold", "here", "point:v1", buffer=True),
            reader.send("hold", "here", "mailbox", 1),
            reader.fork("hold", "here", new_id="mine"),
        ):
            with pytest.raises(StorageError, match="NOPERM"):
                await attempt
        assert (guard.admin.lastsave(), await invocation.metadata(), guard.admin.dbsize()) == before
    with guard.client(READER) as connection:
        for line in ("SET memable:x 1", "HSET memable:meta layout 9", "DEL memable:meta", "EXPIRE memable:meta 1"):
            assert refused(connection, *line.split()), line


async def test_who_may_listen_to_all_may_listen_to_some(guard: Guarded) -> None:
    # Redis compares the pattern that is asked for with the one that is granted as they are written
    endpoint = Endpoint.from_url(guard.url(READER))
    async with (
        memable.connect(guard.url(CLIENT), app=guarded.app) as client,
        aclosing(listen(endpoint, KEYS, "hold")) as changes,
    ):
        assert await anext(changes) is None
        for workflow in (guarded.brief, guarded.hold):
            await (await client.invoke(workflow, "here", id="here")).cancel()
        heard = await anext(changes)
        assert heard is not None
        assert (heard.workflow, heard.seen.state.status) == ("hold", "cancelled")


async def test_without_one_of_its_rights_a_user_is_refused(guard: Guarded) -> None:
    guard.admin.execute_command("ACL", "SETUSER", CLIENT, "-xadd")
    async with memable.connect(guard.url(CLIENT), app=guarded.app) as client:
        with pytest.raises(StorageError, match="refused script invoke"):
            await client.invoke(guarded.hold, "here", id="here")


def test_in_the_file_nobody_can_log_in_until_a_password_is_set() -> None:
    for user in USERS:
        assert not [word for word in granted(user) if word == "nopass" or word[0] in ">#"]
    assert "user default off" in ACL.read_text("utf-8").splitlines()
