"""Which streams are read, and for how long they are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from memable import App
from memable.keys import Partition
from memable.runtime.intake import Intake

PARTITION = Partition("ns:{0}:")


class Reader:
    """Says what was read, and answers with what it is told to."""

    client_id = None

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.read_streams: list[str] = []
        self.blocks_ms: list[int | None] = []
        self.counts: list[int] = []

    async def read(self, *words: Any) -> Any:
        asked = list(words)
        streams = asked[asked.index("STREAMS") + 1 :]
        self.read_streams = [each.removeprefix(PARTITION.stream("")) for each in streams[: len(streams) // 2]]
        self.blocks_ms.append(asked[asked.index("BLOCK") + 1] if "BLOCK" in asked else None)
        self.counts.append(asked[asked.index("COUNT") + 1])
        return self.replies.pop(0) if self.replies else None


def intake_of(reader: Any, workflows: Sequence[str]) -> Intake:
    app = App()
    nobody: Any = None

    async def nothing(ctx: Any) -> None: ...

    streams = {PARTITION.stream(name): (PARTITION, app.register(name, nothing)) for name in workflows}
    return Intake(reader, nobody, "w1", streams, free_slots=lambda: 1, begin=nobody)


async def reads(intake: Intake, reader: Reader, free: int, times: int) -> list[tuple[str, int | None]]:
    """Each read: its streams, and how long it waits in ms."""
    found = []
    for _ in range(times):
        await intake._read(free)
        found.append(("".join(reader.read_streams), reader.blocks_ms[-1]))
    return found


async def test_with_a_slot_for_each_stream_all_are_waited_for_and_take_turns_at_being_first() -> None:
    reader = Reader()
    intake = intake_of(reader, "abc")
    assert await reads(intake, reader, 7, 4) == [("abc", 2000), ("bca", 2000), ("cab", 2000), ("abc", 2000)]
    assert reader.counts == [2] * 4  # together no more than the free slots


@pytest.mark.parametrize(
    ("free", "found"),
    [
        (1, [("a", None), ("b", None), ("c", None), ("d", None), ("e", None), ("a", 50), ("b", None)]),
        (2, [("ab", None), ("cd", None), ("ea", None), ("bc", 50), ("de", None)]),
    ],
)
async def test_with_fewer_slots_all_streams_are_looked_at_before_some_are_waited_for(
    free: int, found: list[tuple[str, int | None]]
) -> None:
    reader = Reader()
    assert await reads(intake_of(reader, "abcde"), reader, free, len(found)) == found


async def test_while_there_is_work_nothing_is_waited_for() -> None:
    reader = Reader()
    intake = intake_of(reader, "abc")
    await reads(intake, reader, 1, 2)
    reader.replies = [["work"]]
    assert await reads(intake, reader, 1, 4) == [("c", None), ("a", None), ("b", None), ("c", None)]
    assert await reads(intake, reader, 1, 1) == [("a", 50)]


async def test_what_is_idle_for_long_is_waited_for_longer() -> None:
    reader = Reader()
    intake = intake_of(reader, "ab")
    waits_ms = [wait_ms for _, wait_ms in await reads(intake, reader, 1, 15) if wait_ms is not None]
    assert waits_ms == [50, 100, 200, 400, 400]
    reader.replies = [["work"]]
    assert [wait_ms for _, wait_ms in await reads(intake, reader, 1, 4)] == [None, None, None, 50]
