"""What was acknowledged and must be there; what was written and must not be written over; what must be over."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from chaos.evidence import Invoked
from chaos.facts import Facts
from chaos.history import RETRYING, is_finished
from chaos.names import child_place, instance_name
from memable.state import Status


def lost(facts: Facts) -> Iterator[str]:
    """Instances and records that are gone, or did not end as they must."""
    lives = Counter(map(instance_name, facts.seen.history.lives))
    for each in facts.seen.invoked:
        status = facts.status(each.name)
        yield from _badly_ended(each, status)
        if lives[each.name] > each.lives or (status == "completed" and lives[each.name] < each.lives):
            yield f"{each.name} has had {lives[each.name]} lives, not {each.lives}"
    for (name, key), texts in facts.seen.history.records.items():
        drops = sum(before is not None and is_finished(before) and after is None for before, after in pairwise(texts))
        if drops > len(facts.resumed_s(name)):
            yield f"the record {key!r} of {name} is lost: {drops} times it was dropped after it was finished"


def _badly_ended(each: Invoked, status: str | None) -> Iterator[str]:
    if status is None:
        yield f"{each.name} is lost: its invoke was acknowledged, and it is not there"
    elif each.told is not None and each.told != status:
        yield f"{each.name} is {status}, and its cancel was answered with {each.told}"
    elif each.cancelled_s is not None and status == "cancelled":
        if "was cancelled" not in str(each.result):
            yield f"{each.name} is cancelled, and the client was told of {each.result}"
    elif each.fails is not None:
        if status != "failed" or each.fails not in str(each.result):
            yield f"{each.name} is {status}, not failed with {each.fails}: {each.result}"
    elif status != "completed":
        yield f"{each.name} is {status}, not completed: {each.result}"
    elif each.result is None:
        yield f"{each.name} is completed, and the client still waits for it"
    elif list(each.result) not in [list(output) for output in (each.output, *each.or_else)]:
        yield f"{each.name} returned {each.result}, not {each.output}"


def doubled(facts: Facts) -> Iterator[str]:
    """Instances, lives, children and records that were made more than once."""
    for name, lives in facts.seen.history.lives.items():
        if len(lives) != 1:
            yield f"{name} was made {len(lives)} times"
    for (name, key), texts in facts.seen.history.records.items():
        for before, after in pairwise(texts):
            if before is not None and after is not None and not _may_become(before, after):
                yield f"the record {key!r} of {name} was {before}, and became {after}"
    children: defaultdict[tuple[str, str, int], list[str]] = defaultdict(list)
    for name in facts.seen.history.lives:
        if (place := child_place(name)) is not None:
            children[place].append(name)
    for (parent, key, number), names in children.items():
        # its id has the life of its parent
        if len(names) > (1 if (root := facts.root(names[0])) is None else root.lives):
            yield f"{parent} has more than one child {number} of {key!r}: {names}"


def _may_become(before: str, after: str) -> bool:
    if is_finished(before):
        return False
    if before.startswith(RETRYING) and after.startswith(RETRYING):
        return bool(json.loads(before).get("attempts", 1) < json.loads(after).get("attempts", 1))
    return True


def false_answers(facts: Facts) -> Iterator[str]:
    """Invokes of which the client was told what is not so."""
    for each in facts.seen.invoked:
        if each.tries == 1 and not each.created:
            yield f"{each.name}: the client that started it was told that it was there already"


def left_living(facts: Facts) -> Iterator[str]:
    """Children that live although their parent has ended: at the end, and when a `fan_out` was recorded as failed."""
    left = facts.seen.left
    for name, status in left.statuses.items():
        if child_place(name) is not None and not Status(status).is_terminal:
            yield f"{name} is {status}, and its parent has ended"
    for name, completed_ms in left.completed_ms.items():
        if (place := child_place(name)) is None or (root := facts.root(name)) is None or root.resumed_s:
            continue
        for written in facts.records.get((root.name, place[1]), ()):
            if written.kind == "child" and written.completed_s * 1000 < completed_ms - 1:
                yield f"{name} ended {completed_ms / 1000 - written.completed_s:.3f} s after that was recorded"
