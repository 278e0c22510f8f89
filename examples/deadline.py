"""A workflow that may not take longer than it is allowed to, whatever it waits for."""

import asyncio
from datetime import timedelta

from memable import App, Context, Engine, SuspendPoint, WorkflowFailed

app = App()
ANSWER = SuspendPoint("answer:v1", str)


@app.workflow("ask", deadline=timedelta(seconds=1))
async def ask(ctx: Context, question: str) -> str:
    answer = await ctx.suspend(ANSWER, status=question)
    return f"{question} {answer}"


async def main() -> None:
    async with Engine(app) as engine:
        instance = await engine.invoke(ask, "Tea?", id="1")
        try:
            await instance.result()  # nobody answers
        except WorkflowFailed as error:
            print(error.error_type)
        await instance.resume()  # the deadline starts again
        print(await instance.wait())
        await instance.signal(ANSWER, "Yes, please.")
        print(await instance.result())


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   DeadlineExceeded
#   suspended: Tea?
#   Tea? Yes, please.
