"""When something is to happen: what a caller says, as a duration or a moment, and what Redis is told."""

from __future__ import annotations

import math
from datetime import datetime
from typing import NamedTuple

from memable.retry import Duration, to_seconds


def to_epoch_ms(when: datetime, what: str) -> int:
    """An aware datetime in ms since 1970, rounded up, so that nothing comes early; `ValueError` for a naive one."""
    if when.utcoffset() is None:
        raise ValueError(f"{what} needs an aware datetime, such as datetime.now(UTC), not {when!r}")
    return math.ceil(when.timestamp() * 1000)


class Due(NamedTuple):
    """A deadline as scripts take it: so long after they run, or at a time of Redis's clock; or neither."""

    after_ms: float | None = None
    at_ms: float | None = None

    @classmethod
    def of(cls, when: Duration | datetime | None, what: str) -> Due:
        """`ValueError` for a naive datetime, NaN, infinity, and what is neither a duration nor a datetime."""
        if when is None:
            return NOW
        if isinstance(when, datetime):
            return cls(at_ms=to_epoch_ms(when, what))
        return cls(after_ms=to_seconds(when, what) * 1000)

    def arguments(self) -> tuple[float | str, float | str]:
        return "" if self.after_ms is None else self.after_ms, "" if self.at_ms is None else self.at_ms


NOW = Due()
