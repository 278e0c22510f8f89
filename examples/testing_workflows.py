"""A test of a workflow that waits for three days, in a moment: steps replaced, time travelled, deaths survived."""

import asyncio
from datetime import timedelta

from memable import App, Context
from memable.testing import TestEngine, check_replays

app = App()


async def send_mail(to: str, text: str) -> str:
    raise ConnectionError("a test sends no mail")


@app.workflow("trial")
async def trial(ctx: Context, customer: str) -> str:
    await ctx.step("welcome:v1", send_mail, customer, "welcome")
    await ctx.timer("trial:v1", timedelta(days=3))
    return await ctx.step("offer:v1", send_mail, customer, "how was it?")


def fake_mail(to: str, text: str) -> str:
    return f"{text!r} sent to {to}"


FAKES = {"welcome:v1": fake_mail, "offer:v1": fake_mail}


async def main() -> None:
    async with TestEngine(app, overrides=FAKES) as engine:
        invocation = await engine.invoke(trial, "Ann")
        print("at first:", await invocation.wait())
        engine.assert_not_called("offer:v1")
        await engine.advance(timedelta(days=3))
        print("three days later:", await invocation.result())
        engine.assert_called("offer:v1", times=1)
    deaths = await check_replays(trial, "Ann", overrides=FAKES)
    print(f"the workflow came to the same end through {deaths} deaths")


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   at first: suspended: trial:v1
#   three days later: 'how was it?' sent to Ann
#   the workflow came to the same end through 4 deaths
