"""A step that takes longer than the lease, on a worker that lives: called once, whoever else is idle."""

from __future__ import annotations

from tests.apps import labour
from tests.faults.crew import Crew, results

LEASE_S = 1
STEP_S = 4.0


async def test_a_step_longer_than_the_lease_is_called_once(crew: Crew) -> None:
    kinds = ["async", "thread"]
    async with crew.worker(lease=LEASE_S) as busy:
        invocations = await crew.client.invoke_many(labour.long, [(kind, STEP_S) for kind in kinds])
        await crew.called(busy, *kinds)
        async with crew.worker(lease=LEASE_S):
            assert await results(invocations) == [busy.pid] * 2
    assert sorted(crew.ledger()) == [(kind, busy.pid) for kind in kinds]
    assert await crew.fields("long", "attempt") == ["1", "1"]
