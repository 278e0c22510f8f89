"""Every state change of a namespace as it happens, over a connection of its own.

Unlike `watching`, which follows one instance and misses no end, this hears what is published while it listens, and says
so when it may have missed something.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from memable.endpoint import ANSWER_S, Endpoint, EndpointWrong, Refusal, ServerRefused, Wire, backoff_s, pack
from memable.errors import StorageError
from memable.keys import Keys, split_events_channel
from memable.reading import Seen, parse_event

_CONNECT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Change:
    """A state change, as it was published."""

    workflow: str
    instance_id: str
    seen: Seen


async def listen(
    endpoint: Endpoint, keys: Keys, workflow: str | None = None, instance_id: str | None = None
) -> AsyncGenerator[Change | None]:
    """Each state change from now on: of all instances, of those of a workflow, or of one.

    First comes `None`: Redis has confirmed. It comes again whenever the connection was lost and stands again: what
    happened meanwhile is missed. `StorageError` if Redis cannot be reached at first, or refuses.
    """
    wire = await Wire.first(endpoint, _CONNECT_S, waits_out_outages=False)
    attempt = 0
    while True:
        try:
            async with aclosing(_hear(wire, endpoint, keys, workflow, instance_id)) as heard:
                async for news in heard:
                    attempt = 0
                    yield news
        except StorageError as error:
            if isinstance(error, EndpointWrong | ServerRefused):
                raise
        finally:
            await wire.close()
        while True:
            await asyncio.sleep(backoff_s(attempt))
            attempt += 1
            try:
                wire = await Wire.open(endpoint)
                break
            except EndpointWrong:
                raise
            except StorageError:
                continue


async def _hear(
    wire: Wire, endpoint: Endpoint, keys: Keys, workflow: str | None, instance_id: str | None
) -> AsyncGenerator[Change | None]:
    """What comes until the connection is lost, which is a `StorageError`."""
    if workflow is None or instance_id is None:
        wire.write(pack((b"PSUBSCRIBE", keys.all_events(workflow))))
    else:
        wire.write(pack((b"SUBSCRIBE", keys.of(workflow, instance_id).events)))
    is_wide = workflow is None
    while True:
        for reply in await _replies(wire, endpoint):
            if isinstance(reply, Refusal):
                # who may listen to all may not listen to some: Redis compares patterns as they are written
                if reply.code != "NOPERM" or is_wide or instance_id is not None:
                    raise ServerRefused(endpoint.safe_url, "a subscription", reply.text)
                is_wide = True
                wire.write(pack((b"PSUBSCRIBE", keys.all_events())))
            elif reply[0] in (b"psubscribe", b"subscribe"):
                yield None
            elif reply[0] in (b"pmessage", b"message"):
                change = _change(*reply[-2:])
                if change is not None and workflow in (None, change.workflow):
                    yield change


async def _replies(wire: Wire, endpoint: Endpoint) -> list[Any]:
    """What has come; a server that answers nothing any more is lost."""
    for is_asked in (False, True):
        try:
            async with asyncio.timeout(ANSWER_S):
                return await wire.replies()
        except TimeoutError:
            if not is_asked:
                wire.write(pack((b"PING",)))
    raise StorageError(f"Redis at {endpoint.safe_url} said nothing for {2 * ANSWER_S:g} s")


def _change(channel: bytes, message: bytes) -> Change | None:
    seen = parse_event(message)
    try:
        return None if seen is None else Change(*split_events_channel(channel.decode()), seen)
    except ValueError:
        return None
