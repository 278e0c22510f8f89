"""Durable back-off: a step that is called again much later waits at a point, as a signal or a timer is waited for.

It holds no slot: a run that waits for nothing else parks, and is queued again when the time has come. How often the
step was called, and its first deadline, are in its record, and outlive every death.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from memable.holding import BackOff
from memable.journal import Draft, Journal, Record
from memable.retry import RetryPolicy
from memable.runtime.rest import Rest, new_future
from memable.runtime.steps import BeforeAttempt, Failed, StepCall, StepCaller, StepEnd
from memable.state import StepKind


@dataclass(frozen=True, slots=True)
class Place:
    """Where steps are called: one run."""

    caller: StepCaller
    confirm_lease: BeforeAttempt
    rest: Rest
    journal: Journal


class BackOffWait:
    """A step that waits for its next attempt."""

    status: str | None = None
    is_back_off: bool = True
    is_choice: bool = False

    def __init__(self, key: str, head: bytes, failed: Failed, policy: RetryPolicy | None) -> None:
        self.key = key
        self.future: asyncio.Future[bytes] = new_future()
        self._head, self._failed = head, failed
        self._allowed = 1 if policy is None else policy.max_retries + 1

    def point(self) -> BackOff:
        now_s, failed = time.monotonic(), self._failed
        return BackOff(
            self.key,
            failed.attempts,
            self._allowed,
            self._head,
            after_ms=failed.delay_s * 1000,
            elapsed_ms=int((now_s - failed.failed_s) * 1000),
            age_ms=int((now_s - failed.begin_s) * 1000),
        )


async def call_again(place: Place, call: StepCall, last: Failed | Record) -> StepEnd:
    """Call a step until it ends that has failed in this run, or in an earlier one, and was to be called again.

    A deadline that is set stands. Whether there is a next attempt is for the policy that is in force now to say.
    """
    while True:
        if isinstance(last, Failed):
            head = Draft.retrying(last.failure, last.attempts, call.item)
            # whatever becomes of this wait, it was called so often
            place.journal.add(call.key, head + b"}")
            record = await _wait(place, BackOffWait(call.key, head, last, call.retry), was_open=False)
        elif (given_up := _given_up(call, last)) is not None:
            return given_up
        elif place.journal.is_open(call.key):
            record = await _wait(place, _waits_on(call, last), was_open=True)
        else:
            record = last
        end = await place.caller.call(call, place.confirm_lease, max(record.attempts, last.attempts) + 1)
        if isinstance(end, StepEnd):
            return end._replace(has_waited=True)
        last = end


def _given_up(call: StepCall, record: Record) -> StepEnd | None:
    """How the step ends if its policy allows no further attempt, as one that was deployed meanwhile may."""
    if call.retry is not None and record.attempts <= call.retry.max_retries:
        return None
    failure = record.failure()
    assert failure is not None  # such a record has one
    draft = Draft.failed(StepKind.STEP, failure, record.attempts, call.item)
    return StepEnd(draft, 0, failure=failure, has_waited=True)


def _waits_on(call: StepCall, record: Record) -> BackOffWait:
    """The wait for an attempt that an earlier run has begun: its deadline is in Redis."""
    failure = record.failure()
    assert failure is not None
    now_s = time.monotonic()
    return BackOffWait(call.key, record.raw, Failed(failure, record.attempts, 0, now_s, now_s), call.retry)


async def _wait(place: Place, wait: BackOffWait, *, was_open: bool) -> Record:
    """Until the time has come. Meanwhile the step is not in flight, so that the run can park."""
    place.rest.lands()
    try:
        return Record(await place.rest.wait_for(wait, was_open=was_open))
    finally:
        place.rest.takes_off()
