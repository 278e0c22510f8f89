"""Server-sent events from the states of an instance."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from memable import WorkflowState

KEEP_ALIVE_S: Final = 15.0
"""How often something is sent at least: proxies cut what is silent, and who has left is only noticed by sending."""


def event(state: WorkflowState) -> str:
    """One state as an event, for `new EventSource(…).addEventListener("state", …)`."""
    data = {"status": state.status, "message": state.message, "text": str(state), "is_terminal": state.is_terminal}
    return f"event: state\ndata: {json.dumps(data)}\n\n"


async def events(first: WorkflowState, states: AsyncGenerator[WorkflowState]) -> AsyncGenerator[str]:
    """`first`, and then what comes; whoever stops reading ends the subscription."""
    async with aclosing(states):
        yield event(first)
        coming = asyncio.ensure_future(anext(states, None))
        try:
            while True:
                # not `wait_for`, which would cancel the subscription
                await asyncio.wait({coming}, timeout=KEEP_ALIVE_S)
                if not coming.done():
                    yield ": still here\n\n"
                    continue
                state = coming.result()
                if state is None:
                    return
                yield event(state)
                coming = asyncio.ensure_future(anext(states, None))
        finally:
            coming.cancel()
            await asyncio.wait({coming})
