"""When a failed step is called again: pure arithmetic, no clock."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Literal

from memable.errors import PermanentError, StepConflict, StepTimeout

Duration = float | int | timedelta
"""Seconds, or a `timedelta`."""


def to_seconds(duration: Duration, what: str) -> float:
    """`duration` in seconds; `ValueError` for NaN, infinity and what is no duration at all."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    number: object = duration
    try:
        if not isinstance(number, bool) and isinstance(number, int | float) and math.isfinite(number):
            return float(number)
    except OverflowError:  # an int that no float can hold, and that may be too long to print
        raise ValueError(f"{what} must be a finite number of seconds or a timedelta, not a huge integer") from None
    raise ValueError(f"{what} must be a finite number of seconds or a timedelta, not {duration!r}")


def _not_negative(duration: Duration, what: str) -> float:
    seconds = to_seconds(duration, what)
    if seconds < 0:
        raise ValueError(f"{what} must not be negative, and is {seconds}")
    return seconds


class _Inherit(Enum):
    INHERIT = "inherit"


INHERIT: Final = _Inherit.INHERIT
"""Not given: the workflow's policy, then the app's."""

Inherit = Literal[_Inherit.INHERIT]

Exceptions = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and after which waits, a failed step is called again. Made by `fixed` or `exponential`.

    >>> policy = RetryPolicy.exponential(3, base=1.0, max_delay=3)
    >>> [policy.delay_for(attempt) for attempt in range(3)]
    [1.0, 2.0, 3.0]
    """

    max_retries: int
    base_s: float
    factor: float
    max_delay_s: float
    jitter: float = 0.0
    retry_on: Exceptions = (Exception,)
    never_on: Exceptions = ()
    retry_timeouts: bool = False

    def __post_init__(self) -> None:
        count: object = self.max_retries
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"max_retries must be a whole number from 0, not {count!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, not {self.jitter!r}")

    @classmethod
    def fixed(cls, max_retries: int, delay: Duration, **options: Any) -> RetryPolicy:
        """The same wait before each retry. `max_retries=2` means at most three calls.

        Options: `retry_on`, `never_on` (exception classes or tuples of them), `retry_timeouts`.
        """
        delay_s = _not_negative(delay, "delay")
        return cls(max_retries, delay_s, factor=1.0, max_delay_s=math.inf, **_checked(options))

    @classmethod
    def exponential(
        cls, max_retries: int, base: Duration, *, max_delay: Duration = 30.0, jitter: float = 0.0, **options: Any
    ) -> RetryPolicy:
        """A wait that doubles: `base * 2**attempt`, at most `max_delay`. Options as for `fixed`."""
        return cls(
            max_retries,
            _not_negative(base, "base"),
            factor=2.0,
            max_delay_s=_not_negative(max_delay, "max_delay"),
            jitter=jitter,
            **_checked(options),
        )

    def with_max_delay(self, max_delay: Duration) -> RetryPolicy:
        """The same policy with another longest wait."""
        return replace(self, max_delay_s=_not_negative(max_delay, "max_delay"))

    def with_jitter(self, jitter: float) -> RetryPolicy:
        """The same policy with each wait lengthened or shortened at random by up to this share of it (0 to 1)."""
        return replace(self, jitter=jitter)

    def delay_for(self, attempt: int) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 0), before jitter."""
        try:
            return min(self.base_s * self.factor**attempt, self.max_delay_s)
        except OverflowError:  # attempt 1024 of a doubling wait
            return self.max_delay_s if self.base_s else 0.0

    def jittered_delay_s(self, attempt: int) -> float:
        """`delay_for(attempt)` with the policy's jitter applied, never above the longest wait."""
        delay_s = self.delay_for(attempt)
        if not self.jitter:
            return delay_s
        return min(self.max_delay_s, delay_s * (1 + random.uniform(-self.jitter, self.jitter)))

    def allows(self, error: BaseException) -> bool:
        """Whether `error` is of a kind that this policy retries."""
        if isinstance(error, StepTimeout):
            return self.retry_timeouts
        # StepConflict is a durable call inside the step: misuse, not bad luck
        if not isinstance(error, Exception) or isinstance(error, (PermanentError, StepConflict, *self.never_on)):
            return False
        return isinstance(error, self.retry_on)


def checked_policy(policy: RetryPolicy | None | Inherit, what: str) -> RetryPolicy | None | Inherit:
    """`policy`, if it is one, none, or not given; `TypeError` for, say, a number of retries."""
    given: object = policy
    if given is None or given is INHERIT or isinstance(given, RetryPolicy):
        return policy
    raise TypeError(f"{what} must be a policy, such as RetryPolicy.fixed(3, delay=1), or None, not {given!r}")


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The keyword options of a policy, with single classes made tuples; `TypeError` for what is none."""
    for name in ("retry_on", "never_on"):
        if name not in options:
            continue
        classes = options[name] if isinstance(options[name], tuple | list) else (options[name],)
        for each in classes:
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                raise TypeError(f"{name} takes exception classes, not {each!r}")
        options[name] = tuple(classes)
    return options
