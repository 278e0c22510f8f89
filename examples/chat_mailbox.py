"""A conversation: messages of a mailbox, in order, each received once, however long the other side is silent."""

import asyncio
from datetime import timedelta

from pydantic import BaseModel

from memable import App, Context, Engine, SuspendTimeout

app = App()


class Said(BaseModel):
    by: str
    text: str


@app.workflow("chat")
async def chat(ctx: Context, patience_s: float) -> list[str]:
    heard: list[str] = []
    while True:
        key = f"message-{len(heard)}"  # each message has a key of its own: a replay finds it there
        try:
            said = await ctx.receive(key, "chat", timeout=timedelta(seconds=patience_s), returns=Said)
        except SuspendTimeout:
            return [*heard, "(silence)"]
        heard.append(f"{said.by}: {said.text}")
        if said.text == "bye":
            return heard


async def main() -> None:
    async with Engine(app) as engine:
        conversation = await engine.invoke(chat, 3600, id="42")
        print("at first:", await conversation.wait())
        # more than one: those that nobody waits for yet are kept, in order
        for text in ("hello", "is anybody there?"):
            await conversation.send("chat", Said(by="Ann", text=text))
        # by its id a message that is sent again is known: for a sender who is not sure that it arrived
        for _ in range(2):
            await engine.send("chat", "42", "chat", Said(by="Bob", text="yes!"), message_id="bob-1")
        await conversation.send("chat", Said(by="Ann", text="bye"))
        for line in await conversation.result():
            print(line)

        lonely = await engine.invoke(chat, 0.1)
        print("and nobody speaks:", await lonely.result())


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   at first: suspended: message-0
#   Ann: hello
#   Ann: is anybody there?
#   Bob: yes!
#   Ann: bye
#   and nobody speaks: ['(silence)']
