"""What Redis hands over and nobody can read: written by hand, cut off, of a program that took our keys for its own.

It is an error that names what is damaged, for who asked for just that; of many the others are shown all the same.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from memable.errors import StorageError


class Damaged(StorageError):
    """What is there is not what memable has written."""

    def __init__(self, what: str, why: Exception) -> None:
        super().__init__(f"{what} cannot be read, what Redis has of it is damaged: {type(why).__name__}: {why}")


@contextmanager
def reading(what: str) -> Generator[None]:
    """Whatever goes wrong in here with what was read is `Damaged`; what is an error of memable stays one."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError) as error:
        raise Damaged(what, error) from error


def legible(raw: bytes) -> str:
    """A name, to be shown or compared; what is no UTF-8 is escaped."""
    return raw.decode(errors="backslashreplace")
