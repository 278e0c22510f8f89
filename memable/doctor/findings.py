"""What a check finds."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

SHOWN: Final = 3
"""How many of those that have something in common are named."""


class Severity(StrEnum):
    """How bad it is. With a warning or a problem, `memable doctor` exits with 1."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; many live with it on purpose."""
    WARNING = "warning"
    """It will hurt some day, or hurts a little now."""
    PROBLEM = "problem"
    """Something is lost, stands still, or will be lost."""

    @property
    def rank(self) -> int:
        """From 0, the least bad."""
        return list(Severity).index(self)

    @property
    def is_bad(self) -> bool:
        """Whether something should be done."""
        return self.rank >= Severity.WARNING.rank


@dataclass(frozen=True, slots=True)
class Mend:
    """What `--fix` does about a finding, by scripts that workers use, too."""

    what: str
    """As a sentence about what becomes of it: `it is queued again`."""
    act: Callable[[tuple[str, ...]], Awaitable[object]]
    """Does it, for those of the finding's subjects that are given."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has found."""

    severity: Severity
    what: str
    """A sentence; or, with subjects, what they have in common."""
    subjects: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those that it is true of, and what else there is to say of each."""
    means: str = ""
    todo: str = ""
    """The command, or the line of redis.conf. `WORKFLOW/ID` in it stands for the first subject's."""
    mend: Mend | None = None
    topic: str = ""
    """What tells it from the check's others, where `what` says more than that."""

    def __str__(self) -> str:
        if not self.subjects:
            return self.what
        shown = [f"{name} ({more})" if more else name for name, more in list(self.subjects.items())[:SHOWN]]
        rest = len(self.subjects) - len(shown)
        names = f"{', '.join(shown)} and {rest} more" if rest else ", ".join(shown)
        return f"{self.what}: {names}"

    @property
    def examples(self) -> list[str]:
        """The subjects that are named."""
        return list(self.subjects)[:SHOWN]

    @property
    def advice(self) -> str:
        """What to do, with the first subject's name."""
        if not self.subjects:
            return self.todo
        return self.todo.replace("WORKFLOW/ID", shlex.quote(next(iter(self.subjects))))

    def still(self, later: list[Finding]) -> Finding | None:
        """What of it was seen again in a later look."""
        for each in later:
            if (each.topic or each.what) == (self.topic or self.what):
                if not self.subjects:
                    return each
                subjects = {name: more for name, more in each.subjects.items() if name in self.subjects}
                return replace(each, subjects=subjects) if subjects else None
        return None


def ok(what: str) -> list[Finding]:
    """All is well, and this is how it is."""
    return [Finding(Severity.OK, what)]
