"""memable doctor: it names what was planted and nothing else, mends what is safe, and raises no false alarm."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import redis

import memable
from memable import App, ChildFailed, Client, Context, Engine, Settings, Status, SuspendPoint
from memable.announcement import announcement
from memable.cli.root import run
from memable.codec import Codec
from memable.connection import Endpoint, ScriptConnection
from memable.doctor import CHECKS, Diagnosis, Patient, Severity, examination, examine, mend, patient, visiting, worst
from memable.doctor.__main__ import table
from memable.doctor.server import LISTPACKS, version
from memable.embedded import TemporaryServer
from memable.keys import ENTRY_FIELD, GROUP, LAYOUT, InstanceKeys, Keys, child_id
from memable.presence import Presence, own_version
from memable.runtime.intake import make_group
from memable.store import Store
from tests.hand_worker import HandWorker, point
from tests.markdown import ROOT
from tests.worker_process import until

GO = SuspendPoint("go:v1", str)

app = App()


@app.workflow("greet")
async def greet(ctx: Context, name: str) -> str:
    return await ctx.step("greet:v1", "hello {}".format, name, returns=str)


@app.workflow("wait")
async def wait(ctx: Context) -> str:
    return await ctx.suspend(GO)


@app.workflow("nap")
async def nap(ctx: Context) -> str:
    await ctx.timer("nap:v1", 3600)
    return "awake"


@app.workflow("parent")
async def parent(ctx: Context) -> str:
    try:
        return await ctx.call("child:v1", wait)
    except ChildFailed as error:
        return error.error_type


SERVER = frozenset(each.name for each in CHECKS if each.is_of_server)


PAUSES_S = examination.PAUSES_S


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "PAUSES_S", (0.0, 0.0))


def settings(url: str, namespace: str = "memable") -> Settings:
    return Settings(redis_url=url, namespace=namespace)


async def examined(url: str, namespace: str = "memable", *, skip: frozenset[str] = SERVER) -> list[Diagnosis]:
    async with visiting(settings(url, namespace), 10_000) as patient:
        return await examine(patient, skip=skip)


def bad(seen: list[Diagnosis]) -> dict[str, str]:
    """Check -> what is worse than a note."""
    return {
        each.check.name: "; ".join(str(finding) for finding in each.findings if finding.severity.is_bad)
        for each in seen
        if each.is_bad
    }


# ── what can be wrong with instances ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class Scene:
    """A namespace with a worker that lives, leads, and does nothing but what the test has it do."""

    url: str
    client: Client
    worker: HandWorker

    @property
    def store(self) -> Store:
        return self.worker.store

    async def command(self, *words: Any) -> Any:
        return await self.store.connection.command(*words)

    def of(self, workflow: str, id: str) -> InstanceKeys:
        return self.store.keys.of(workflow, id)

    async def queued(self) -> InstanceKeys:
        await self.client.invoke(greet, "you", id="1")
        return self.of("greet", "1")

    async def suspended(self) -> InstanceKeys:
        await self.client.invoke(wait, id="1")
        await (await self.worker.take("wait")).park(point(GO.key, str))
        return self.of("wait", "1")

    async def napping(self) -> InstanceKeys:
        await self.client.invoke(nap, id="1")
        await (await self.worker.take("nap")).park(point("nap:v1", after_ms=3_600_000))
        return self.of("nap", "1")

    async def ended(self) -> InstanceKeys:
        await self.client.invoke(greet, "you", id="1")
        await (await self.worker.take("greet")).complete("hello you", retention_ms=3_600_000)
        return self.of("greet", "1")

    async def family(self) -> tuple[InstanceKeys, InstanceKeys]:
        """A parent that waits, and its child that waits, made by a real worker that has stopped since."""
        async with engine(self):
            await self.client.invoke(parent, id="1")

            async def has_parked() -> bool:
                found = await self.client.list_instances("wait", status=Status.SUSPENDED)
                known = await self.client.get_metadata("parent", "1")
                return bool(found.items) and known is not None and known.status is Status.SUSPENDED

            await until(has_parked, "a parent and a child that wait")
        await self.store.lead(self.store.keys.partitions[0], "worker", 600_000)
        life = await self.command("HGET", self.of("parent", "1").instance, "life")
        return self.of("parent", "1"), self.of("wait", child_id("1", life.decode(), "child:v1", 0))


def engine(scene: Scene) -> Engine:
    """A real worker."""
    return Engine(app, url=scene.url, settings=Settings(namespace=scene.store.keys.namespace, lease=1))


@pytest.fixture
async def scene(redis_url: str, namespace: str) -> AsyncIterator[Scene]:
    async with (
        memable.connect(redis_url, app=app, namespace=namespace) as client,
        HandWorker(redis_url, namespace) as worker,
    ):
        store = worker.store
        names = [each.name for each in app]
        presence = Presence("box", 1, own_version(), 1.0, 10, 0, tuple(names))
        await store.beat("worker", presence.said(), 600_000)
        await store.lead(store.keys.partitions[0], "worker", 600_000)
        for each in app:
            await store.connection.command("HSET", store.keys.workflows, each.name, announcement(each, Codec()))
            await make_group(store.connection, store.keys.partitions[0].stream(each.name))
        yield Scene(redis_url, client, worker)


Plant = Callable[[Scene], Awaitable[object]]


async def lost_entry(scene: Scene) -> None:
    keys = await scene.queued()
    await scene.command("XDEL", keys.stream, await scene.command("HGET", keys.instance, "entry"))


async def lost_entry_of_a_run(scene: Scene) -> None:
    await scene.queued()
    run = await scene.worker.take("greet")
    await scene.command("XACK", run.held.keys.stream, GROUP, run.held.entry)


async def lost_lease(scene: Scene) -> None:
    await scene.queued()
    run = await scene.worker.take("greet")
    await scene.command("HDEL", run.held.keys.instance, "lease")


async def lost_timer(scene: Scene) -> None:
    await scene.command("DEL", (await scene.napping()).timers)


async def waits_unnoted(scene: Scene) -> None:
    await scene.command("HDEL", (await scene.suspended()).instance, "waiting")


async def waits_for_nothing(scene: Scene) -> None:
    keys = await scene.suspended()
    await scene.command("HDEL", keys.instance, "waiting")
    await scene.command("DEL", keys.steps)


async def listed_nowhere(scene: Scene) -> None:
    keys = await scene.queued()
    await scene.command("ZREM", keys.index(Status.QUEUED), "1")


async def listed_wrongly(scene: Scene) -> None:
    keys = await scene.ended()
    await scene.command("ZADD", keys.index(Status.RUNNING), 1, "1")


async def listed_and_gone(scene: Scene) -> None:
    await scene.command("ZADD", scene.of("greet", "9").index(Status.SUSPENDED), 1, "9")


async def ended_listed_and_gone(scene: Scene) -> None:
    await scene.command("ZADD", scene.of("greet", "9").index(Status.COMPLETED), 1, "9")


async def immortal(scene: Scene) -> None:
    keys = await scene.ended()
    await scene.command("PERSIST", keys.instance)


async def stray_entry(scene: Scene) -> None:
    await scene.command("XADD", scene.of("greet", "9").stream, "*", "i", "9")


async def second_entry(scene: Scene) -> None:
    keys = await scene.queued()
    await scene.command("XADD", keys.stream, "*", "i", "1")


async def foreign_entry(scene: Scene) -> None:
    await scene.command("XADD", scene.of("greet", "9").stream, "*", "not", "ours")


async def lost_group(scene: Scene) -> None:
    keys = await scene.queued()
    await scene.command("XGROUP", "DESTROY", keys.stream, GROUP)


async def lost_child(scene: Scene) -> None:
    _, child = await scene.family()
    await scene.command("DEL", child.instance, child.steps)
    await scene.command("ZREM", child.index(Status.SUSPENDED), child.instance_id)


async def lost_parent(scene: Scene) -> None:
    keys, _ = await scene.family()
    await scene.command("DEL", keys.instance, keys.steps, keys.family)
    await scene.command("ZREM", keys.index(Status.SUSPENDED), "1")


@pytest.mark.disorderly
@pytest.mark.parametrize(
    ("plant", "check", "named", "end"),
    [
        (lost_entry, "entries", "greet/1 (queued)", "greet"),
        (lost_entry_of_a_run, "entries", "greet/1 (running)", "greet"),
        (lost_lease, "leases", "greet/1", "greet"),
        (lost_timer, "timers", "nap/1", "nap"),
        (waits_unnoted, "asleep", "wait/1", "wait"),
        (waits_for_nothing, "asleep", "wait/1", "wait"),
        (listed_nowhere, "listing", "greet/1", "greet"),
        (listed_wrongly, "listing", "greet/1", ""),
        (listed_and_gone, "listing", "greet/9 (suspended)", ""),
        (ended_listed_and_gone, "listing", "greet/9 (completed)", ""),
        (immortal, "lifetimes", "greet/1", ""),
        (stray_entry, "strays", "names greet/9", ""),
        (second_entry, "strays", "names greet/1", "greet"),
        (foreign_entry, "strays", "stream:greet", ""),
        (lost_group, "groups", "greet (1 waiting)", "greet"),
        (lost_child, "lost-children", "child of parent/1", "parent"),
        (lost_parent, "bereft-children", "child of parent/1", ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_can_be_mended_is_named_mended_and_runs_to_its_end(
    scene: Scene, plant: Plant, check: str, named: str, end: str
) -> None:
    await plant(scene)
    namespace = scene.store.keys.namespace
    async with visiting(settings(scene.url, namespace), 10_000) as patient:
        before = await everything(scene)
        seen = await examine(patient, skip=SERVER)
        assert bad(seen).keys() == {check}, bad(seen)
        assert named in bad(seen)[check]
        assert await everything(scene) == before, "who only looks has changed something"
        (mended,) = await mend(seen)
        assert (mended.check.name, mended.refused) == (check, None)
        assert bad(await examine(patient, skip=SERVER)) == {}
    if not end:
        return
    async with engine(scene):
        match end:
            case "wait":
                await until(lambda: _rests(scene, "wait"), "an instance that waits where it did")
                await scene.client.signal("wait", "1", GO, "on")
                assert await scene.client.get("wait", "1").result(timeout=30) == "on"
            case "nap":
                await scene.client.signal("nap", "1", "nap:v1")
                assert await scene.client.get("nap", "1").result(timeout=30) == "awake"
            case "parent":
                assert await scene.client.get("parent", "1").result(timeout=30) == "InstanceLost"
            case _:
                assert await scene.client.get("greet", "1").result(timeout=30) == "hello you"


async def everything(scene: Scene) -> object:
    names = sorted(await scene.command("KEYS", f"{scene.store.keys.namespace}:*"))
    return [(name, await scene.command("DUMP", name)) for name in names]


async def _rests(scene: Scene, workflow: str) -> bool:
    known = await scene.client.get_metadata(workflow, "1")
    return known is not None and known.status is Status.SUSPENDED and known.waiting_on != []


async def forgetful(scene: Scene) -> None:
    await scene.command("DEL", (await scene.suspended()).steps)


async def overdue(scene: Scene) -> None:
    keys = await scene.napping()
    await scene.command("DEL", keys.partition.leader)
    await scene.command("ZADD", keys.timers, 1000, "nap/1/nap:v1")


async def unserved(scene: Scene) -> None:
    await make_group(scene.store.connection, scene.of("other", "1").stream)
    await scene.store.invoke(scene.of("other", "1"), "life", b"1")


async def unserved_and_at_rest(scene: Scene) -> None:
    await scene.store.invoke(scene.of("other", "1"), "life", b"1")
    await (await scene.worker.take("other")).park(point("key"))


async def abandoned(scene: Scene) -> None:
    await scene.queued()
    held = (await scene.worker.take("greet")).held
    await scene.command("XCLAIM", held.keys.stream, GROUP, "dead", 0, held.entry, "IDLE", 60_000, "JUSTID")


async def no_worker(scene: Scene) -> None:
    await scene.queued()
    await scene.command("DEL", scene.store.keys.workers)


async def left_over(scene: Scene) -> None:
    await scene.command("HSET", scene.of("greet", "9").steps, "greet:v1", "{}")


async def wrong_type(scene: Scene) -> None:
    stream = scene.of("greet", "9").stream
    await scene.command("DEL", stream)
    await scene.command("SET", stream, "mine")


async def untrimmed(scene: Scene) -> None:
    await scene.command("ZADD", scene.of("greet", "9").expiry, 1000, "greet/9")


async def from_the_future(scene: Scene) -> None:
    keys = await scene.queued()
    entry = await scene.command("XADD", keys.stream, "4102444800000-0", "i", "1")
    await scene.command("XDEL", keys.stream, await scene.command("HGET", keys.instance, "entry"))
    await scene.command("HSET", keys.instance, "entry", entry)


async def worker_of_yesterday(scene: Scene) -> None:
    then_s = time.time() - 86_400
    presence = Presence("box", 1, own_version(), 1.0, 10, 0, tuple(each.name for each in app), then_s)
    await scene.store.beat("worker", presence.said(), 600_000)


async def lost_meta(scene: Scene) -> None:
    await scene.queued()
    await scene.command("DEL", f"{scene.store.keys.namespace}:meta")


async def other_layout(scene: Scene) -> None:
    await scene.queued()
    await scene.command("HSET", f"{scene.store.keys.namespace}:meta", "layout", "99")


@pytest.mark.disorderly
@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (forgetful, {"asleep": "wait/1"}),
        (overdue, {"leaders": "partition 0", "overdue": "nap/1/nap:v1"}),
        (unserved, {"served": "other (1 waiting)"}),
        (unserved_and_at_rest, {"served": "other (1 resting)"}),
        (abandoned, {"abandoned": "greet/1 (dead, for 6"}),
        (no_worker, {"workers": "no worker is running"}),
        (left_over, {"leftovers": "steps:greet/9"}),
        (wrong_type, {"types": "stream:greet (a string)"}),
        (untrimmed, {"trimming": "greet/9"}),
        (from_the_future, {"clock": "stream:greet"}),
        (worker_of_yesterday, {"clock": "worker (864"}),
        (lost_meta, {"layout": ":meta is lost"}),
        (other_layout, {"layout": "says layout 99 and 1 partitions"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_a_person_must_mend_is_named(scene: Scene, plant: Plant, named: dict[str, str]) -> None:
    await plant(scene)
    namespace = scene.store.keys.namespace
    seen = await examined(scene.url, namespace)
    assert bad(seen).keys() == named.keys(), bad(seen)
    for check, text in named.items():
        assert text in bad(seen)[check]
    for each in seen:
        for finding in each.findings:
            if finding.severity.is_bad:
                assert finding.advice, "nobody knows what to do"


@pytest.mark.disorderly
async def test_advice_has_the_name_of_an_instance(scene: Scene) -> None:
    await forgetful(scene)
    (asleep,) = [each for each in await examined(scene.url, scene.store.keys.namespace) if each.is_bad]
    assert "memable cancel wait/1;" in asleep.findings[0].advice


async def test_only_the_first_few_are_named(scene: Scene) -> None:
    await scene.client.invoke_many(greet, ["you"] * 5, ids=[str(number) for number in range(5)])
    await scene.command("XTRIM", scene.of("greet", "0").stream, "MAXLEN", 0)
    async with visiting(settings(scene.url, scene.store.keys.namespace), 10_000) as patient:
        seen = await examine(patient, skip=SERVER)
        assert bad(seen)["entries"] == (
            "instances are queued or running without a stream entry: "
            "greet/0 (queued), greet/1 (queued), greet/2 (queued) and 2 more"
        )
        await mend(seen)


async def test_what_is_left_out_is_said(scene: Scene) -> None:
    await scene.client.invoke_many(greet, ["you"] * 150)
    async with visiting(settings(scene.url, scene.store.keys.namespace), 1) as patient:
        assert bad(await examine(patient, skip=SERVER)) == {}
        assert patient.coverage["stream entries"].is_partial
        assert (patient.coverage["listed instances"].seen, patient.coverage["listed instances"].total) == (100, 150)


async def test_all_partitions_are_looked_at(redis_url: str, namespace: str) -> None:
    settings = Settings(redis_url=redis_url, namespace=namespace, partitions=4)
    async with memable.Client(settings=settings, app=app) as client:
        handles = await client.invoke_many(greet, ["you"] * 20, ids=[str(number) for number in range(20)])
        async with visiting(settings, 100) as patient:
            for partition in patient.keys.partitions:
                assert await patient.ask("XTRIM", partition.stream("greet"), "MAXLEN", 0)
            seen = await examine(patient, skip=SERVER)
            (lost,) = [each for each in seen if each.check.name == "entries"]
            assert len(lost.findings[0].subjects) == 20
            await mend(seen)
        async with Engine(app, url=redis_url, settings=settings):
            for each in handles:
                assert isinstance(each, memable.Invocation)
                assert await each.result(timeout=30) == "hello you"


# ── false alarms ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_only_seen_once_was_on_its_way(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader that is missing at the first look is there at the second."""
    partition = scene.store.keys.partitions[0]
    await scene.command("DEL", partition.leader)
    looked = Patient.forget
    looks = 0

    def forget(patient: Patient) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            patient.connection.command("SET", partition.leader, "worker", "PX", 600_000)
        looked(patient)

    monkeypatch.setattr(Patient, "forget", forget)
    assert bad(await examined(scene.url, scene.store.keys.namespace)) == {}
    assert looks >= 2


