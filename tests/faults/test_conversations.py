"""A conversation whose workers are killed: each message is read once, in order."""

from __future__ import annotations

import asyncio

from tests.faults.crew import Crew
from tests.worker_process import TOO_LONG_S, until

MESSAGES = 300


async def test_messages_are_read_once_and_in_order_with_two_receives_open_though_workers_are_killed(
    crew: Crew,
) -> None:
    instance = await crew.client.invoke("listening", MESSAGES, id="1")

    async def talk() -> None:
        for number in range(MESSAGES):
            await instance.send("chat", number, message_id=str(number))
            if number % 7 == 0:
                await instance.send("chat", "sent again, and not known how it went", message_id=str(number))
            if number % 20 == 0:
                await asyncio.sleep(0.05)

    async def heard() -> int:
        return len([each for each in await crew.client.steps("listening", "1") if each.state == "completed"])

    talking = asyncio.create_task(talk())
    for death in (1, 2):
        async with crew.worker(lease=1) as worker:
            wanted = death * MESSAGES // 3

            async def has_heard_enough(wanted: int = wanted) -> bool:
                return await heard() >= wanted

            await until(has_heard_enough, f"{wanted} messages are received")
            worker.process.kill()
    async with crew.worker(lease=1):
        await talking
        assert await instance.result(timeout=TOO_LONG_S) == list(range(MESSAGES))
    records = {each.key: each.result for each in await crew.client.steps("listening", "1")}
    assert records == {str(number): number for number in range(MESSAGES)}
