"""All checks, in the order in which they are made. Their docstrings are their documentation (docs/doctor.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import getdoc
from typing import Final

from memable.doctor import families, instances, namespace, rights, server, workers
from memable.doctor.findings import Finding
from memable.doctor.patient import Patient


@dataclass(frozen=True, slots=True)
class Check:
    """One question."""

    ask: Callable[[Patient], Awaitable[list[Finding]]]
    is_of_server: bool = False
    """Whether it concerns the server alone."""

    @property
    def name(self) -> str:
        return self.ask.__name__.replace("_", "-")

    @property
    def question(self) -> str:
        """The first paragraph of its docstring."""
        return self._doc[0]

    @property
    def meaning(self) -> str:
        """The rest: what it means."""
        return " ".join(self._doc[1:])

    @property
    def _doc(self) -> list[str]:
        return [" ".join(each.split()) for each in (getdoc(self.ask) or "").split("\n\n")]


CHECKS: Final = (
    Check(server.version, is_of_server=True),
    Check(server.cluster, is_of_server=True),
    Check(server.persistence, is_of_server=True),
    Check(server.eviction, is_of_server=True),
    Check(server.memory, is_of_server=True),
    Check(server.replicas, is_of_server=True),
    Check(server.encodings, is_of_server=True),
    Check(server.scripts, is_of_server=True),
    Check(rights.rights, is_of_server=True),
    Check(namespace.layout),
    Check(server.clock),
    Check(namespace.types),
    Check(workers.workers),
    Check(workers.leaders),
    Check(workers.groups),
    Check(workers.served),
    Check(workers.backlog),
    Check(workers.abandoned),
    Check(workers.overdue),
    Check(workers.trimming),
    Check(instances.entries),
    Check(instances.leases),
    Check(instances.timers),
    Check(instances.asleep),
    Check(instances.listing),
    Check(instances.lifetimes),
    Check(instances.strays),
    Check(families.lost_children),
    Check(families.bereft_children),
    Check(namespace.leftovers),
)
