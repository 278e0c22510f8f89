"""A workflow without an end, like a cron job: each night has a life of its own, so that records do not pile up."""

import asyncio
from datetime import UTC, date, datetime, time, timedelta

from memable import App, Context, Engine, current_step

app = App()
SPEED_UP = timedelta(days=20_000)  # the nights of this example are long past: it need not wait for any


async def report(day: date) -> str:
    # the key is the same however often this night's report is tried, and another one the next night
    assert current_step().idempotency_key
    print("reported", day)
    return f"report of {day}"


@app.workflow("nightly")
async def nightly(ctx: Context, day: date) -> None:
    ctx.set_status(f"waiting for the night of {day}")
    await ctx.sleep_until("night:v1", datetime.combine(day, time(2), UTC) - SPEED_UP)
    await ctx.step("report:v1", report, day)
    if day == date(2026, 3, 3):  # only an example has an end
        await ctx.suspend("end:v1", status="the example is over")
    ctx.continue_as(day + timedelta(days=1))


async def main() -> None:
    async with Engine(app) as engine:
        instance = await engine.invoke(nightly, date(2026, 2, 27), id="reports")
        async for state in instance.states():
            if state.key == "end:v1":
                print(state)
                break
        print("records:", *sorted(record.key for record in await engine.steps(nightly, "reports")))
        again = await engine.invoke(nightly, date(2026, 2, 27), id="reports")
        print("started again by the same invoke:", again.created)


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   reported 2026-02-27
#   reported 2026-02-28
#   reported 2026-03-01
#   reported 2026-03-02
#   reported 2026-03-03
#   suspended: the example is over
#   records: end:v1 night:v1 report:v1
#   started again by the same invoke: False
