"""worker/, as it is deployed: both of its workflows in real processes, one of which is killed on the way."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest

import memable
from memable import Client, Status
from memable.embedded import TemporaryServer
from tests.worker_process import TOO_LONG_S, WorkerProcess, until
from worker.app import approval, sync
from worker.approval import APPROVAL, Decision, Order
from worker.ledger import Action, Ledger
from worker.sync import SyncRequest, compare

COMMANDS = [("-m", "arq", "worker.WorkerSettings"), ("-m", "worker")]
ORDERS = 12


@pytest.fixture
async def client(server: TemporaryServer) -> AsyncGenerator[Client]:
    # without the app: as a web app that knows the workflows of others by their names would have it
    async with await memable.connect(server.url) as client:
        yield client


def process(command: tuple[str, ...], server: TemporaryServer, directory: Path) -> WorkerProcess:
    return WorkerProcess(
        directory,
        server.url,
        *command,
        MEMABLE_LEASE="1",
        WORKER_LEDGER=str(directory / "ledger.sqlite3"),
        WORKER_TARGET=str(directory / "zones.sqlite3"),
        WORKER_PROVIDER_LATENCY_S="0.02",
    )


@pytest.mark.parametrize("command", COMMANDS, ids=["arq", "python"])
async def test_what_is_bundled_comes_out_right_though_a_worker_is_killed_half_way(
    command: tuple[str, ...], server: TemporaryServer, client: Client, tmp_path: Path
) -> None:
    async with process(command, server, tmp_path) as victim, process(command, server, tmp_path) as survivor:
        syncing = await client.invoke(sync, SyncRequest(pace_s=0.05))
        orders = [
            await client.invoke(approval, Order(id=f"o{index}", amount_cents=1000 + index, cooling_off_s=0.1))
            for index in range(ORDERS)
        ]

        async def is_half_way() -> bool:
            done = [step.key for step in await client.steps("sync", syncing.instance_id)]
            return sum(key.startswith("upsert") for key in done) >= 3

        await until(is_half_way, "some batches of the sync")
        # whichever has the sync: it is the one to lose
        running = await syncing.metadata()
        assert running is not None
        loser = victim if running.worker is not None and f"-{victim.pid}-" in running.worker else survivor
        loser.process.kill()

        for index, order in enumerate(orders):
            await until(partial(waits_for_approval, client, order), f"order {index} at its approval")
            await order.signal(APPROVAL, Decision(approved=index % 3 != 0, by="tests"))
        receipts = [await order.result(timeout=TOO_LONG_S) for order in orders]
        report = await syncing.result(timeout=TOO_LONG_S)

        comparison = compare(report.target)
        assert comparison.equal, comparison.differences
        assert (comparison.target_rows, comparison.source_rows) == (report.rows, report.rows)

        refused = [index for index in range(ORDERS) if index % 3 == 0]
        assert [index for index, receipt in enumerate(receipts) if receipt.status == "refused"] == refused
        audit = Ledger(tmp_path / "ledger.sqlite3").audit()
        assert audit.doubled == ()
        assert audit.effects == {
            Action.CHARGE: ORDERS,
            Action.REFUND: len(refused),
            Action.SHIP: ORDERS - len(refused),
        }
        assert audit.balance_cents == sum(receipt.charged_cents for receipt in receipts)

        alive = survivor if loser is victim else victim
        assert await alive.terminate() == 0


async def waits_for_approval(client: Client, order: memable.Invocation[object]) -> bool:
    found = await client.get_metadata("approval", order.instance_id)
    return found is not None and found.status is Status.SUSPENDED and "approval:v1" in found.waiting_on


@pytest.mark.parametrize("command", COMMANDS, ids=["arq", "python"])
async def test_the_check_answers_for_both_ways_to_start(
    command: tuple[str, ...], server: TemporaryServer, tmp_path: Path
) -> None:
    async with process(command, server, tmp_path) as worker:
        await until(lambda: worker.run("--check").returncode == 0, "a green check")
        assert await worker.terminate() == 0
        assert worker.run("--check").returncode == 1


def test_a_burst_runs_what_is_there_and_ends(server: TemporaryServer, tmp_path: Path) -> None:
    done = process(COMMANDS[1], server, tmp_path).run("--burst")
    assert done.returncode == 0, done.stderr
