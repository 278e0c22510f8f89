"""`ChildrenCall`: what a `ctx.call` or a `ctx.fan_out` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from memable.workflow import Workflow


COUNT: Final = "children"
"""The one field of the record of a `ctx.fan_out`: how many there were. What they returned is in the family."""


def fan_out_record(total: int) -> bytes:
    return b'{"%b":%d}' % (COUNT.encode(), total)


class ChildrenCall(NamedTuple):
    """A `ctx.call` or a `ctx.fan_out`."""

    what: str
    key: str
    workflow: Workflow[Any, Any] | str
    items: Sequence[Any]
    """Their inputs."""
    concurrency: int | None
    """How many are to live at a time; all by default."""
    fail_fast: bool
    """Whether the first failure is that of the call."""

    @property
    def name(self) -> str:
        """Of their workflow."""
        return self.workflow if isinstance(self.workflow, str) else self.workflow.name

    @property
    def is_single(self) -> bool:
        """Whether its result is that of its one child, and not a list."""
        return self.what == "call"

    @property
    def total(self) -> int:
        return len(self.items)

    def subject(self, parent: str, number: int) -> str:
        place = "" if self.is_single else f"[{number}]"
        return f"{self.what} {self.key!r}{place} of {parent}"