async def test_while_workers_work_nothing_looks_wrong(
    server: TemporaryServer, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "PAUSES_S", PAUSES_S)
    for name, value in LISTPACKS.items():
        admin.config_set(name, value)
    busy = App()

    @busy.workflow("work")
    async def work(ctx: Context, number: int) -> int:
        total = await ctx.step("add:v1", abs, number, returns=int)
        await ctx.timer("blink:v1", 0.02)
        return await ctx.call("half:v1", half, total)

    @busy.workflow("half")
    async def half(ctx: Context, number: int) -> int:
        return await ctx.step("halve:v1", abs, number, returns=int)

    async with Engine(busy, url=server.url, settings=Settings(retention=0.2, concurrency=20)) as engine:
        done = asyncio.Event()

        async def keep_busy() -> None:
            while not done.is_set():
                handles = await engine.invoke_many(work, range(50))
                await asyncio.gather(*(each.result() for each in handles if isinstance(each, memable.Invocation)))

        working = asyncio.create_task(keep_busy())

        async def leads() -> bool:
            return bool(admin.exists("memable:{0}:leader")) and bool(admin.exists("memable:workers"))

        await until(leads, "a leader")
        for _ in range(5):
            seen = await examined(server.url, skip=frozenset())
            assert bad(seen) == {}
            assert {each.check.name for each in seen} == {each.name for each in CHECKS}
        done.set()
        await working
    seen = await examined(server.url, skip=frozenset())
    assert bad(seen) == {}
    assert worst(seen) is Severity.NOTE


