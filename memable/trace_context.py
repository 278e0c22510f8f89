"""The trace that the code here belongs to, as W3C's `traceparent` writes it. Imports nothing: see `current_trace`."""

from __future__ import annotations

import sys
from typing import Any


def opentelemetry() -> Any:
    """`opentelemetry.trace`, if this process has imported it: one that traces has, and any other pays one lookup."""
    return sys.modules.get("opentelemetry.trace")


def span_context() -> Any:
    """OpenTelemetry's context of the current span, if there is one."""
    if (api := opentelemetry()) is None:
        return None
    context = api.get_current_span().get_span_context()
    return context if context.is_valid else None


def current_trace() -> str:
    """What to hand on for others to go on with this trace: traceparent, and tracestate behind a space; or nothing."""
    context = span_context()
    if context is None:
        return ""
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return f"{parent} {context.trace_state.to_header()}".rstrip()
