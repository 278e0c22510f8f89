"""What Redis refuses to show keeps the walk neither spinning nor standing still."""

from __future__ import annotations

from typing import Any

import pytest

from memable.connection import ServerRefused
from memable.keys import Partition
from memable.runtime.reconciler import Reconciler


class Connection:
    connected_at_s = 1.0

    def __init__(self) -> None:
        self.indexes: list[str] = []

    async def command(self, *words: Any) -> Any:
        if words[0] == "INFO":
            return b"run_id:1"
        self.indexes.append(words[1])
        raise ServerRefused("redis://", "ZRANGE", "WRONGTYPE no zset")


def reconciler(connection: Any, workflows: Any) -> Reconciler:
    nobody: Any = None
    return Reconciler(nobody, connection, Partition("ns:{0}:"), workflows=workflows, page_every_s=1)


async def test_workflows_that_cannot_be_read_are_asked_for_again_only_after_a_while() -> None:
    async def refuse() -> list[str]:
        raise ServerRefused("redis://", "HKEYS", "NOPERM no right")

    walk = reconciler(Connection(), refuse)
    with pytest.raises(ServerRefused):
        await walk.go_on()
    assert walk.pause_s > 1


async def test_an_index_that_cannot_be_read_does_not_keep_the_next_ones_waiting() -> None:
    async def workflows() -> list[str]:
        return ["order"]

    connection = Connection()
    walk = reconciler(connection, workflows)
    for _ in range(3):
        walk._due_s = 0.0
        with pytest.raises(ServerRefused):
            await walk.go_on()
        assert walk.pause_s > 0
    assert len(set(connection.indexes)) == 3
