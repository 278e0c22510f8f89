"""The types that a caller sees: checked by mypy and pyright like every file here, and the refusals by mypy below."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

from memable import (
    ChildFailed,
    Client,
    Context,
    InputConflict,
    Invocation,
    Status,
    StepFailed,
    SuspendPoint,
    Workflow,
    WorkflowState,
)
from tests.integration.applications import APPROVAL, Order, Receipt, maybe, order, ping

if TYPE_CHECKING:

    async def _accepted(client: Client) -> None:
        assert_type(order, Workflow[Order, Receipt])
        assert_type(ping, Workflow[None, str])
        handle = await client.invoke(order, Order(id="42", amount=9.5), id="order-42")
        assert_type(handle, Invocation[Receipt])
        assert_type(await handle.result(), Receipt)
        assert_type(await client.invoke(ping), Invocation[str])
        assert_type(await client.invoke(ping, None), Invocation[str])
        assert_type(await client.invoke(maybe, None), Invocation[int | None])
        assert_type(await client.invoke("order", {"id": "42"}), Invocation[Any])
        assert_type(await client.invoke("ping"), Invocation[Any])
        many = await client.invoke_many(order, [Order(id="42", amount=9.5)])
        assert_type(many, list[Invocation[Receipt] | InputConflict])
        assert_type(client.get(order, "42"), Invocation[Receipt])
        assert_type(client.get("order", "42"), Invocation[Any])
        assert_type(await client.signal(order, "42", APPROVAL, True), Invocation[Receipt])
        assert_type(await client.signal("order", "42", APPROVAL, True, signal_id="1"), Invocation[Any])
        assert_type(await client.signal(order, "42", "key"), Invocation[Receipt])
        assert_type(await client.signal(order, "42", SuspendPoint("key")), Invocation[Receipt])
        assert_type(await client.resume(order, "42"), Invocation[Receipt])
        assert_type(await client.cancel(order, "42", reason="no more"), WorkflowState)
        assert_type(await handle.cancel(), WorkflowState)
        assert_type(await client.resume(order, "42", rerun=["key", APPROVAL]), Invocation[Receipt])
        assert_type(await client.fork(order, "42", before=APPROVAL, new_id="43"), Invocation[Receipt])
        assert_type(await client.fork("order", "42", before="key"), Invocation[Any])
        labelled = await client.invoke(order, Order(id="42", amount=9.5), labels={"tenant": "acme"})
        assert_type(labelled, Invocation[Receipt])
        await handle.signal(APPROVAL, False)
        await handle.signal("key", {"any": "thing"})
        assert_type(await client.signal(order, "42", APPROVAL, True, buffer=True), Invocation[Receipt])
        assert_type(await client.send(order, "42", "chat", {"any": "thing"}), Invocation[Receipt])
        assert_type(await client.send("order", "42", "chat", 1, message_id="1"), Invocation[Any])

    async def _chosen_from(ctx: Context) -> None:
        same = await ctx.first("key", {"a": ctx.suspend(APPROVAL), "b": ctx.suspend(SuspendPoint("b", bool))})
        assert_type(same, tuple[str, bool])
        name, _ = await ctx.first("key", {"a": ctx.suspend(APPROVAL), "b": ctx.timer("b", 1)})
        assert_type(name, str)
        names = await ctx.first("key", {Status.QUEUED: ctx.timer("a", 1), Status.RUNNING: ctx.timer("b", 1)})
        assert_type(names, tuple[Status, None])

    async def _waits(ctx: Context) -> None:
        assert_type(await ctx.suspend(APPROVAL, timeout=1), bool)
        assert_type(await ctx.suspend("key", timeout=1), Any)
        assert_type(await ctx.receive("key", "chat"), Any)
        assert_type(await ctx.receive("key", "chat", timeout=1, returns=Order), Order)

    async def _maps(ctx: Context) -> None:
        async def double(number: int) -> int:
            return 2 * number

        def name(number: int) -> str:
            return str(number)

        def anything(number, more=None):  # type: ignore[no-untyped-def]  # an author without annotations
            return number

        assert_type(await ctx.map("key", [1, 2], double), list[int])
        assert_type(await ctx.map("key", range(3), name, concurrency=2), list[str])
        assert_type(await ctx.map("key", [1, 2], double, fail_fast=False), list[int | StepFailed])
        assert_type(await ctx.map("key", (1, 2), name, fail_fast=False), list[str | StepFailed])
        assert_type(await ctx.map("key", [1, 2], anything, returns=Order), list[Order])
        assert_type(await ctx.map("key", [1], anything, returns=Order, fail_fast=False), list[Order | StepFailed])
        assert_type(await ctx.step("key", double, 1, upgrade=int), int)

    async def _children(ctx: Context) -> None:
        assert_type(await ctx.call("key", order, Order(id="42", amount=9.5)), Receipt)
        assert_type(await ctx.call("key", ping), str)
        assert_type(await ctx.call("key", maybe, None), int | None)
        assert_type(await ctx.call("key", "order", {"id": "42"}), Any)
        orders = [Order(id="42", amount=9.5)]
        assert_type(await ctx.fan_out("key", orders, order), list[Receipt])
        assert_type(await ctx.fan_out("key", orders, order, concurrency=5, fail_fast=True), list[Receipt])
        assert_type(await ctx.fan_out("key", orders, order, fail_fast=False), list[Receipt | ChildFailed])
        assert_type(await ctx.fan_out("key", [None] * 3, ping), list[str])
        assert_type(await ctx.fan_out("key", [1], "order"), list[Any])


REFUSED = """
from memable import Client, Context
from tests.integration.applications import APPROVAL, Order, maybe, order, ping

async def refused(client: Client) -> None:
    await client.invoke(order)
    await client.invoke(order, "text")
    await client.invoke(ping, 5)
    await client.invoke(maybe, "7")
    await client.invoke_many(order, ["text"])
    await client.signal(order, "42", APPROVAL, "yes")
    await client.signal("order", "42", APPROVAL)
    await client.get(order, "42").signal(APPROVAL, "yes")
    await client.invoke(order, {"id": "42", "amount": 9.5})
    await client.invoke(order, None)
    await client.invoke(order, Order(id="42", amount=9.5), id=42)
    await client.invoke_many(order, Order(id="42", amount=9.5))

async def double(number: int) -> int:
    return 2 * number

async def refused_in_a_workflow(ctx: Context) -> None:
    await ctx.map("key", ["text"], double)
    await ctx.map("key", 7, double)
    await ctx.map("key", [1], double, concurrency="all")
    await ctx.step("key", double, "text")
    await ctx.step("key", double, 1, upgrade="text")
"""


def test_wrong_types_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "refused.py"
    file.write_text(REFUSED)
    root = Path(__file__).parents[2]
    options = ["--strict", "--no-error-summary", "--no-incremental", "--follow-imports=silent"]
    command = [sys.executable, "-m", "mypy", *options, "--config-file=", str(file)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False).stdout
    lines = {int(line.split(":")[1]) for line in found.splitlines() if ": error: " in line}
    assert lines == {number for number, line in enumerate(REFUSED.splitlines(), 1) if "await" in line}, found
