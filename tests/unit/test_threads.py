"""Threads for sync steps."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context

import pytest

from memable.holding import LeaseLost
from memable.runtime.threads import StepThreads


async def test_a_call_that_is_cancelled_before_a_thread_was_free_is_never_made() -> None:
    threads, gate, called = StepThreads(1), threading.Event(), list[str]()
    busy = asyncio.create_task(threads.run(copy_context(), gate.wait, ()))
    late = asyncio.create_task(threads.run(copy_context(), called.append, ("late",)))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.wait([late])
    gate.set()
    await busy
    await threads.run(copy_context(), called.append, ("next",))  # by the same thread, after whatever waited for it
    threads.close()
    assert called == ["next"]


async def test_a_call_that_had_to_wait_asks_before_it_begins_and_a_refused_one_leaves_its_thread_to_the_next() -> None:
    threads, gate, called = StepThreads(1), threading.Event(), list[str]()

    async def refuse() -> None:
        raise LeaseLost("order/42")

    def never() -> None:
        raise AssertionError("asked, although nobody was in line")

    busy = asyncio.create_task(threads.run(copy_context(), gate.wait, (), never))
    refused = asyncio.create_task(threads.run(copy_context(), called.append, ("refused",), refuse))
    in_line = asyncio.create_task(threads.run(copy_context(), called.append, ("next",), lambda: None))
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(LeaseLost):
        await refused
    await asyncio.gather(busy, in_line)
    await threads.run(copy_context(), called.append, ("last",), never)
    threads.close()
    assert called == ["next", "last"]


async def test_a_turn_that_comes_while_its_call_is_cancelled_is_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, gate, called = StepThreads(1), threading.Event(), list[str]()

    async def call(name: str) -> None:
        await threads.run(copy_context(), called.append, (name,))

    busy = asyncio.create_task(threads.run(copy_context(), gate.wait, ()))
    gone, next_ = asyncio.create_task(call("gone")), asyncio.create_task(call("next"))
    await asyncio.sleep(0)
    give_away = threads._give_away

    def give_away_and_cancel() -> None:
        give_away()
        gone.cancel()

    monkeypatch.setattr(threads, "_give_away", give_away_and_cancel)
    gate.set()
    await asyncio.wait([busy, gone, next_], timeout=20)
    assert gone.cancelled()
    assert called == ["next"]
    threads.close()


async def test_however_many_calls_there_are_there_are_no_more_threads_than_the_limit() -> None:
    threads = StepThreads(2)

    async def call_often() -> None:
        for _ in range(3000):
            await threads.run(copy_context(), int, ())

    await asyncio.gather(*(call_often() for _ in range(3)))
    assert threads._started <= 2
    threads.close()


async def test_a_thread_that_cannot_be_started_leaves_no_call_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, called = StepThreads(1), list[str]()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            await threads.run(copy_context(), called.append, ("refused",))
    await threads.run(copy_context(), called.append, ("next",))
    threads.close()
    assert called == ["next"]
