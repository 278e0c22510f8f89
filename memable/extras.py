"""Which extra brings which foreign package: what is missing is said in one line, with what to install."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXTRA_OF: Final[Mapping[str, str]] = {
    "arq": "worker",
    "click": "worker",
    "rich": "worker",
    "prometheus_client": "metrics",
    "opentelemetry": "otel",
}
"""By the name that is imported."""


def what_to_install(error: ModuleNotFoundError) -> str | None:
    """The line for a package of an extra; `None` if it is none of ours that is missing.

    >>> what_to_install(ModuleNotFoundError(name="arq.worker"))
    "this needs arq, which is not installed: pip install 'memable[worker]'"
    """
    package = (error.name or "").partition(".")[0]
    return missing(package) if package in EXTRA_OF else None


def missing(package: str) -> str:
    """The line for a package of an extra."""
    return f"this needs {package}, which is not installed: pip install 'memable[{EXTRA_OF[package]}]'"
