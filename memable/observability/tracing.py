"""Spans of runs and of calls of steps. The only file that imports OpenTelemetry, and itself only where somebody traces.

A run's span is a child of the span in which its instance was invoked, whatever process that was: see trace_context.py.
A step that is handed back from its record was not called, and has no span.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, ParamSpec, TypeVar

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from memable.errors import text_of
from memable.holding import Claim, Held
from memable.runtime.observing import Observer, RunObserver, RunOutcome, queued_s

_log = logging.getLogger("memable.tracing")

_W3C: Final = TraceContextTextMapPropagator()
_ERRORS: Final = (RunOutcome.FAILED, RunOutcome.LOST, RunOutcome.BROKEN)


P = ParamSpec("P")
Result = TypeVar("Result")


def _unfailing(method: Callable[P, Result]) -> Callable[P, Result | None]:
    """A processor of spans that raises must decide nothing of what it looks at."""

    @functools.wraps(method)
    def tried(*args: P.args, **kwargs: P.kwargs) -> Result | None:
        try:
            return method(*args, **kwargs)
        except Exception:
            _log.exception("a span could not be made or ended")
            return None

    return tried


def tracing() -> Observer | None:
    """Who makes the spans, if this process has configured a provider of tracers."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return Tracing(trace.get_tracer("memable"))


class Tracing(Observer):
    """Makes the spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @_unfailing
    def run_begins(self, held: Held, claim: Claim) -> RunObserver:
        keys = held.keys
        common = {"memable.workflow": keys.workflow, "memable.instance": keys.instance_id}
        parent, _, state = held.trace.partition(" ")
        span = self._tracer.start_span(
            f"run {keys.workflow}",
            # nothing of what is current here: a run belongs to whoever invoked its instance
            _W3C.extract({"traceparent": parent, "tracestate": state}, contexts.Context()),
            SpanKind.CONSUMER,
            {**common, "memable.attempt": claim.attempt, "memable.queue_delay": queued_s(held, claim)},
        )
        return _RunSpan(self._tracer, span, common)


class _Attempt(NamedTuple):
    span: Span
    token: object


class _RunSpan(RunObserver):
    __slots__ = ("_common", "_has_failed", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span, common: dict[str, str]) -> None:
        self._tracer, self._span, self._common = tracer, span, common
        self._has_failed = False

    @_unfailing
    def enters(self) -> None:
        # for good: this is the context of the run's first task
        contexts.attach(trace.set_span_in_context(self._span))

    @_unfailing
    def attempt_begins(self, key: str, attempt: int) -> _Attempt:
        span = self._tracer.start_span(
            f"step {key.partition('[')[0]}",  # a name that all items of a map share: backends count by it
            attributes={**self._common, "memable.key": key, "memable.attempt": attempt},
        )
        return _Attempt(span, contexts.attach(trace.set_span_in_context(span)))

    @_unfailing
    def attempt_ended(self, begun: _Attempt | None, elapsed_s: float, error: BaseException | None) -> None:  # noqa: ARG002
        if begun is None:
            return
        if not isinstance(error, GeneratorExit):  # else it is closed from another context
            contexts.detach(begun.token)  # type: ignore[arg-type]
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            begun.span.set_attribute("memable.outcome", "cancelled")
        elif error is not None:
            _fail(begun.span, error)
        begun.span.end()

    @_unfailing
    def failed(self, error: BaseException) -> None:
        self._has_failed = True
        _fail(self._span, error)

    @_unfailing
    def ended(self, outcome: RunOutcome) -> None:
        self._span.set_attribute("memable.outcome", outcome.value)
        if outcome in _ERRORS and not self._has_failed:
            self._span.set_status(Status(StatusCode.ERROR, outcome.value))
        self._span.end()


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)  # type: ignore[arg-type, unused-ignore]
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {text_of(error)}"))
