"""A timer counts from when the author asked for it, however long the run lingers before its point is written."""

from __future__ import annotations

import asyncio

import pytest

from memable.codec import Codec
from memable.runtime import rest
from memable.runtime.rest import Wait
from memable.state import StepKind


class Clock:
    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


async def test_the_time_since_the_call_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(rest, "time", clock)
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    codec = Codec(max_payload_bytes=100).of(None)
    wait = Wait("cooling-off", StepKind.TIMER, codec, future, clock.now_s, after_s=5.0)
    assert (wait.point().after_ms, wait.point().elapsed_ms) == (5000, 0)
    clock.now_s += 2.0007
    assert (wait.point().after_ms, wait.point().elapsed_ms) == (5000, 2000)


async def test_a_moment_stays_the_moment_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(rest, "time", clock)
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    codec = Codec(max_payload_bytes=100).of(None)
    wait = Wait("morning", StepKind.TIMER, codec, future, clock.now_s, at_ms=1e12)
    clock.now_s += 2
    assert (wait.point().after_ms, wait.point().at_ms) == (None, 1e12)
