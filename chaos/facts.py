"""What the rules of the checker share: the evidence, and what follows from it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from chaos.evidence import Evidence, Invoked, Kind, Written
from chaos.history import Place, is_finished
from chaos.ledger import Line, What
from chaos.names import instance_name, root_id
from chaos.stalls import Stalls

WAKING_S: Final = 0.25
"""From SIGCONT to the line of a call that had passed its check before: the process has to be given the processor."""


class Facts:
    """The evidence, with all that more than one rule looks up in it."""

    def __init__(self, seen: Evidence) -> None:
        self.seen = seen
        self.invoked = {each.name: each for each in seen.invoked}
        self._roots = {root_id(each.name): each for each in seen.invoked}
        self.records = {place: list(self._written(place, texts)) for place, texts in seen.history.records.items()}
        self.stalls = Stalls(seen, self.records)

    def root(self, name: str) -> Invoked | None:
        """What the client knows of an instance; of a child, of the first of its ancestors."""
        return self._roots.get(root_id(name))

    def status(self, name: str) -> str | None:
        """In which the instance was left."""
        return self.seen.left.statuses.get(instance_name(name))

    def resumed_s(self, name: str) -> Sequence[float]:
        """When the instance was resumed, or the one that has its children resumed."""
        return root.resumed_s if (root := self.root(name)) is not None else ()

    def _written(self, place: Place, texts: Sequence[str | None]) -> Iterator[Written]:
        """The finished records at a place, in order."""
        found: list[tuple[dict[str, Any], str, bool]] = []
        for text in texts:
            if text is None:
                if found:
                    found[-1] = (*found[-1][:2], True)
            elif is_finished(text):
                found.append((json.loads(text), text, False))
        for facts, text, was_dropped in found:
            completed_s = (facts["started_ms"] + facts["took_ms"]) / 1000
            # a resume is what drops one; its reply may have come late, it was not asked for before this
            dropped = (at_s for at_s in self.resumed_s(place[0]) if at_s >= completed_s)
            yield (
                Written(facts["kind"], text, completed_s, min(dropped, default=completed_s))
                if was_dropped
                else Written(facts["kind"], text, completed_s)
            )

    @cached_property
    def begins(self) -> Sequence[Line]:
        """Each call of a step."""
        return [line for line in self.seen.ledger if line.what is What.BEGIN]

    @cached_property
    def runs_begun_s(self) -> Mapping[str, Sequence[tuple[int, float]]]:
        """By instance: when each of its runs entered the function, by the number of the run."""
        begun: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for line in self.seen.ledger:
            if line.what is What.RUN:
                begun[line.name].append((line.run, line.at_s))
        return {name: sorted(runs) for name, runs in begun.items()}

    def is_waking(self, line: Line, could_know_s: float) -> bool:
        """Whether a worker was stopped before it could know, and has just been continued."""
        return any(
            fault.kind in (Kind.STOP, Kind.PAUSE)
            and fault.pid == line.pid
            and fault.at_s <= could_know_s
            and line.at_s <= fault.until_s + WAKING_S
            for fault in self.seen.faults
        )
