"""An instance that begins later: queued until then, in Redis, without a process that waits."""

import asyncio
from datetime import UTC, datetime, timedelta

from memable import App, Context, Engine

app = App()


@app.workflow("remind")
async def remind(ctx: Context, whom: str) -> str:
    return f"reminded {whom}"


async def main() -> None:
    async with Engine(app) as engine:
        in_two_years = await engine.invoke(remind, "Ann", id="ann", delay=datetime.now(UTC) + timedelta(days=730))
        soon = await engine.invoke(remind, "Bob", id="bob", delay=0.2)
        states = [str(state) async for state in soon.states()]
        print("Bob at first:", states[0].partition(" until ")[0])
        print("Bob at last:", await soon.result())
        metadata = await in_two_years.metadata()
        assert metadata is not None
        print("Ann meanwhile:", str(metadata.state).partition(" until ")[0])
        again = await engine.invoke(remind, "Ann", id="ann")  # the same instance, which stays delayed
        print("Ann is another:", again.created)


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   Bob at first: queued: delayed
#   Bob at last: reminded Bob
#   Ann meanwhile: queued: delayed
#   Ann is another: False
