"""What a fork takes of the instance that it begins with."""

from __future__ import annotations

from memable.errors import RecordNotFound
from memable.holding import Copied, Origin
from memable.journal import in_order
from memable.keys import CHILD_MARK, COMPLETED_BY, LOST_TO, InstanceKeys
from memable.state import StepKind, StepState

_FINISHED = (StepState.COMPLETED, StepState.FAILED)


def finished_before(origin: Origin, keys: InstanceKeys, before: str | None) -> Copied:
    """All finished records that were started before that of the key `before`; `RecordNotFound`."""
    steps, parents = dict[str, bytes](), set[str]()
    is_found = False
    for key, record in in_order(origin.steps):
        if is_found := key == before:
            break
        if record.state in _FINISHED:
            # with who completed it, so that a signal that comes late is told the same
            steps |= {field: origin.steps[field] for field in (key, COMPLETED_BY + key) if field in origin.steps}
            if record.kind is StepKind.CHOICE:
                # and those that have lost are not waited for
                lost = LOST_TO + key.encode()
                steps |= {field: by for field, by in origin.steps.items() if by == lost}
            if record.kind is StepKind.CHILD and record.state is StepState.COMPLETED:
                parents.add(key)
    if before is not None and not is_found:
        raise RecordNotFound(keys.workflow, keys.instance_id, [before])
    # the results of many children stand there, and not in the record
    ends = {field: end for field, end in origin.family.items() if field.partition(CHILD_MARK)[0] in parents}
    return Copied(steps, ends)


def name_of_fork(origin: Origin, keys: InstanceKeys, before: str | None) -> str:
    """By which a fork that is made again is known: see `forked_from` in keys.py."""
    return "\n".join([keys.instance_id, origin.life, before or ""])
