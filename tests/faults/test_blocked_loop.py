"""An event loop that an author blocks for longer than the lease: a thread renews, and the log names who blocks."""

from __future__ import annotations

import pytest

from memable.runtime import lease
from tests.apps import labour
from tests.faults.crew import Crew
from tests.worker_process import TOO_LONG_S

LEASE_S = 1
BLOCKED_S = 4.0


@pytest.mark.parametrize(
    ("kind", "by"),
    [("blocking", "step 'blocking:v1' of long/42"), ("code", "the code of long/42")],
    ids=["in an async step", "between steps"],
)
async def test_it_keeps_what_it_holds_and_the_log_names_what_blocks_it(crew: Crew, kind: str, by: str) -> None:
    async with crew.worker(lease=LEASE_S) as blocked:
        neighbour = await crew.client.invoke(labour.hold, "neighbour")
        await crew.called(blocked, "neighbour")
        invocation = await crew.client.invoke(labour.long, (kind, BLOCKED_S), id="42")
        await crew.called(blocked, kind)
        async with crew.worker(lease=LEASE_S) as idle:
            assert await invocation.result(timeout=TOO_LONG_S) == blocked.pid
            crew.let_go_on(blocked)
            assert await neighbour.result(timeout=TOO_LONG_S) == blocked.pid
            assert crew.calls(kind) == crew.calls("neighbour") == [blocked.pid]
            assert idle.pid not in dict(crew.ledger()).values()
            assert await crew.fields("long", "attempt") == await crew.fields("hold", "attempt") == ["1"]
        await blocked.logged(f"s by {by}: call what blocks in a sync step")


HANGS_SOON = """
from memable.runtime import lease
from memable.runtime.arq_host import run
from tests.apps.labour import app
lease.BLOCKED_LIMIT_S = 1.5
run(app)
"""


async def test_a_process_that_hangs_does_not_keep_its_instances_for_ever(crew: Crew) -> None:
    assert lease.BLOCKED_LIMIT_S == 60  # too long for a test
    async with crew.worker("-c", HANGS_SOON, lease=LEASE_S) as hanging:
        invocation = await crew.client.invoke(labour.hang, "hang")
        await crew.called(hanging, "hang")
        async with crew.worker(lease=LEASE_S) as other:
            crew.let_go_on(other)
            assert await invocation.result(timeout=TOO_LONG_S) == other.pid
            assert await other.terminate() == 0
            crew.let_go_on(hanging)
            # it has not been told that its run is over; its record is refused all the same, and it goes on
            assert await (await crew.client.invoke(labour.brief, "new")).result(timeout=TOO_LONG_S) == hanging.pid
            assert await invocation.result() == other.pid
            assert crew.calls("hang") == [hanging.pid, other.pid]
