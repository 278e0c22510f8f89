"""Pages of instances: complete, in order, and as cheap among a thousand as among ten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import memable
from memable import Client, Status, WorkflowMetadata
from memable.announcement import announcement
from memable.codec import Codec
from memable.connection import ScriptConnection
from memable.listing import Listing
from tests.hand_worker import HandWorker, point
from tests.integration.applications import app, maybe, order, ping


@pytest.fixture(params=[1, 4], ids=["one partition", "four partitions"])
async def worker(redis_url: str, namespace: str, request: pytest.FixtureRequest) -> AsyncIterator[HandWorker]:
    async with HandWorker(redis_url, namespace, partitions=request.param) as worker:
        yield worker


@pytest.fixture
async def client(redis_url: str, namespace: str, worker: HandWorker) -> AsyncIterator[Client]:
    async with memable.connect(redis_url, app=app, namespace=namespace) as client:
        yield client


async def invoked(client: Client, number: int, *, first: int = 0) -> list[str]:
    """Instances one after the other, and their names, newest first."""
    for i in range(first, first + number):
        await client.invoke(("ping", "maybe")[i % 2], 1 if i % 2 else None, id=f"id-{i}")
    return [f"{('ping', 'maybe')[i % 2]}/id-{i}" for i in reversed(range(first, first + number))]


def names(items: list[WorkflowMetadata]) -> list[str]:
    return [f"{item.workflow}/{item.instance_id}" for item in items]


async def all_pages(client: Client, limit: int, **filters: Any) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = await client.list_instances(limit=limit, cursor=cursor, **filters)
        found += names(page.items)
        if page.cursor is None:
            return found
        assert len(page.items) == limit
        cursor = page.cursor


@pytest.mark.spec("list-instances")
async def test_newest_come_first_page_by_page(client: Client) -> None:
    made = await invoked(client, 25)
    for limit in (1, 2, 7, 24, 25, 26, 100):
        assert await all_pages(client, limit) == made
    assert await all_pages(client, 4, workflow=ping) == [name for name in made if name.startswith("ping")]
    assert await all_pages(client, 4, workflow="maybe") == [name for name in made if name.startswith("maybe")]


async def test_a_page_has_the_facts(client: Client, worker: HandWorker) -> None:
    await invoked(client, 1)
    await (await worker.take("ping")).fail("ValueError", "no")
    [item] = (await client.list_instances()).items
    assert item == await client.get_metadata(ping, "id-0")
    assert item.error == "ValueError: no"


@pytest.mark.spec("list-unknown")
async def test_an_unknown_workflow_is_an_empty_page(client: Client) -> None:
    await invoked(client, 1)
    for page in (await client.list_instances("nobody-knows-it"), await client.list_instances(order)):
        assert (page.items, page.cursor) == ([], None)


async def test_a_client_without_an_app_lists_what_is_announced(
    client: Client, worker: HandWorker, redis_url: str
) -> None:
    [newest, _] = await invoked(client, 2)
    await worker.announce("maybe", announcement(maybe, Codec()))
    async with memable.connect(redis_url, namespace=worker.keys.namespace) as stranger:
        assert names((await stranger.list_instances()).items) == [newest]


async def test_one_status_only(client: Client, worker: HandWorker) -> None:
    made = await invoked(client, 6)
    completed, suspended = await worker.take("ping"), await worker.take("ping")
    await completed.complete("pong")
    await suspended.park(point("go"))
    running = await worker.take("maybe")
    assert await all_pages(client, 2, status=Status.COMPLETED) == [f"ping/{completed.id}"]
    assert await all_pages(client, 2, status="suspended") == [f"ping/{suspended.id}"]
    assert await all_pages(client, 2, status=Status.RUNNING, workflow=maybe) == [f"maybe/{running.id}"]
    assert await all_pages(client, 2, status=Status.RUNNING, workflow=ping) == []
    assert len(await all_pages(client, 2, status=Status.QUEUED)) == 3
    assert await all_pages(client, 2) == made


@pytest.mark.parametrize("limit", [1, 3, 20, 100])
async def test_many_of_the_same_microsecond_are_neither_lost_nor_doubled(
    client: Client, worker: HandWorker, limit: int
) -> None:
    made = await invoked(client, 60)
    for name in made:
        workflow, _, id = name.partition("/")
        keys = worker.keys.of(workflow, id)
        # three moments, twenty instances each
        created_us = 1_700_000_000_000_000 + int(id.removeprefix("id-")) % 3
        await worker.command("HSET", keys.instance, "created_us", created_us)
        await worker.command("ZADD", keys.index(Status.QUEUED), created_us, id)
    by_place = sorted(made, key=lambda name: (int(name.rpartition("-")[2]) % 3, *name.split("/")), reverse=True)
    assert await all_pages(client, limit) == by_place


@pytest.mark.disorderly
async def test_what_an_index_should_have_forgotten_is_passed_over(client: Client, worker: HandWorker) -> None:
    made = await invoked(client, 100)
    kept = []
    for position, name in enumerate(made):
        workflow, _, id = name.partition("/")
        keys = worker.keys.of(workflow, id)
        if position % 10 == 5:
            kept.append(name)
        elif position % 10 == 7:
            # expired, and invoked anew while the index of its first life is not trimmed
            await worker.command("ZADD", keys.index(Status.FAILED), 1, id)
            kept.append(name)
        else:
            await worker.command("DEL", keys.instance)
    for limit in (1, 3, 20, 100):
        assert await all_pages(client, limit) == kept
        assert await all_pages(client, limit, status=Status.QUEUED) == kept
        assert await all_pages(client, limit, status=Status.FAILED) == []


async def test_instances_that_move_meanwhile_are_not_lost(client: Client, worker: HandWorker) -> None:
    made = await invoked(client, 60)

    async def work() -> None:
        for _ in range(3):
            for _ in range(30):
                await (await worker.take("ping")).release()
                await (await worker.take("maybe")).release()

    working = asyncio.create_task(work())
    while not working.done():
        assert await all_pages(client, 7) == made
    await working


async def test_what_is_started_meanwhile_does_not_shift_the_pages(client: Client) -> None:
    made = await invoked(client, 10)
    page = await client.list_instances(limit=4)
    await invoked(client, 10, first=10)
    assert names(page.items) == made[:4]
    assert names((await client.list_instances(limit=10, cursor=page.cursor)).items) == made[4:]


@pytest.mark.spec("list-cost")
async def test_a_page_costs_the_same_among_many(
    client: Client, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ids_read: list[int] = []
    ask, read = ScriptConnection._ask, Listing._read

    def spy(connection: ScriptConnection, words: Any, script: Any) -> Any:
        asked.append(script.name if script else words[0])
        return ask(connection, words, script)

    async def counting_read(listing: Listing, *arguments: Any) -> Any:
        indexes = await read(listing, *arguments)
        ids_read.append(sum(map(len, indexes)))
        return indexes

    async def cost(cursor: str | None = None) -> tuple[list[str], int]:
        asked.clear()
        ids_read.clear()
        page = await client.list_instances(limit=5, cursor=cursor)
        assert len(page.items) == 5
        return sorted(asked), sum(ids_read)

    await invoked(client, 20)
    monkeypatch.setattr(ScriptConnection, "_ask", spy)
    monkeypatch.setattr(Listing, "_read", counting_read)
    few, _ = await cost()
    await client.invoke_many(maybe, [1] * 1000)
    many, ids = await cost()
    assert many == few == sorted(["HKEYS", *["page"] * len(worker.keys.partitions), *["HMGET"] * 6])
    assert ids <= 7 * 2 * len(worker.keys.partitions)
    page = await client.list_instances(limit=500)
    later, ids = await cost(page.cursor)
    assert later == many
    assert ids <= 7 * 2 * len(worker.keys.partitions)


async def labelled(client: Client, number: int) -> list[dict[str, str]]:
    """Instances one after the other, in pairs of workflows, with labels of several kinds; the labels, newest first."""
    given = [{"third": str(i % 3), "tenth": str(i % 10), "odd": f"a=/~{i % 2}"} for i in range(number)]
    for i, labels in enumerate(given):
        await client.invoke(("ping", "maybe")[i % 2], 1 if i % 2 else None, id=f"id-{i}", labels=labels)
    return given[::-1]


@pytest.mark.parametrize("wanted", [{"third": "1"}, {"third": "1", "tenth": "7"}, {"odd": "a=/~1", "tenth": "7"}])
async def test_those_with_all_of_the_labels(client: Client, wanted: dict[str, str]) -> None:
    given = await labelled(client, 60)
    await invoked(client, 5, first=60)
    expected = [(59 - at, each) for at, each in enumerate(given) if wanted.items() <= each.items()]
    assert expected
    named = [f"{('ping', 'maybe')[i % 2]}/id-{i}" for i, _ in expected]
    for limit in (1, 3, 100):
        assert await all_pages(client, limit, labels=wanted) == named
        of_maybe = [name for name in named if name.startswith("maybe")]
        assert await all_pages(client, limit, workflow=maybe, labels=wanted) == of_maybe
    items = (await client.list_instances(labels=wanted)).items
    assert [item.labels for item in items] == [each for _, each in expected]


async def test_labels_that_nobody_has_are_an_empty_page(client: Client) -> None:
    await labelled(client, 10)
    for labels in ({"third": "7"}, {"third": "1", "tenth": "11"}, {"first": "1"}):
        page = await client.list_instances(labels=labels)
        assert (page.items, page.cursor) == ([], None)
    assert len(await all_pages(client, 3, labels={})) == 10


async def test_a_status_and_labels(client: Client, worker: HandWorker) -> None:
    await labelled(client, 60)
    done = []
    for _ in range(12):
        run = await worker.take("ping")
        await run.complete("pong")
        done.append(run.id)
    wanted = [f"ping/{id}" for id in done if int(id.removeprefix("id-")) % 3 == 1]
    for limit in (1, 2, 100):
        found = await all_pages(client, limit, labels={"third": "1"}, status="completed")
        assert sorted(found) == sorted(wanted)
    assert not await all_pages(client, 2, labels={"third": "1"}, status="failed")


async def test_a_deleted_instance_is_in_no_listing(client: Client, worker: HandWorker) -> None:
    await labelled(client, 2)
    run = await worker.take("ping")
    await run.complete("pong")
    await client.delete("ping", run.id)
    assert await all_pages(client, 5) == ["maybe/id-1"]
    assert await all_pages(client, 5, labels={"odd": "a=/~0"}) == []


@pytest.mark.disorderly
async def test_a_label_of_an_earlier_life_finds_nothing(client: Client, worker: HandWorker) -> None:
    """Before the leader has trimmed it."""
    await client.invoke(ping, id="1", labels={"a": "1"})
    run = await worker.take("ping")
    await run.complete("pong", retention_ms=-1000)
    await client.invoke(ping, id="1", labels={"b": "2"})
    assert await all_pages(client, 5, labels={"a": "1"}) == []
    assert await all_pages(client, 5, labels={"b": "2"}) == ["ping/1"]


async def test_a_page_of_a_label_costs_the_same_among_many(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = ScriptConnection._ask

    def spy(connection: ScriptConnection, words: Any, script: Any) -> Any:
        asked.append(script.name if script else words[0])
        return ask(connection, words, script)

    async def cost() -> list[str]:
        asked.clear()
        page = await client.list_instances(ping, limit=5, labels={"a": "1", "all": "1"})
        assert len(page.items) == 5
        return sorted(asked)

    await client.invoke_many(ping, [None] * 6, labels={"a": "1", "all": "1"})
    monkeypatch.setattr(ScriptConnection, "_ask", spy)
    few = await cost()
    await client.invoke_many(ping, [None] * 1000, labels={"all": "1"})
    assert await cost() == few


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"": "x"}, "invalid name of a label '': it must be a string of 1 to 60 characters without '='"),
        ({"a=b": "x"}, "invalid name of a label 'a=b'"),
        ({"a\nb": "x"}, "invalid name of a label"),
        ({"a" * 61: "x"}, "invalid name of a label"),
        ({7: "x"}, "invalid name of a label 7"),
        ({"a": ""}, "invalid value of the label 'a': it must be a string of 1 to 200 characters .*, not ''"),
        ({"a": 7}, "invalid value of the label 'a': .*, not 7"),
        ({"a": "x\ny"}, "invalid value of the label 'a'"),
        ({"a": "x" * 201}, "invalid value of the label 'a'"),
        ({str(number): "x" for number in range(11)}, "11 labels are too many: an instance has 10 at most"),
    ],
)
async def test_what_cannot_be_a_label_is_told(client: Client, labels: Any, told: str) -> None:
    with pytest.raises(memable.InvalidLabel, match=told):
        await client.invoke(ping, labels=labels)
    with pytest.raises(memable.InvalidLabel, match=told):
        await client.invoke_many(ping, [None], labels=labels)
    with pytest.raises(memable.InvalidLabel, match=told):
        await client.list_instances(labels=labels)
    with pytest.raises(TypeError, match="labels are a mapping of names to values"):
        await client.invoke(ping, labels=["a=1"])  # type: ignore[call-overload]  # on purpose
    assert (await client.list_instances()).items == []


async def test_a_wrong_question_is_told(client: Client) -> None:
    for limit in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="limit must be a whole number from 1"):
            await client.list_instances(limit=limit)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="'odd' is not a valid Status"):
        await client.list_instances(status="odd")
    with pytest.raises(memable.InvalidKey, match="workflow"):
        await client.list_instances("a/b")
    wrong: list[Any] = ["", "x", "é", "WzEsMl0", "W10", "bnVsbA", "WyJhIiwiYiIsImMiXQ", "W3RydWUsImIiLCJjIl0", 7]
    for cursor in wrong:
        with pytest.raises(memable.InvalidCursor, match="is no cursor: pass the `cursor` of the page before"):
            await client.list_instances(cursor=cursor)
