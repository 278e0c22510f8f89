"""The client against a real server; what a worker would do is done by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import memable
from memable import Client, Invocation, Status, StepKind, StepState, SuspendPoint
from memable.announcement import announcement
from memable.codec import Codec, to_json
from memable.embedded import TemporaryServer
from tests.hand_worker import HandWorker, point
from tests.integration.applications import APPROVAL, Order, Receipt, anything, app, maybe, order, ping
from tests.proxy import Proxy

PLAIN = {"id": "42", "amount": 9.5}


@pytest.fixture(params=[1, 4], ids=["one partition", "four partitions"])
async def worker(redis_url: str, namespace: str, request: pytest.FixtureRequest) -> AsyncIterator[HandWorker]:
    async with HandWorker(redis_url, namespace, partitions=request.param) as worker:
        yield worker


@pytest.fixture
async def client(redis_url: str, namespace: str, worker: HandWorker) -> AsyncIterator[Client]:
    async with memable.connect(redis_url, app=app, namespace=namespace) as client:
        yield client


@pytest.fixture
async def stranger(redis_url: str, namespace: str, worker: HandWorker) -> AsyncIterator[Client]:
    """A client without the app."""
    async with memable.connect(redis_url, namespace=namespace) as client:
        yield client


async def number_of_keys(worker: HandWorker) -> int:
    return len(await worker.command("KEYS", f"{worker.keys.namespace}:*"))


class TestConnecting:
    @pytest.mark.spec("connect")
    async def test_awaited_or_entered_it_is_the_same_client(self, redis_url: str, namespace: str) -> None:
        client = await memable.connect(redis_url, app=app, namespace=namespace)
        try:
            assert (await client.invoke(ping)).created
            async with client as same:
                assert same is client
        finally:
            await client.aclose()
        await client.close()

    async def test_after_closing_every_call_says_so(self, redis_url: str, namespace: str) -> None:
        async with memable.connect(redis_url, app=app, namespace=namespace) as client:
            handle = client.get(order, "1")
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.invoke(ping),
            lambda: client.invoke_many(ping, [None]),
            lambda: client.signal(order, "1", APPROVAL, True),
            lambda: client.resume(order, "1"),
            lambda: client.get_metadata(order, "1"),
            client.list_instances,
            lambda: client.steps(order, "1"),
            handle.wait,
            handle.result,
        ]
        for call in calls:
            with pytest.raises(memable.NotStarted, match="not connected"):
                await call()
        with pytest.raises(memable.NotStarted):
            client.subscribe(order, "1")

    async def test_what_waits_while_the_client_closes_is_told(self, client: Client) -> None:
        handle = await client.invoke(ping, id="1")
        waiting = asyncio.create_task(handle.result())
        async for state in handle.states():
            assert state.status is Status.QUEUED
            break
        await client.aclose()
        with pytest.raises(memable.NotStarted, match="closed while ping/1 was waited for"):
            await waiting

    async def test_an_unreachable_server_is_one_clear_line(self) -> None:
        with pytest.raises(memable.StorageError, match=r"cannot reach Redis at redis://127\.0\.0\.1:1") as raised:
            await memable.connect("redis://user:secret@127.0.0.1:1")
        assert "\n" not in str(raised.value)
        assert "secret" not in str(raised.value)

    async def test_a_wrong_url_is_one_clear_line(self) -> None:
        with pytest.raises(memable.StorageError, match="the Redis URL is wrong"):
            await memable.connect("http://127.0.0.1:6379")

    async def test_a_namespace_of_another_layout_is_refused(self, redis_url: str, worker: HandWorker) -> None:
        namespace = worker.keys.namespace
        await worker.command("HSET", f"{namespace}:meta", "layout", "0")
        with pytest.raises(memable.StorageError, match="layout version 0"):
            await memable.connect(redis_url, namespace=namespace)

    async def test_another_number_of_partitions_is_refused(self, redis_url: str, worker: HandWorker) -> None:
        settings = memable.Settings(redis_url=redis_url, namespace=worker.keys.namespace, partitions=3)
        with pytest.raises(memable.StorageError, match="partitions, not 3"):
            await memable.connect(settings=settings)

    async def test_a_redis_that_is_away_is_an_error_of_ours(
        self, server: TemporaryServer, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with memable.connect(server.url, app=app, namespace=namespace) as client:
            server.kill()
            monkeypatch.setattr(client._online().connection, "_give_up_after_s", 0.3)
            with pytest.raises(memable.StorageError, match="did not answer script invoke"):
                await client.invoke(ping)


class TestInvoke:
    @pytest.mark.spec("invoke", "invocation")
    async def test_it_makes_an_instance_and_gives_a_handle(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(order, Order(id="42", amount=9.5), id="order-42")
        assert (handle.workflow_name, handle.instance_id, handle.created) == ("order", "order-42", True)
        run = await worker.take("order")
        assert (run.id, run.claim.input) == ("order-42", b'{"id":"42","amount":9.5}')

    async def test_without_an_id_each_is_another_instance(self, client: Client) -> None:
        first, second = await client.invoke(ping), await client.invoke(ping)
        assert first.instance_id != second.instance_id
        assert first.created
        assert second.created

    @pytest.mark.spec("invoke-again")
    async def test_the_same_id_and_input_start_nothing(self, client: Client, worker: HandWorker) -> None:
        await client.invoke(order, Order(id="42", amount=9), id="1")
        again = await client.invoke("order", {"amount": 9.0, "id": "42"}, id="1")
        assert not again.created
        await worker.take("order")
        assert await worker.take_if_any("order") is None

    @pytest.mark.spec("invoke-conflict")
    async def test_the_same_id_with_another_input_is_a_conflict(self, client: Client) -> None:
        await client.invoke(order, Order(id="42", amount=9), id="1")
        with pytest.raises(memable.InputConflict, match="order/1 exists already, with another input"):
            await client.invoke(order, Order(id="42", amount=8), id="1")

    async def test_concurrent_invokes_of_one_id_start_one_instance(self, client: Client, worker: HandWorker) -> None:
        handles = await asyncio.gather(*(client.invoke(ping, id="1") for _ in range(50)))
        assert sum(handle.created for handle in handles) == 1

    @pytest.mark.spec("invoke-mismatch", "nan")
    async def test_an_input_that_does_not_fit_is_refused_before_anything_is_written(
        self, client: Client, worker: HandWorker
    ) -> None:
        keys = await number_of_keys(worker)
        wrong: list[tuple[Any, Any]] = [(order, "text"), (order, {"id": 1, "amount": 2}), (order, {}), (maybe, "7")]
        for workflow, value in wrong:
            with pytest.raises(memable.TypeMismatch, match=rf"the input of {workflow.name}/1: type mismatch: expected"):
                await client.invoke(workflow, value, id="1")
        with pytest.raises(memable.SerializationError, match=r"the input of anything/1 has .*datetime"):
            await client.invoke(anything, datetime.now(UTC), id="1")
        with pytest.raises(memable.SerializationError, match=r"the input of anything/1 .*(NaN|nan)"):
            await client.invoke(anything, float("nan"), id="1")
        assert await number_of_keys(worker) == keys

    async def test_an_input_that_is_too_large_is_refused(self, redis_url: str, namespace: str) -> None:
        settings = memable.Settings(redis_url=redis_url, namespace=namespace, max_payload=100)
        async with memable.connect(app=app, settings=settings) as client:
            with pytest.raises(memable.PayloadTooLarge, match="the input of anything/1 is 102 bytes"):
                await client.invoke(anything, "x" * 100, id="1")

    @pytest.mark.spec("invoke-missing")
    async def test_a_missing_input_is_refused(self, client: Client) -> None:
        missing: list[Any] = [order, "order", maybe, anything]
        for workflow in missing:
            with pytest.raises(memable.InputMissing, match="takes an input, and none was given"):
                await client.invoke(workflow)
        with pytest.raises(memable.InputMissing, match="workflow 'order'"):
            await client.invoke("order", None)

    async def test_none_is_an_input_where_the_type_says_so(self, client: Client, worker: HandWorker) -> None:
        await client.invoke(maybe, None)
        assert (await worker.take("maybe")).claim.input == b"null"

    @pytest.mark.spec("invoke-missing")
    async def test_a_superfluous_input_is_refused_and_none_is_no_input(self, client: Client) -> None:
        with pytest.raises(
            memable.TypeMismatch, match="the input of ping/1: type mismatch: expected no input, found int"
        ):
            await client.invoke("ping", 5, id="1")
        assert (await client.invoke("ping", None, id="1")).created
        assert not (await client.invoke(ping, id="1")).created

    @pytest.mark.parametrize("wrong", ["", "a/b", "a~b", "a\n", "x" * 201, None, 7])
    async def test_names_and_ids_are_checked_before_anything_else(self, client: Client, wrong: Any) -> None:
        await client.aclose()
        with pytest.raises(memable.InvalidKey, match="workflow"):
            await client.invoke(wrong, id="1")
        with pytest.raises(memable.InvalidKey, match="workflow"):
            await client.signal(wrong, "1", "key")
        with pytest.raises(memable.InvalidKey, match="suspend point"):
            await client.signal("order", "1", wrong)
        if wrong is not None:
            with pytest.raises(memable.InvalidKey, match="instance id"):
                await client.invoke("nobody-knows-it", id=wrong)

    @pytest.mark.parametrize("wrong", ["", "a/b", "a\n", None, 7])
    async def test_an_existing_instance_may_be_a_child(self, client: Client, wrong: Any) -> None:
        calls: list[Awaitable[Any]] = [client.signal("order", wrong, "key"), client.resume("order", wrong)]
        for call in (*calls, client.steps("order", wrong)):
            with pytest.raises(memable.InvalidKey, match="instance id"):
                await call
        for look in (client.get, client.subscribe):
            with pytest.raises(memable.InvalidKey, match="instance id"):
                look("order", wrong)
        assert await client.get_metadata("order", "parent~life~key~1" + "x" * 300) is None


class TestNamesWithoutTypes:
    @pytest.mark.spec("invoke-unknown")
    async def test_a_name_that_nobody_has_announced_is_not_found(self, stranger: Client) -> None:
        with pytest.raises(memable.WorkflowNotFound, match="'order' is not known in namespace 'test-"):
            await stranger.invoke("order", PLAIN)

    @pytest.mark.spec("invoke-unannounced")
    async def test_a_workflow_object_needs_no_announcement(self, stranger: Client) -> None:
        assert (await stranger.invoke(order, Order(id="42", amount=9.5))).created

    @pytest.mark.spec("invoke-announced")
    async def test_an_announced_name_is_invoked_with_what_its_worker_said(
        self, stranger: Client, worker: HandWorker
    ) -> None:
        for workflow in (order, ping, maybe, anything):
            await worker.announce(workflow.name, announcement(workflow, Codec()))
        await stranger.invoke("order", Order(id="42", amount=9.5), id="1")
        assert not (await stranger.invoke("order", PLAIN, id="1")).created
        with pytest.raises(memable.TypeMismatch, match="expected object, found string"):
            await stranger.invoke("order", "text")
        with pytest.raises(memable.TypeMismatch, match="expected null or number, found string"):
            await stranger.invoke("maybe", "7")
        with pytest.raises(memable.TypeMismatch, match="expected no input, found str"):
            await stranger.invoke("ping", "text")
        with pytest.raises(memable.InputMissing):
            await stranger.invoke("order")
        with pytest.raises(memable.InputMissing):
            await stranger.invoke("order", None)
        assert (await stranger.invoke("maybe", None)).created
        assert (await stranger.invoke("anything", [1, "two", None])).created
        with pytest.raises(memable.SerializationError, match="the input of anything/1 cannot be sent"):
            await stranger.invoke("anything", Client(), id="1")

    async def test_a_new_version_of_the_announcement_is_seen_before_an_input_is_refused(
        self, stranger: Client, worker: HandWorker
    ) -> None:
        await worker.announce("order", announcement(ping, Codec()))
        await stranger.invoke("order")
        await worker.announce("order", announcement(order, Codec()))
        assert (await stranger.invoke("order", PLAIN)).created

    async def test_a_damaged_announcement_is_an_error_of_ours(self, stranger: Client, worker: HandWorker) -> None:
        await worker.announce("order", b"[]")
        with pytest.raises(memable.StorageError, match="announced of workflow 'order' cannot be read"):
            await stranger.invoke("order", PLAIN)


class TestInvokeMany:
    @pytest.mark.spec("invoke-many")
    async def test_handles_come_in_order_and_conflicts_in_their_place(self, client: Client) -> None:
        await client.invoke(maybe, 1, id="b")
        await client.invoke(maybe, 7, id="c")
        handles = await client.invoke_many(maybe, [0, 1, 2], ids=["a", "b", "c"])
        assert [type(each) for each in handles] == [Invocation, Invocation, memable.InputConflict]
        assert [each.created for each in handles if isinstance(each, Invocation)] == [True, False]
        assert [each.instance_id for each in handles] == ["a", "b", "c"]

    async def test_thousands_take_few_batches(self, client: Client) -> None:
        handles = await client.invoke_many("maybe", range(2500))
        assert len({each.instance_id for each in handles}) == 2500
        assert len((await client.list_instances(maybe, limit=3000)).items) == 2500

    @pytest.mark.spec("invoke-many")
    async def test_they_travel_together(self, proxy: Proxy, namespace: str) -> None:
        async with memable.connect(proxy.url, app=app, namespace=namespace) as client:
            before = len(proxy.requests)
            await client.invoke_many("maybe", range(100))
            assert len(proxy.requests) - before < 10

    async def test_one_wrong_input_starts_none(self, client: Client, worker: HandWorker) -> None:
        keys = await number_of_keys(worker)
        with pytest.raises(memable.TypeMismatch, match="the input of maybe/c"):
            await client.invoke_many("maybe", [1, 2, "three"], ids=["a", "b", "c"])
        assert await number_of_keys(worker) == keys

    async def test_ids_and_inputs_must_match(self, client: Client) -> None:
        with pytest.raises(ValueError, match="got 2 inputs and 1 ids"):
            await client.invoke_many(maybe, [1, 2], ids=["a"])
        with pytest.raises(memable.InvalidKey, match="instance id"):
            await client.invoke_many(maybe, [1], ids=["a/b"])

    async def test_a_workflow_without_input_gets_none(self, client: Client) -> None:
        assert [type(each) for each in await client.invoke_many(ping, [None, None])] == [Invocation, Invocation]


@dataclass
class Decision:
    by: str
    when: datetime


class TestSignal:
    async def suspended(self, client: Client, worker: HandWorker, *points: Any) -> Invocation[Any]:
        handle = await client.invoke(order, Order(id="42", amount=9.5), id="1")
        run = await worker.take("order")
        await run.park(*(points or [point("approval:v1", bool)]))
        return handle

    @pytest.mark.spec("signal")
    async def test_it_completes_the_point_and_queues_the_run(self, client: Client, worker: HandWorker) -> None:
        handle = await self.suspended(client, worker)
        assert str(await handle.wait()) == "suspended: approval:v1"
        again = await client.signal(order, "1", APPROVAL, True)
        assert (again.instance_id, again.created) == ("1", False)
        run = await worker.take("order")
        [record] = await client.steps(order, "1")
        assert (record.key, record.kind, record.state, record.result) == (
            "approval:v1",
            StepKind.SIGNAL,
            StepState.COMPLETED,
            True,
        )
        await run.complete(None)

    async def test_of_concurrent_signals_one_wins(self, client: Client, worker: HandWorker) -> None:
        await self.suspended(client, worker)
        answers = await asyncio.gather(
            *(client.signal(order, "1", APPROVAL, bool(i % 2)) for i in range(20)), return_exceptions=True
        )
        assert sum(isinstance(answer, Invocation) for answer in answers) == 1
        assert sum(isinstance(answer, memable.SignalSuperseded) for answer in answers) == 19
        await worker.take("order")
        assert await worker.take_if_any("order") is None

    @pytest.mark.spec("signal-id")
    async def test_a_signal_id_seen_before_is_success_without_a_second_effect(
        self, client: Client, worker: HandWorker
    ) -> None:
        handle = await self.suspended(client, worker)
        await client.signal(order, "1", APPROVAL, True, signal_id="click-7")
        await (await worker.take("order")).complete(None)
        await handle.signal(APPROVAL, False, signal_id="click-7")
        with pytest.raises(memable.SignalSuperseded, match="'approval:v1' to order/1 superseded"):
            await client.signal(order, "1", APPROVAL, True, signal_id="click-8")
        [record] = await client.steps(order, "1")
        assert record.result is True
        assert await worker.take_if_any("order") is None

    async def test_a_payload_of_another_type_leaves_the_point_open(self, client: Client, worker: HandWorker) -> None:
        await self.suspended(client, worker)
        wrong: Any = "yes"
        with pytest.raises(memable.TypeMismatch, match="signal 'approval:v1' to order/1: type mismatch: expected bool"):
            await client.signal(order, "1", APPROVAL, wrong)
        with pytest.raises(memable.TypeMismatch, match="expected bool, found string"):
            await client.signal(order, "1", "approval:v1", "yes")
        with pytest.raises(memable.TypeMismatch, match="expected bool, found int"):
            await client.signal(order, "1", SuspendPoint("approval:v1", int), 1)
        metadata = await client.get_metadata(order, "1")
        assert metadata is not None
        assert metadata.waiting_on == ["approval:v1"]
        await client.signal("order", "1", "approval:v1", True)

    async def test_a_bare_key_sends_a_value_by_its_own_type(self, client: Client, worker: HandWorker) -> None:
        await self.suspended(client, worker, point("decision", Decision), point("when", datetime), point("go"))
        now = datetime.now(UTC)
        await client.signal(order, "1", "decision", Decision("me", now))
        await client.signal(order, "1", "when", now)
        await client.signal(order, "1", "go")
        results = {record.key: record.result for record in await client.steps(order, "1")}
        assert results["decision"]["by"] == "me"
        assert datetime.fromisoformat(results["when"]) == now
        assert results["go"] is None

    async def test_a_timer_may_be_completed_by_hand(self, client: Client, worker: HandWorker) -> None:
        await self.suspended(client, worker, point("cooling-off:v1", after_ms=3_600_000))
        with pytest.raises(memable.TypeMismatch, match="expected None, found boolean"):
            await client.signal(order, "1", "cooling-off:v1", True)
        await client.signal(order, "1", "cooling-off:v1")
        [record] = await client.steps(order, "1")
        assert (record.kind, record.state) == (StepKind.TIMER, StepState.COMPLETED)

    async def test_a_signal_that_nobody_waits_for_is_rejected_with_the_reason(
        self, client: Client, worker: HandWorker
    ) -> None:
        with pytest.raises(memable.SignalRejected, match="there is no such instance"):
            await client.signal(order, "1", APPROVAL, True)
        handle = await self.suspended(client, worker)
        with pytest.raises(memable.SignalRejected, match="'other' to order/1 rejected: the instance does not wait"):
            await handle.signal("other")
        await handle.signal(APPROVAL, True)
        run = await worker.take("order")
        await run.step("charge:v1", 7)
        with pytest.raises(memable.SignalRejected, match="this key is a step"):
            await handle.signal("charge:v1")
        await run.complete(None)
        with pytest.raises(memable.SignalRejected, match="the instance is completed"):
            await handle.signal("other")

    async def test_an_unstorable_payload_is_refused_before_anything_is_written(
        self, client: Client, worker: HandWorker
    ) -> None:
        await self.suspended(client, worker)
        with pytest.raises(memable.SerializationError, match="signal 'approval:v1' to order/1"):
            await client.signal("order", "1", "approval:v1", {1: "one"})
        with pytest.raises(memable.InvalidKey, match="signal id"):
            await client.signal("order", "1", APPROVAL, True, signal_id="a/b")


class TestResume:
    async def test_a_failed_instance_runs_again_without_the_failure(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(order, Order(id="42", amount=9.5), id="1")
        run = await worker.take("order")
        await run.step("charge:v1", 7)
        await run.failed_step("ship:v1", "OSError", "no ship")
        await run.fail("StepFailed", "no ship", failed_keys=["ship:v1"])
        assert (await client.resume(order, "1")).instance_id == "1"
        await handle.resume()
        assert [record.key for record in await client.steps(order, "1")] == ["charge:v1"]
        run = await worker.take("order")
        assert await worker.take_if_any("order") is None
        await run.complete({"order": "42", "total": 7})
        assert await handle.result() == Receipt(order="42", total=7)

    async def test_an_unknown_instance_cannot_be_resumed(self, client: Client) -> None:
        with pytest.raises(memable.InstanceNotFound, match="no instance order/1"):
            await client.resume(order, "1")


class TestLooking:
    async def test_metadata_follows_the_instance(self, client: Client, worker: HandWorker) -> None:
        assert await client.get_metadata(order, "1") is None
        handle = await client.invoke(order, Order(id="42", amount=9.5), id="1")
        queued = await handle.metadata()
        assert queued is not None
        assert (queued.workflow, queued.instance_id, queued.status, queued.attempt) == ("order", "1", "queued", 0)
        assert abs(queued.created_at - datetime.now(UTC)) < timedelta(minutes=5)
        assert (queued.started_at, queued.completed_at, queued.worker, queued.error) == (None, None, None, None)
        run = await worker.take("order")
        await run.set_status("charging")
        running = await handle.metadata()
        assert running is not None
        assert (str(running.state), running.worker, running.attempt) == ("in progress: charging", "by-hand", 1)
        await run.park(point("a"), point("b"), message="waiting for both")
        suspended = await handle.metadata()
        assert suspended is not None
        assert (str(suspended.state), suspended.state.key) == ("suspended: waiting for both", "a")
        assert (suspended.waiting_on, suspended.worker) == (["a", "b"], None)
        await handle.signal("a")
        await (await worker.take("order")).fail("ValueError", "no")
        failed = await handle.metadata()
        assert failed is not None
        assert (failed.error, str(failed.state)) == ("ValueError: no", "failed: ValueError: no")
        assert (failed.attempt, failed.waiting_on) == (2, [])
        assert failed.started_at is not None
        assert failed.completed_at is not None
        assert failed.created_at <= failed.started_at + timedelta(milliseconds=1)
        assert failed.started_at <= failed.completed_at
        assert failed.completed_at.tzinfo is UTC

    @pytest.mark.spec("steps")
    async def test_steps_come_as_they_were_started(self, client: Client, worker: HandWorker) -> None:
        with pytest.raises(memable.InstanceNotFound):
            await client.steps(order, "1")
        await client.invoke(order, Order(id="42", amount=9.5), id="1")
        assert await client.steps(order, "1") == []
        run = await worker.take("order")
        await run.step("z", {"a": [1]})
        await worker.next_millisecond()
        await run.failed_step("y", "OSError", "no")
        await worker.next_millisecond()
        await run.park(point("x", bool))
        first, second, third = await client.steps(order, "1")
        assert (first.key, first.result, first.attempts, first.error) == ("z", {"a": [1]}, 1, None)
        assert (second.key, second.state, second.error) == ("y", StepState.FAILED, "OSError: no")
        assert (third.key, third.state, third.kind, third.completed_at) == ("x", "suspended", "signal", None)


class TestResults:
    @pytest.mark.spec("wait")
    async def test_a_result_has_the_type_that_the_workflow_declares(
        self, client: Client, stranger: Client, worker: HandWorker
    ) -> None:
        handle = await client.invoke(order, Order(id="42", amount=9.5), id="1")
        await (await worker.take("order")).complete({"order": "42", "total": 9})
        assert await handle.result() == Receipt(order="42", total=9)
        assert await client.get("order", "1").result() == Receipt(order="42", total=9)
        assert await stranger.get(order, "1").result() == Receipt(order="42", total=9)
        assert await stranger.get("order", "1").result() == {"order": "42", "total": 9}

    async def test_a_result_that_no_longer_fits_its_type_is_a_mismatch(
        self, client: Client, worker: HandWorker
    ) -> None:
        handle = await client.invoke(order, Order(id="42", amount=9.5), id="1")
        await (await worker.take("order")).complete({"order": 42})
        with pytest.raises(memable.TypeMismatch, match="the result of order/1"):
            await handle.result()

    @pytest.mark.spec("result-raises")
    async def test_a_failure_has_its_type_message_and_step(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(order, Order(id="42", amount=9.5), id="1")
        waiting = asyncio.create_task(handle.result())
        run = await worker.take("order")
        await run.failed_step("ship:v1", "OSError", "no")
        await run.fail("StepFailed", "no ship " + "x" * 5000, failed_keys=["ship:v1"])
        for result in (waiting, handle.result()):
            with pytest.raises(memable.WorkflowFailed, match="order/1 failed: StepFailed: no ship") as raised:
                await result
            assert (raised.value.error_type, raised.value.failed_step) == ("StepFailed", "ship:v1")

    @pytest.mark.disorderly
    async def test_a_cancelled_instance_says_so(self, client: Client, worker: HandWorker) -> None:
        # cancelling is not built yet; what it will leave is
        handle = await client.invoke(ping, id="1")
        keys = worker.keys.of("ping", "1")
        await worker.command("HSET", keys.instance, "status", "cancelled", "message", "out of stock")
        with pytest.raises(memable.WorkflowCancelled, match="ping/1 was cancelled: out of stock"):
            await handle.result()
        assert str(await handle.wait()) == "cancelled: out of stock"

    async def test_an_unknown_instance_is_not_found(self, client: Client) -> None:
        handle = client.get(order, "1")
        assert not handle.created
        for call in (handle.wait, handle.result):
            with pytest.raises(memable.InstanceNotFound, match="no instance order/1"):
                await call()

    async def test_large_outputs_come_as_well(self, client: Client, worker: HandWorker) -> None:
        handle = await client.invoke(anything, 1, id="1")
        waiting = asyncio.create_task(handle.result())
        output = {"text": "x" * 100_000, ',"output":': to_json([1]).decode()}
        await (await worker.take("anything")).complete(output, message='said "so", ,"output":7')
        assert await waiting == output
        assert await handle.result() == output
