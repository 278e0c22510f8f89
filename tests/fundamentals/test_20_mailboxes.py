"""Lesson 20. Conversations.

A signal completes one point, once. For a chat, an agent or a feed an instance has mailboxes: `client.send` appends a
message to one, and `await ctx.receive(key, mailbox)` reads the next. Messages come in the order in which they were
sent, each once; those that nobody waits for yet are kept. A mailbox needs no declaration: its name is enough.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from memable import (
    App,
    Context,
    Engine,
    InvalidKey,
    SignalRejected,
    StepConflict,
    StepKind,
    StepState,
    SuspendTimeout,
    WorkflowFailed,
)
from memable.errors import PayloadTooLarge
from tests.fundamentals.starting import Start


class Said(BaseModel):
    by: str
    text: str


def chat(count: int) -> App:
    """Receives that many messages, one after the other."""
    app = App()

    @app.workflow("chat")
    async def chat(ctx: Context) -> list[Any]:
        return [await ctx.receive(f"message {number}", "chat") for number in range(count)]

    return app


@pytest.mark.spec("receive")
async def test_an_instance_receives_what_is_sent_to_it(start: Start) -> None:
    async with start(chat(2)) as engine:
        instance = await engine.invoke("chat", id="1")
        state = await instance.wait()
        assert (str(state), state.key) == ("suspended: message 0", "message 0")
        await instance.send("chat", "hello")
        await instance.send("chat", {"and": ["more"]})
        assert await instance.result() == ["hello", {"and": ["more"]}]
        records = await engine.steps("chat", "1")
        assert [(each.key, each.kind, each.state) for each in records] == [
            ("message 0", StepKind.MESSAGE, StepState.COMPLETED),
            ("message 1", StepKind.MESSAGE, StepState.COMPLETED),
        ]


@pytest.mark.spec("receive", "send")
async def test_messages_are_kept_until_they_are_received_and_come_in_order(start: Start) -> None:
    app = chat(100)
    workflow = app.get("chat")
    assert workflow is not None
    async with start(App()) as engine:  # nobody runs it yet
        await engine.invoke(workflow, id="1")
        for number in range(100):
            await engine.send("chat", "1", "chat", number)
    async with start(app) as engine:
        assert await engine.get("chat", "1").result() == list(range(100))


async def test_two_receives_at_once_share_a_mailbox_in_the_order_in_which_they_were_made(start: Start) -> None:
    app = App()

    @app.workflow("pairs")
    async def pairs(ctx: Context) -> list[list[int]]:
        return [
            [*await asyncio.gather(ctx.receive(f"left {n}", "numbers"), ctx.receive(f"right {n}", "numbers"))]
            for n in range(10)
        ]

    async with start(app) as engine:
        instance = await engine.invoke(pairs)
        for number in range(20):
            await instance.send("numbers", number)
            if number % 3 == 0:
                await instance.wait(timeout=30)
        assert await instance.result() == [[2 * n, 2 * n + 1] for n in range(10)]


@pytest.mark.spec("receive")
async def test_an_instance_may_have_many_mailboxes(start: Start) -> None:
    app = App()

    @app.workflow("listening")
    async def listening(ctx: Context) -> list[str]:
        return [await ctx.receive("b", "news"), await ctx.receive("a", "chat")]

    async with start(app) as engine:
        instance = await engine.invoke(listening)
        await instance.send("chat", "hello")
        await instance.send("nobody reads this", "…")
        await instance.send("news", "sunny")
        assert await instance.result() == ["sunny", "hello"]


async def test_a_message_is_of_the_type_that_its_reader_names(start: Start) -> None:
    app = App()

    @app.workflow("typed")
    async def typed(ctx: Context) -> str:
        said = await ctx.receive("first", "chat", returns=Said)
        return f"{type(said).__name__}: {said.text}"

    async with start(app) as engine:
        instance = await engine.invoke(typed, id="1")
        await instance.send("chat", Said(by="Ada", text="hello"))
        assert await instance.result() == "Said: hello"
        instance = await engine.invoke(typed, id="2")
        await instance.send("chat", {"by": "Bob", "text": "plain JSON will do"})
        assert await instance.result() == "Said: plain JSON will do"


async def test_a_message_that_does_not_fit_is_kept_for_code_that_reads_it(start: Start) -> None:
    """A mailbox takes anything: only who receives knows what it should be."""

    def listening(returns: Any) -> App:
        app = App()

        @app.workflow("listening")
        async def listening(ctx: Context) -> str:
            return repr(await ctx.receive("first", "chat", returns=returns))

        return app

    async with start(listening(int)) as engine:
        instance = await engine.invoke("listening", id="1")
        await instance.send("chat", "seven")
        with pytest.raises(WorkflowFailed, match=r"TypeMismatch: .*receive 'first' of listening/1.*expected int"):
            await instance.result()
    async with start(listening(int | str)) as engine:
        await engine.resume("listening", "1")
        assert await engine.get("listening", "1").result() == "'seven'"


@pytest.mark.spec("send-id")
async def test_a_message_with_an_id_may_be_sent_again(start: Start) -> None:
    """For a sender who does not know whether the first one arrived: success, and no second effect."""
    async with start(chat(3)) as engine:
        instance = await engine.invoke("chat")
        for _ in range(2):
            await instance.send("chat", "hello", message_id="1")
        await instance.send("chat", "hello", message_id="2")
        await instance.send("chat", "hello, by another name", message_id="1")
        await instance.send("chat", "bye")
        assert await instance.result() == ["hello", "hello", "bye"]
        await instance.send("chat", "hello", message_id="1")


@pytest.mark.spec("receive-timeout")
async def test_who_waits_for_a_message_may_lose_patience(start: Start) -> None:
    app = App()

    @app.workflow("patient")
    async def patient(ctx: Context) -> list[str]:
        heard = list[str]()
        for number in range(3):
            try:
                heard.append(await ctx.receive(f"message {number}", "chat", timeout=0.05 if number == 1 else 3600))
            except SuspendTimeout as error:
                heard.append(f"nothing for {error.key}")
        return heard

    async with start(app) as engine:
        instance = await engine.invoke(patient)
        await instance.send("chat", "hello")
        async for state in instance.states():
            if state.key == "message 2":
                break
        await instance.send("chat", "are you there?")
        assert await instance.result() == ["hello", "nothing for message 1", "are you there?"]


async def test_a_receive_that_the_author_gives_up_takes_no_message(start: Start) -> None:
    app = App()

    @app.workflow("impatient")
    async def impatient(ctx: Context) -> list[str]:
        given_up = asyncio.create_task(ctx.receive("given up", "chat"))
        await ctx.step("something else", str)
        given_up.cancel()
        await ctx.suspend("go on")
        return [await ctx.receive("first", "chat"), await ctx.receive("second", "chat")]

    async with start(app) as engine:
        instance = await engine.invoke(impatient)
        assert str(await instance.wait()) == "suspended: go on"
        await instance.send("chat", "1")
        await instance.send("chat", "2")
        await instance.signal("go on")
        assert await instance.result() == ["1", "2"]


@pytest.mark.spec("send")
async def test_a_message_to_an_instance_that_is_over_or_never_was_is_rejected_with_the_reason(start: Start) -> None:
    async with start(chat(0)) as engine:
        instance = await engine.invoke("chat", id="1")
        await instance.result()
        with pytest.raises(SignalRejected, match="mailbox 'chat' to chat/1 rejected: the instance is completed"):
            await instance.send("chat", "too late")
        with pytest.raises(SignalRejected, match="there is no such instance"):
            await engine.send("chat", "2", "chat", "too early")


async def test_a_mailbox_has_a_name_and_a_message_a_limit(start: Start) -> None:
    async with start(chat(1)) as engine:
        instance = await engine.invoke("chat")
        with pytest.raises(InvalidKey, match="mailbox 'a/b'"):
            await instance.send("a/b", "hello")
        with pytest.raises(InvalidKey, match="message id ''"):
            await instance.send("chat", "hello", message_id="")
        with pytest.raises(PayloadTooLarge, match="message for mailbox 'chat'"):
            await instance.send("chat", "x" * 2_000_000)
        await instance.send("chat", "hello")
        assert await instance.result() == ["hello"]


async def test_a_key_that_was_a_receive_keeps_its_kind(start: Start) -> None:
    app, kinds = App(), ["receive", "step", "suspend"]

    @app.workflow("changing")
    async def changing(ctx: Context) -> None:
        kind = kinds.pop(0)
        if kind == "receive":
            await ctx.receive("first", "chat")
            await ctx.suspend("hold on")
        elif kind == "step":
            await ctx.step("first", str)
        else:
            await ctx.suspend("first")

    async with start(app) as engine:
        instance = await engine.invoke(changing)
        await instance.send("chat", "hello")
        await instance.wait()
        for _ in range(2):
            await instance.resume()
            with pytest.raises(WorkflowFailed, match=f"{StepConflict.__name__}: .*suspended entry"):
                await instance.result()


async def test_a_conversation_goes_on_in_another_worker(start: Start) -> None:
    """Two engines, which come and go: a deployment that is updated while people talk to it."""
    app, engines = chat(40), list[Engine]()
    async with start(App()) as sender:
        for number in range(40):
            if number % 10 == 0:
                engines.append(await start(app).__aenter__())
                if len(engines) > 1:
                    await engines[-2].stop()
                if number == 0:
                    await engines[0].invoke("chat", id="1")
            await sender.send("chat", "1", "chat", number)
        assert await sender.get("chat", "1").result() == list(range(40))
        await engines[-1].stop()
