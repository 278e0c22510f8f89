"""Durable compensation: the parent calls the work, and undoes what was done in steps of its own."""

import asyncio

from memable import App, ChildFailed, Context, Engine

app = App()
diary: list[str] = []


async def write(line: str) -> None:
    diary.append(line)


@app.workflow("book")
async def book(ctx: Context, what: str) -> None:
    if what == "car":
        await ctx.suspend("confirmation:v1")  # by a person, who never comes
    await ctx.step("book:v1", write, f"book {what}")


@app.workflow("trip")
async def trip(ctx: Context) -> str:
    booked: list[str] = []
    try:
        for what in ("flight", "hotel", "car"):
            await ctx.call(f"book-{what}:v1", book, what)
            booked.append(what)
    except ChildFailed as failure:  # it has failed, or was cancelled: both are recorded, and replayed
        for what in reversed(booked):
            await ctx.step(f"undo-{what}:v1", write, f"cancel {what}")
        return f"no trip: {failure.error_type}"
    return "booked"


async def main() -> None:
    async with Engine(app) as engine:
        instance = await engine.invoke(trip, id="rome")
        async for state in instance.states():
            if state.key == "book-car:v1":
                break
        newest, *_ = (await engine.list_instances(book)).items
        await engine.cancel(book, newest.instance_id, reason="no car is left")
        print(await instance.result())
        print(", ".join(diary))


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   no trip: WorkflowCancelled
#   book flight, book hotel, cancel hotel, cancel flight
