"""How an instance fails: what is stored of it, and which records a resume clears."""

from __future__ import annotations

from collections.abc import Sequence

from memable.codec import to_json
from memable.holding import Outcome
from memable.state import Status


def failure_outcome(error_type: str, error_message: str, failed_keys: Sequence[str] = ()) -> Outcome:
    """The outcome of an instance that failed, as it is stored."""
    value = {"type": error_type, "message": error_message, "step": failed_keys[0] if failed_keys else None}
    return Outcome(Status.FAILED, to_json(value), f"{error_type}: {error_message}", failed_keys)


def chain_of(error: BaseException) -> list[BaseException]:
    """The exception that escaped, what it was raised from or while handling, and what groups hold."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop(0)
        if each is None or any(each is known for known in found):
            continue
        found.append(each)
        todo.append(each.__cause__)
        if not each.__suppress_context__:
            todo.append(each.__context__)
        if isinstance(each, BaseExceptionGroup):
            todo.extend(each.exceptions)
    return found
