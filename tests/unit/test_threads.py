"""Threads for sync steps."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context

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
