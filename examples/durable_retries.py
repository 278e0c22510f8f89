"""A payment API is down for hours: the step is tried again, and nothing waits in memory meanwhile."""

import asyncio
from datetime import timedelta

from memable import App, Context, RetryPolicy, current_step
from memable.testing import TestEngine

app = App()
HOURLY = RetryPolicy.fixed(4, timedelta(hours=1))


async def charge(amount: int) -> str:
    attempt = current_step().attempt
    if attempt <= 2:
        raise ConnectionError("the payment API is down")
    return f"charged {amount} at attempt {attempt}"


@app.workflow("order")
async def order(ctx: Context, amount: int) -> str:
    return await ctx.step("charge:v1", charge, amount, retry=HOURLY)


async def main() -> None:
    async with TestEngine(app) as engine:  # as Engine(app), and time passes when it is told to
        placed = await engine.invoke(order, 42, id="order-1")
        for _ in range(2):
            await engine.settle()
            known = await placed.metadata()
            assert known is not None
            print(str(known.state).partition(" at ")[0], "- held by", known.worker)
            [step] = await engine.steps(order, "order-1")
            print(f"  {step.key}: {step.state} after {step.attempts}, {step.error}")
            await engine.advance(timedelta(hours=1))
        print(await placed.result())


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   queued: retrying charge:v1 (2 of 5) - held by None
#     charge:v1: retrying after 1, ConnectionError: the payment API is down
#   queued: retrying charge:v1 (3 of 5) - held by None
#     charge:v1: retrying after 2, ConnectionError: the payment API is down
#   charged 42 at attempt 3
