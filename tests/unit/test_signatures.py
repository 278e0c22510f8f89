"""The contract's calls have its parameters and defaults: programs outside this repository are written against them."""

from __future__ import annotations

import inspect
from datetime import timedelta
from operator import attrgetter
from typing import Any

import pytest

import memable
from memable import App, Context, CurrentStep, Invocation, StepRecord, WorkflowMetadata, WorkflowState

# as the contract has them; `...`: a default that it does not name
PROMISED = """
App(*, default_retry=None, retention=timedelta(days=7), lifespan=None, codec=None)
App.workflow(self, name=None, *, retry=..., retention=..., deadline=None)
App.register(self, name, fn, *, retry=..., retention=..., deadline=None)
SuspendPoint(key, type=...)
Context.step(self, key, fn, *args, timeout=None, retry=..., returns=None)
Context.suspend(self, point, *, status=None, timeout=None)
Context.timer(self, key, duration)
Context.sleep_until(self, key, when)
Context.set_status(self, message)
Context.first(self, key, calls)
Context.map(self, key, items, fn, *, concurrency=None, fail_fast=True)
Context.call(self, key, workflow, input=...)
Context.fan_out(self, key, items, workflow, *, concurrency=None, fail_fast=True)
Context.receive(self, key, mailbox, *, timeout=None)
Context.continue_as(self, input)
current_step()
RetryPolicy.fixed(max_retries, delay)
RetryPolicy.exponential(max_retries, base, *, max_delay=30.0, jitter=0.0)
RetryPolicy.with_max_delay(self, max_delay)
RetryPolicy.with_jitter(self, jitter)
RetryPolicy.delay_for(self, attempt)
connect(url=..., *, app=None)
Client.invoke(self, workflow, input=..., *, id=None, delay=None, labels=None)
Client.invoke_many(self, workflow, inputs, *, ids=None)
Client.get(self, workflow, id)
Client.signal(self, workflow, id, point, payload=None, *, buffer=False, signal_id=None)
Client.send(self, workflow, id, mailbox, message, *, message_id=None)
Client.resume(self, workflow, id, *, rerun=())
Client.cancel(self, workflow, id, *, reason=None)
Client.get_metadata(self, workflow, id)
Client.list_instances(self, workflow=None, *, status=None, labels=None, limit=100, cursor=None)
Client.steps(self, workflow, id)
Client.subscribe(self, workflow, id)
Client.delete(self, workflow, id)
Invocation.wait(self, timeout=None)
Invocation.result(self, timeout=None)
Invocation.states(self)
Invocation.signal(self, point, payload=...)
Invocation.cancel(self)
Invocation.resume(self)
Invocation.metadata(self)
Engine(app, *, url=None, data_dir=None, settings=None)
Engine.start(self)
Engine.stop(self)
Engine.wait_all(self)
""".strip().splitlines()

FIELDS: dict[type, str] = {
    CurrentStep: "key attempt workflow_name instance_id idempotency_key",
    Context: "workflow_name instance_id started_at is_replaying resources logger",
    WorkflowState: "status message key is_terminal is_at_rest",
    WorkflowMetadata: (
        "workflow instance_id status state created_at started_at completed_at attempt worker error waiting_on labels"
    ),
    StepRecord: "key kind state result error attempts started_at completed_at",
    Invocation: "workflow_name instance_id created",
}


def called(promise: str) -> Any:
    """What the promise is about: a function, a class or a method of `memable`."""
    return attrgetter(promise.partition("(")[0])(memable)


def stub(promise: str) -> inspect.Signature:
    """Its signature."""
    names: dict[str, Any] = {"timedelta": timedelta}
    exec(f"def promised({promise.partition('(')[2]}: ...", names)  # our own words
    signature: inspect.Signature = inspect.signature(names["promised"])
    return signature


@pytest.mark.spec("signatures")
@pytest.mark.parametrize("promise", PROMISED, ids=lambda promise: promise.partition("(")[0])
def test_a_call_takes_what_the_contract_says_and_nothing_else_must_be_given(promise: str) -> None:
    promised, there = stub(promise).parameters, inspect.signature(called(promise)).parameters
    for name, parameter in promised.items():
        assert name in there
        assert there[name].kind is parameter.kind
        if parameter.default is ...:
            assert there[name].default is not parameter.empty
        elif parameter.default is not parameter.empty:
            assert there[name].default == parameter.default
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    in_order = [name for name, parameter in promised.items() if parameter.kind in by_place]
    assert list(there)[: len(in_order)] == in_order
    for name in there.keys() - promised.keys():
        optional = there[name].kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        assert optional or there[name].default is not inspect.Parameter.empty


@pytest.mark.spec("signatures")
@pytest.mark.parametrize("record", FIELDS, ids=lambda record: record.__name__)
def test_a_record_has_the_fields_that_the_contract_names(record: type) -> None:
    there = {*dir(record), *getattr(record, "__slots__", ())}
    assert set(FIELDS[record].split()) <= there


@pytest.mark.spec("codec")
def test_an_app_takes_no_other_codec_yet() -> None:
    App(codec=None)
    with pytest.raises(ValueError, match=r"App\(codec='mine'\): other codecs"):
        App(codec="mine")  # type: ignore[arg-type]