async def test_a_namespace_that_nobody_has_used_is_told_and_not_made(redis_url: str, namespace: str) -> None:
    seen = await examined(redis_url, namespace)
    assert worst(seen) is Severity.NOTE
    assert f"nobody has used the namespace '{namespace}' yet" in [str(f) for each in seen for f in each.findings]
    with Endpoint.from_url(redis_url).sync_client() as client:
        assert client.keys(f"{namespace}:*") == []


# ── what can be wrong with a server ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def loose() -> Iterator[TemporaryServer]:
    """A cache, as a provider sets it up."""
    options = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with TemporaryServer(options=options) as server:
        yield server


async def test_a_server_that_forgets_is_told(loose: TemporaryServer) -> None:
    seen = await examined(loose.url, skip=frozenset())
    assert bad(seen) == {
        "persistence": "there is no append-only file (appendonly no)",
        "eviction": "maxmemory-policy is allkeys-lru",
    }
    advice = {each.check.name: each.findings[0].advice for each in seen if each.is_bad}
    assert "redis.conf: maxmemory-policy noeviction" in advice["eviction"]
    with Endpoint.from_url(loose.url).sync_client() as admin:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("appendonly", "yes")
        admin.config_set("appendfsync", "no")
        told: Any = admin.info("memory")
        admin.config_set("maxmemory", str(1 + int(told["used_memory"]) * 100 // 97))
        admin.config_set("min-replicas-to-write", 1)
        assert bad(await examined(loose.url, skip=frozenset())) == {
            "persistence": "appendfsync is no",
            "memory": "the server is nearly full",
            "replicas": "min-replicas-to-write is 1, and too few replicas follow",
        }
        admin.config_set("maxmemory", "0")
        admin.config_set("maxmemory-policy", "volatile-ttl")
        admin.replicaof("127.0.0.1", "1")
        last = bad(await examined(loose.url, skip=frozenset()))
        assert (last["replicas"], last["eviction"]) == ("this server is a replica", "maxmemory-policy is volatile-ttl")


async def test_an_old_server_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def info(_: Patient, section: str) -> dict[str, str]:
        return {"redis_version": "6.2.14"}

    monkeypatch.setattr(Patient, "info", info)
    async with visiting(settings(scene.url, scene.store.keys.namespace), 10) as patient:
        (finding,) = await version(patient)
    assert finding.severity is Severity.PROBLEM
    assert "is Redis 6.2.14, and memable needs Redis 7.0 or Valkey 8 or later" in finding.what


def test_small_hashes_are_as_small_as_in_the_file_for_deployments() -> None:
    lines = (ROOT / "deploy" / "redis.conf").read_text("utf-8").splitlines()
    assert {f"{name} {size}" for name, size in LISTPACKS.items()} <= set(lines)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
async def doctor(
    scene: Scene, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Awaitable[Ran]]:
    """`memable doctor` for the namespace, without the checks of the server, which other tests share."""
    monkeypatch.setenv("MEMABLE_REDIS_URL", scene.url)
    monkeypatch.setenv("MEMABLE_NAMESPACE", scene.store.keys.namespace)
    skipped = [word for name in SERVER for word in ("--skip", name)]

    async def call(*words: str) -> Ran:
        code = await asyncio.to_thread(run, ["doctor", *skipped, *words])
        said = capfd.readouterr()
        return Ran(code, str(said.out), str(said.err))

    return call


async def test_the_command_says_what_it_would_mend_and_mends_it(
    scene: Scene, doctor: Callable[..., Awaitable[Ran]]
) -> None:
    well = await doctor()
    assert (well.code, well.err) == (0, "")
    assert well.out.endswith("\nnothing is wrong\n")
    await lost_entry(scene)
    ill = await doctor()
    assert ill.code == 1
    for line in (
        "entries          problem  instances are queued or running without a stream entry: greet/1 (queued)",
        "  do: memable doctor --fix",
        "  --fix: it is queued again, with an entry",
        "1 problem; --fix mends 1 of them",
    ):
        assert f"\n{line}\n" in ill.out, ill.out
    told = (await doctor("--json")).document
    assert (told["worst"], told["mended"]) == ("problem", [])
    (finding,) = [each for each in told["findings"] if each["severity"] == "problem"]
    assert finding == {
        "check": "entries",
        "severity": "problem",
        "found": "instances are queued or running without a stream entry: greet/1 (queued)",
        "count": 1,
        "examples": ["greet/1"],
        "means": "no worker will take them; a leader mends it on its next round, which takes a minute or more",
        "todo": "memable doctor --fix",
        "fix": "it is queued again, with an entry",
    }
    fixed = await doctor("--fix")
    assert fixed.code == 0
    assert fixed.out.splitlines()[0] == (
        "mended entries: instances are queued or running without a stream entry: greet/1 (queued): "
        "it is queued again, with an entry"
    )
    assert (await doctor("--json")).document["coverage"]["stream entries"] == {"seen": 1, "total": 1}


async def test_the_command_says_what_it_has_not_looked_at(scene: Scene, doctor: Callable[..., Awaitable[Ran]]) -> None:
    await scene.client.invoke_many(greet, ["you"] * 3)
    assert "\nlooked at 1 of 3 stream entries; --limit 3 looks at all\n" in (await doctor("--limit", "1")).out


async def test_what_is_skipped_is_not_asked(scene: Scene, doctor: Callable[..., Awaitable[Ran]]) -> None:
    await lost_entry(scene)
    assert (await doctor("--skip", "entries")).code == 0
    assert (await doctor("--skip", "nothing")).code == 2
    assert (await doctor("--fix")).code == 0


async def test_a_server_that_is_not_there_is_one_line(
    doctor: Callable[..., Awaitable[Ran]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient, "GIVE_UP_S", 0.1)
    away = await doctor("--url", "unix:///nowhere/s")
    assert (away.code, away.out) == (2, "")
    assert away.err.startswith("memable: cannot reach Redis at unix:///nowhere/s")
    assert len(away.err.splitlines()) == 1


def test_the_page_has_what_the_checks_say_of_themselves() -> None:
    assert table() in (ROOT / "docs" / "doctor.md").read_text("utf-8"), "run: python -m memable.doctor docs/doctor.md"


# ── users who may not do everything ──────────────────────────────────────────────────────────────────────────────────


def let(admin: redis.Redis, user: str, *rules: str) -> None:
    """Have a user with these rules, who logs in with `secret`."""
    admin.acl_setuser(user, enabled=True, reset=True)
    ask: Any = admin.execute_command
    ask("ACL", "SETUSER", user, ">secret", *rules)


def url_of(server: TemporaryServer, user: str) -> str:
    return server.url.replace("unix://", f"unix://{user}:secret@")


async def test_a_user_who_may_not_run_scripts_is_named_with_the_right_that_is_missing(
    server: TemporaryServer, admin: redis.Redis
) -> None:
    let(admin, "web", "~*", "&*", "+@all", "-evalsha")
    seen = await examined(url_of(server, "web"), skip=frozenset())
    told = bad(seen)
    assert told["rights"] == "user 'web' lacks rights of a client: evalsha"
    (rights,) = [each for each in seen if each.check.name == "rights"]
    assert rights.findings[0].advice == "redis-cli ACL SETUSER web '~memable:*' '&memable:*' +evalsha"


async def test_the_user_of_a_worker_is_named_too(server: TemporaryServer, admin: redis.Redis) -> None:
    let(admin, "crew", "~*", "&*", "+@all", "-xpending")
    endpoint = Endpoint.from_url(url_of(server, "crew"), client_name="memable-worker:w")
    connection = ScriptConnection(endpoint, give_up_after_s=5)
    await connection.start()
    try:
        told = bad(await examined(server.url, skip=frozenset()))
    finally:
        await connection.close()
    assert told == {"rights": "user 'crew' lacks rights of a worker: xpending"}


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ("+@read +ping +client|setname +eval +evalsha", "user 'eve' may only look"),
        ("+@read +ping +client|setname", "user 'eve' may only look, and run no scripts"),
        ("+@all -eval -evalsha", "user 'eve' lacks rights of a client: eval, evalsha"),
        ("+@read +ping +client|setname +eval +evalsha -xinfo", "user 'eve' may only look"),
        ("+ping +client|setname", "user 'eve' may only look, and run no scripts"),
    ],
)
async def test_a_user_of_few_rights_sees_what_it_may(
    server: TemporaryServer, admin: redis.Redis, rights: str, said: str
) -> None:
    let(admin, "eve", "~*", "&*", "-@all", *rights.split())
    async with Engine(app, url=server.url) as engine:
        await engine.invoke(greet, "you")
        seen = await examined(url_of(server, "eve"), skip=frozenset())
    found = {each.check.name: each.findings for each in seen}
    assert said in [finding.what for finding in found["rights"]]
    assert any("has no right to" in finding.what for each in seen for finding in each.findings), found
    for each in seen:
        for finding in each.findings:
            if finding.what.startswith("not looked at"):
                assert "ACL SETUSER eve +" in finding.advice or "ACL LOG" in finding.advice


async def test_users_for_deployments_have_all_the_rights_that_the_doctor_asks_for(
    server: TemporaryServer, admin: redis.Redis
) -> None:
    lines = (ROOT / "deploy" / "acl" / "users.acl").read_text("utf-8").splitlines()
    for line in lines:
        _, user, *rights = line.split()
        if user != "default":
            let(admin, user, *rights)
    for user, said in (
        ("memable-worker", "user 'memable-worker' may do all that workers do"),
        ("memable-client", "user 'memable-client' may do all that clients do"),
        ("memable-reader", "user 'memable-reader' may only look"),
    ):
        async with visiting(settings(url_of(server, user)), 10) as patient:
            (rights_,) = [each for each in CHECKS if each.name == "rights"]
            assert [str(each) for each in await rights_.ask(patient)] == [said]


async def test_who_may_not_mend_is_told(server: TemporaryServer, admin: redis.Redis) -> None:
    let(admin, "eve", "~*", "&*", "+@all", "-xdel")
    admin.hset("memable:meta", mapping={"layout": LAYOUT, "partitions": 1})
    admin.xadd(Keys("memable", partitions=1).of("greet", "9").stream, {ENTRY_FIELD: "9"})
    async with visiting(settings(url_of(server, "eve")), 10) as patient:
        seen = await examine(patient, skip={"rights"})
        refused = {each.check.name: each.refused for each in await mend(seen)}
    assert refused["strays"] is not None
