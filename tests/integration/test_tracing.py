"""Spans of runs and steps: one trace from the web request to whatever its instance causes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, StatusCode

from memable import App, Context, Engine, PermanentError, RetryPolicy, Settings, current_step
from memable.keys import Keys
from tests.worker_process import until

app = App()


async def works() -> str:
    return f"{trace.get_current_span().get_span_context().span_id:x}"


def works_in_a_thread() -> str:
    return f"{trace.get_current_span().get_span_context().span_id:x}"


async def fails_at_first() -> None:
    if current_step().attempt == 1:
        raise ConnectionError("away")


async def fails() -> None:
    raise PermanentError("no stock")


@app.workflow("order")
async def order(ctx: Context) -> list[str]:
    first = await ctx.step("a", works)
    await ctx.step("b", fails_at_first, retry=RetryPolicy.fixed(1, 0))
    await ctx.suspend("approval")
    await ctx.map("items", [1, 2], lambda _: works())
    return [first, await ctx.step("thread", works_in_a_thread)]


@app.workflow("bad")
async def bad(ctx: Context) -> None:
    await ctx.step("a", fails)


@app.workflow("parent")
async def parent(ctx: Context) -> None:
    await ctx.call("child", order_child)


@app.workflow("child")
async def order_child(ctx: Context) -> None:
    await ctx.step("a", works)


@app.workflow("lives")
async def lives(ctx: Context, is_last: bool) -> None:
    if not is_last:
        ctx.continue_as(True)


class Spans:
    """What was exported."""

    def __init__(self, exporter: InMemorySpanExporter, tracer: trace.Tracer) -> None:
        self._exporter, self.tracer = exporter, tracer

    def named(self, name: str) -> list[ReadableSpan]:
        found = [each for each in self._exporter.get_finished_spans() if each.name == name]
        return sorted(found, key=lambda each: each.start_time or 0)

    async def ended(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Those of this name, once there are so many: a run's ends a moment after its instance is done."""
        await until(lambda: len(self.named(name)) >= count, f"{count} spans {name!r}")
        found = self.named(name)
        assert len(found) == count
        return found


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """As a process has that has called `set_tracer_provider`, which cannot be taken back."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return Spans(exporter, provider.get_tracer("web"))


@pytest.fixture
async def engine(spans: Spans, redis_url: str, namespace: str) -> AsyncIterator[Engine]:
    async with Engine(app, url=redis_url, settings=Settings(namespace=namespace)) as engine:
        yield engine


def facts(span: ReadableSpan) -> dict[str, object]:
    return {name.removeprefix("memable."): value for name, value in (span.attributes or {}).items()}


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: Span | ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def trace_of(span: Span | ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


async def test_the_trace_of_a_request_goes_on_in_the_worker_until_the_instance_ends(
    engine: Engine, spans: Spans
) -> None:
    with spans.tracer.start_as_current_span("POST /orders") as request:
        invocation = await engine.invoke(order, id="42")
    await invocation.wait()
    (first,) = await spans.ended("run order")
    await invocation.signal("approval")
    seen_inside = await invocation.result()
    first, second = await spans.ended("run order", 2)

    assert parent_of(first) == parent_of(second) == id_of(request)
    assert (
        facts(first).items()
        >= {
            "workflow": "order",
            "instance": "42",
            "attempt": 1,
            "outcome": "suspended",
        }.items()
    )
    assert (facts(second)["attempt"], facts(second)["outcome"]) == (2, "completed")
    assert facts(first)["queue_delay"] >= 0  # type: ignore[operator]
    # a step that was handed back from its record has no span in the second run
    (a,), (b_failed, b), items, (thread,) = map(spans.named, ("step a", "step b", "step items", "step thread"))
    assert [parent_of(each) for each in (a, b_failed, b)] == [id_of(first)] * 3
    assert [parent_of(each) for each in (*items, thread)] == [id_of(second)] * 3
    assert [facts(each)["key"] for each in items] == ["items[0]", "items[1]"]
    assert facts(a) == {"workflow": "order", "instance": "42", "key": "a", "attempt": 1}
    assert (facts(b_failed)["attempt"], facts(b)["attempt"]) == (1, 2)
    assert (b_failed.status.status_code, b_failed.status.description) == (StatusCode.ERROR, "ConnectionError: away")
    assert b.status.is_unset
    # what the step's function does belongs to its span, in a thread too
    assert seen_inside == [f"{id_of(a):x}", f"{id_of(thread):x}"]
    assert {trace_of(each) for each in (first, second, a, b_failed, b, *items, thread)} == {trace_of(request)}


async def test_a_failure_is_told_with_its_exception(engine: Engine, spans: Spans) -> None:
    await (await engine.invoke(bad)).wait()
    (run,), (step,) = await spans.ended("run bad"), spans.named("step a")
    assert step.status.description == "PermanentError: no stock"
    assert [event.name for event in step.events] == ["exception"]
    assert (run.status.status_code, facts(run)["outcome"]) == (StatusCode.ERROR, "failed")
    (told,) = run.events
    assert told.attributes
    assert told.attributes["exception.type"] == "memable.errors.StepFailed"
    # it was invoked outside of any trace
    assert parent_of(run) is None


class Broken(SpanProcessor):
    """Raises wherever it is asked."""

    def on_start(self, span: Span, parent_context: object = None) -> None:
        raise RuntimeError("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("on_end")


async def test_a_processor_of_spans_that_raises_changes_nothing(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Broken())
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    async with Engine(app, url=redis_url, settings=Settings(namespace=namespace)) as engine:
        await (await engine.invoke(order_child)).result()
    assert "a span could not be made or ended" in caplog.text


async def test_children_go_on_with_the_trace_of_their_parent(engine: Engine, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("POST /families") as request:
        invocation = await engine.invoke(parent)
    await invocation.result()
    (child,) = await spans.ended("run child")
    runs = await spans.ended("run parent", 2)
    assert parent_of(child) == id_of(runs[0])
    assert trace_of(child) == trace_of(request)


async def test_the_next_life_has_a_trace_of_its_own(engine: Engine, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("POST /lives") as request:
        invocation = await engine.invoke(lives, False)
    await invocation.result()
    first, second = await spans.ended("run lives", 2)
    assert facts(first)["outcome"] == "continued"
    assert parent_of(first) == id_of(request)
    assert parent_of(second) is None


async def test_redis_keeps_the_context_as_w3c_writes_it_and_nothing_without_one(
    engine: Engine, spans: Spans, namespace: str
) -> None:
    with spans.tracer.start_as_current_span("POST /orders") as request:
        await engine.invoke(order_child, id="traced")
    await engine.invoke(order_child, id="plain")
    await engine.get(order_child, "plain").result()
    keys = Keys(namespace, partitions=1)
    command = engine._online().connection.command
    traced = await command("HGET", keys.of("child", "traced").instance, "trace")
    flags = request.get_span_context().trace_flags
    assert traced.decode() == f"00-{trace_of(request):032x}-{id_of(request):016x}-{flags:02x}"
    assert await command("HGET", keys.of("child", "plain").instance, "trace") is None


async def test_a_worker_that_does_not_trace_hands_the_trace_on(
    redis_url: str, namespace: str, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The web application traces, the first worker does not; the children of its instance are in the trace, too."""
    settings = Settings(namespace=namespace)
    with monkeypatch.context() as untraced:
        untraced.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)
        async with Engine(app, url=redis_url, settings=settings) as engine:
            with spans.tracer.start_as_current_span("POST /families") as request:
                invocation = await engine.invoke(parent)
            await invocation.result()
            (child,) = (await engine.list_instances(order_child)).items
            keys = Keys(namespace, partitions=1).of("child", child.instance_id)
            handed_on = await engine._online().connection.command("HGET", keys.instance, "trace")
    assert not spans.named("run parent")
    assert handed_on.decode().split("-")[1:3] == [f"{trace_of(request):032x}", f"{id_of(request):016x}"]
