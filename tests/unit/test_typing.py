"""The types that a caller sees: checked by mypy and pyright like every file here, and the refusals by mypy below."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

from memable import Client, InputConflict, Invocation, SuspendPoint, Workflow
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
        await handle.signal(APPROVAL, False)
        await handle.signal("key", {"any": "thing"})


REFUSED = """
from memable import Client
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
