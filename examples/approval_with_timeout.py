"""An approval that may never come: a durable timeout, and a signal that comes before anybody waits for it."""

import asyncio
from datetime import timedelta

from memable import App, Context, Engine, SignalSuperseded, SuspendPoint, SuspendTimeout

app = App()
APPROVAL = SuspendPoint("approval:v1", bool)  # key and type, shared by both sides


@app.workflow("expense")
async def expense(ctx: Context, patience_s: float) -> str:
    try:
        approved = await ctx.suspend(APPROVAL, status="waiting for the manager", timeout=timedelta(seconds=patience_s))
    except SuspendTimeout:  # recorded: raised again in every replay
        return "refused: nobody answered in time"
    return "approved" if approved else "refused"


async def main() -> None:
    async with Engine(app) as engine:
        answered = await engine.invoke(expense, 3600)
        print("at first:", await answered.wait())
        await answered.signal(APPROVAL, True)
        print("answered in time:", await answered.result())

        forgotten = await engine.invoke(expense, 0.1)
        print("not answered:", await forgotten.result())
        try:
            await forgotten.signal(APPROVAL, True)
        except SignalSuperseded as error:
            print("too late:", type(error).__name__)

        # kept for the point if the instance is not there yet; a signal sent again with its id is no second one
        early = await engine.invoke(expense, 3600)
        for _ in range(2):
            await early.signal(APPROVAL, False, buffer=True, signal_id="a click")
        print("answered early:", await early.result())


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   at first: suspended: waiting for the manager
#   answered in time: approved
#   not answered: refused: nobody answered in time
#   too late: SignalSuperseded
#   answered early: refused
