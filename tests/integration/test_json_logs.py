"""`MEMABLE_LOG_FORMAT=json`: each line says of which instance, step and attempt it is, whoever has written it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from memable import App, Context, Engine, PermanentError, RetryPolicy, Settings, current_step
from memable.runtime.logs import JsonFormatter

author = logging.getLogger("shop.payments")


class Lines(logging.Handler):
    """What a worker process would write to stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))

    def saying(self, text: str) -> list[dict[str, Any]]:
        assert all("\n" not in line and line.encode() for line in self._lines)
        return [line for line in map(self._parsed, self._lines) if text in line["message"]]

    @staticmethod
    def _parsed(line: str) -> dict[str, Any]:
        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        parsed: dict[str, Any] = json.loads(line, parse_constant=refuse)
        return parsed


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger()
    root.addHandler(handler)
    author.setLevel(logging.INFO)
    workflows = logging.getLogger("memable.workflow")
    workflows.setLevel(logging.INFO)
    yield handler
    for each in (author, workflows):
        each.setLevel(logging.NOTSET)
    root.removeHandler(handler)


app = App()


async def charge() -> None:
    author.info("charging", extra={"amount": 9.5})
    if current_step().attempt == 1:
        raise ConnectionError("away")


def charge_in_a_thread() -> None:
    author.info("charging in a thread")


async def refuse() -> None:
    raise PermanentError("no")


@app.workflow("order")
async def order(ctx: Context) -> None:
    ctx.logger.info("it begins")
    author.info("between steps")
    await ctx.step("charge:v1", charge, retry=RetryPolicy.fixed(1, 0))
    await ctx.step("thread:v1", charge_in_a_thread)
    await ctx.step("refuse:v1", refuse)


async def test_every_line_says_where_it_was_written(redis_url: str, namespace: str, lines: Lines) -> None:
    async with Engine(app, url=redis_url, settings=Settings(namespace=namespace)) as engine:
        await (await engine.invoke(order, id="42")).wait()
    place = {"workflow": "order", "instance_id": "42"}

    def said(text: str, *names: str) -> list[dict[str, Any]]:
        found = lines.saying(text)
        assert all(line.items() >= place.items() for line in found)
        return [{name: line.get(name) for name in names} for line in found]

    nowhere = {"step": None, "attempt": None}
    assert said("it begins", "logger", "level") == [{"logger": "memable.workflow", "level": "info"}]
    assert said("between steps", "step", "attempt") == [nowhere]
    step = {"step": "charge:v1", "amount": 9.5, "logger": "shop.payments"}
    charges = [line for line in said("charging", "step", "attempt", "amount", "logger") if line["amount"]]
    assert charges == [{**step, "attempt": 1}, {**step, "attempt": 2}]
    assert said("charging in a thread", "step", "attempt") == [{"step": "thread:v1", "attempt": 1}]
    # memable's own
    ((failed),) = said("order/42 failed", "step", "attempt", "error", "level")
    assert (failed["step"], failed["level"]) == (None, "warning")
    assert "PermanentError: no" in failed["error"]


async def test_a_line_names_the_span_that_it_was_written_in(lines: Lines) -> None:
    with TracerProvider().get_tracer("web").start_as_current_span("POST /orders") as span:
        author.info("inside")
    author.info("outside")
    (inside,), (outside,) = lines.saying("inside"), lines.saying("outside")
    context = span.get_span_context()
    assert inside["trace_id"] == trace.format_trace_id(context.trace_id)
    assert inside["span_id"] == trace.format_span_id(context.span_id)
    assert not {"trace_id", "span_id"} & outside.keys()


def test_what_is_no_json_is_shown_as_python_does_and_extras_cannot_forge_the_rest(lines: Lines) -> None:
    author.info("odd", extra={"what": {1, 2}, "level": "fatal", "time": 0})
    (line,) = lines.saying("odd")
    assert (line["what"], line["level"], line["time"] != 0) == ("{1, 2}", "info", True)


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value",
    [endless(), deep(), Mute(), {(1, 2): 3}, float("nan"), 10**5000, "\ud800", {"in": [Mute(), float("inf")]}],
    ids=["endless", "deep", "mute", "tuple as a key", "NaN", "too many digits", "surrogate", "in a list"],
)
def test_no_extra_keeps_a_line_from_being_written(lines: Lines, value: object) -> None:
    author.info("odd", extra={"what": value, "amount": 9.5})
    (line,) = lines.saying("odd")
    assert (isinstance(line["what"], str), line["amount"]) == (True, 9.5)


def test_a_line_is_json_that_can_be_written_whatever_its_text_is() -> None:
    # not logged: pytest would report it, and fail at the same
    line = JsonFormatter().format(logging.makeLogRecord({"msg": "lone \ud800"}))
    assert json.loads(line.encode())["message"] == r"lone \ud800"
