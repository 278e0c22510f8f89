"""What the storm calls an instance: `WF/ID`, and `WF/ID#2` what it is in its second life.

Each life has runs, records and deliveries of its own, which are counted from 1 again.
"""

from __future__ import annotations

from memable.keys import CHILD_MARK


def life_name(name: str, life: int) -> str:
    """The name of an instance in the life with this number, from 1."""
    return name if life == 1 else f"{name}#{life}"


def instance_name(name: str) -> str:
    """The `WF/ID` of whatever has a name."""
    return name.partition("#")[0]


def life_of(name: str) -> int:
    """The number of the life."""
    return int(name.partition("#")[2] or 1)


def root_id(name: str) -> str:
    """The id of the instance that was invoked: of a child, that of its first ancestor."""
    return instance_name(name).split("/", maxsplit=1)[1].partition(CHILD_MARK)[0]


def child_place(name: str) -> tuple[str, str, int] | None:
    """Of a child: the id of its parent, the key of the call, and its number there; None of what was invoked."""
    instance_id = instance_name(name).split("/", maxsplit=1)[1]
    if CHILD_MARK not in instance_id:
        return None
    parent, _, key, number = instance_id.rsplit(CHILD_MARK, 3)
    return parent, key, int(number)
