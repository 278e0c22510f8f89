"""What becomes of a suspect when Redis refuses what its solitude asks for."""

from __future__ import annotations

import asyncio
from typing import Any

from memable.connection import ServerRefused
from memable.holding import Held
from memable.keys import Keys
from memable.runtime.rest import End
from memable.runtime.solitude import Solitude


class Intake:
    async def hush(self) -> None: ...

    def unhush(self) -> None: ...


class Store:
    """Refuses that solitude is left, as for a user who has no right to delete."""

    async def enter_solitude(self, *_: Any) -> bool:
        return True

    async def leave_solitude(self, *_: Any) -> None:
        raise ServerRefused("redis://", "DEL", "NOPERM no DEL")

    async def isolate(self, *_: Any, **__: Any) -> None: ...


class Run:
    name = "order/42"
    held = Held(Keys("ns", partitions=1).of("order", "42"), "1-1", "lease")
    over: End | None = None

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def carry(self) -> End:
        await self.let_go.wait()
        return End.RETURNED


async def test_a_run_whose_solitude_could_not_be_left_goes_on_with_its_slot() -> None:
    run, intake, store = Run(), Intake(), Store()
    solitude = Solitude(store, intake, lease_s=0.01, max_recoveries=5, running=lambda: 1)  # type: ignore[arg-type]
    carrying = asyncio.create_task(solitude.carry(run, 2))  # type: ignore[arg-type]
    await asyncio.wait([carrying], timeout=0.2)  # longer than it may be alone
    assert not carrying.done()
    run.let_go.set()
    assert await carrying is End.RETURNED
