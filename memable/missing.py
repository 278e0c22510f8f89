"""`MISSING`: what stands for an input that was not given, since `None` can be one."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""No input was given, not even `None`."""
