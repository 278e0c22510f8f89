"""Labels: what an application calls its instances by, to find them again. Kept as `NAME=VALUE`, one a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from memable.errors import InvalidLabel

Labels = Mapping[str, str]

NO_LABELS: Final[Labels] = {}

MAX_LABELS: Final = 10
_MAX_NAME, _MAX_VALUE = 60, 200
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def check_labels(labels: Mapping[str, str] | None) -> Labels:
    """`labels` in the order of their names, if an instance can have them; `InvalidLabel`, `TypeError` for no mapping.

    >>> check_labels({"tenant": "acme", "region": "eu"})
    {'region': 'eu', 'tenant': 'acme'}
    """
    if labels is None:
        return NO_LABELS
    if not isinstance(labels, Mapping):
        raise TypeError(f"labels are a mapping of names to values, such as {{'tenant': 'acme'}}, not {labels!r}")
    if len(labels) > MAX_LABELS:
        raise InvalidLabel(f"{len(labels)} labels are too many: an instance has {MAX_LABELS} at most")
    for name, value in labels.items():
        if not _is_text(name, _MAX_NAME) or "=" in name:
            raise InvalidLabel(
                f"invalid name of a label {name!r}: it must be a string of 1 to {_MAX_NAME} characters without '=' or "
                f"control characters"
            )
        if not _is_text(value, _MAX_VALUE):
            raise InvalidLabel(
                f"invalid value of the label {name!r}: it must be a string of 1 to {_MAX_VALUE} characters without "
                f"control characters, not {value!r}"
            )
    return {name: labels[name] for name in sorted(labels)}


def _is_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= longest and not _FORBIDDEN.search(value)


def lines_of(labels: Labels) -> list[str]:
    """A line for each label: what its index is named by.

    >>> lines_of({"region": "eu", "formula": "e=mc²"})
    ['region=eu', 'formula=e=mc²']
    """
    return [f"{name}={value}" for name, value in labels.items()]


def parse_lines(lines: list[str]) -> Labels:
    """What `lines_of` was made from."""
    return dict(line.split("=", 1) for line in lines)
