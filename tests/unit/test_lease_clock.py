"""When a worker may trust its own lease: by its own clock, which these tests set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from memable.endpoint import Endpoint
from memable.holding import Held
from memable.keys import Keys
from memable.lua import Answer
from memable.runtime import lease
from memable.runtime.lease import BLOCKED_LIMIT_S, LeaseKeeper
from memable.runtime.tasks import Activity
from memable.store import Store

LEASE_S = 3.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class FakeRun:
    def __init__(self) -> None:
        self.held = Held(Keys("test", partitions=1).of("order", "42"), "1-1", "token")
        self.news_seen = 0

    def on_news(self) -> None: ...

    def on_lease_lost(self) -> None: ...


class Replies:
    """In the place of Redis: what it answers to a renewal, and how long that takes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.takes_s = 0.0

    def __call__(self, key_count: int, arguments: list[Any]) -> list[int]:
        self._clock.now_s += self.takes_s
        return [0] * (key_count - 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease, "time", clock)
    return clock


@pytest.fixture
def replies(clock: Clock) -> Replies:
    return Replies(clock)


@pytest.fixture
async def keeper(clock: Clock, replies: Replies, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LeaseKeeper]:
    """Its thread is not started: the tests do what it does."""
    monkeypatch.setattr(LeaseKeeper, "_call", lambda _self, count, arguments: replies(count, arguments))
    keeper = LeaseKeeper(Endpoint.from_url("redis://localhost"), cast("Store", None), "w1", LEASE_S, Activity())
    yield keeper
    keeper._client.close()


def is_trusted(keeper: LeaseKeeper, run: FakeRun) -> bool:
    """Whether an attempt may begin without asking."""
    question = keeper.confirm(run.held)
    if question is not None:
        cast("Any", question).close()
    return question is None


async def test_a_lease_is_trusted_for_its_length_from_when_the_claim_was_sent(
    keeper: LeaseKeeper, clock: Clock
) -> None:
    run = FakeRun()
    keeper.hold(run, clock.now_s - 1)
    assert is_trusted(keeper, run)
    clock.now_s += LEASE_S - 1
    assert is_trusted(keeper, run)
    clock.now_s += 0.001
    assert not is_trusted(keeper, run)


async def test_a_renewal_counts_from_when_it_was_sent(keeper: LeaseKeeper, clock: Clock, replies: Replies) -> None:
    run = FakeRun()
    keeper.hold(run, clock.now_s)
    clock.now_s += LEASE_S
    keeper._renew()
    clock.now_s += LEASE_S
    assert is_trusted(keeper, run)
    # a reply that waited in the socket while this process was stopped proves nothing
    replies.takes_s = LEASE_S + 1
    keeper._renew()
    assert not is_trusted(keeper, run)


async def test_a_renewal_that_says_that_the_lease_is_lost_confirms_nothing(
    keeper: LeaseKeeper, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FakeRun()
    keeper.hold(run, clock.now_s)
    monkeypatch.setattr(LeaseKeeper, "_call", lambda *_: [Answer.LEASE_LOST])
    clock.now_s += LEASE_S + 1
    keeper._renew()
    assert not is_trusted(keeper, run)


async def test_a_loop_that_shows_no_life_is_taken_to_hang_after_a_minute(keeper: LeaseKeeper, clock: Clock) -> None:
    assert not keeper._loop_hangs()  # asks for a sign of life, which this test does not let the loop give
    clock.now_s += BLOCKED_LIMIT_S
    assert not keeper._loop_hangs()
    clock.now_s += 1
    assert keeper._loop_hangs()
    keeper._on_beat()
    assert not keeper._loop_hangs()
