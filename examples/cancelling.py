"""An instance that is cancelled while it runs cleans up, and can be resumed."""

import asyncio

from memable import App, Context, Engine, WorkflowCancelled

app = App()
downloading, removed = asyncio.Event(), asyncio.Event()


async def download(name: str) -> str:
    if downloading.is_set():
        return f"{name}, downloaded"
    downloading.set()
    try:
        await asyncio.sleep(3600)  # a slow line
        return f"{name}, at last"
    finally:
        print("the half of a file is removed")
        removed.set()


@app.workflow("report")
async def report(ctx: Context, name: str) -> str:
    await ctx.step("announce:v1", print, f"{name} is on its way")
    return await ctx.step("download:v1", download, name)


async def main() -> None:
    async with Engine(app) as engine:
        instance = await engine.invoke(report, "report.pdf", id="1")
        await downloading.wait()
        state = await engine.cancel(report, "1", reason="too slow")
        await removed.wait()  # the run is told at once, and cleans up
        print(state)
        try:
            await instance.result()
        except WorkflowCancelled as error:
            print(error)
        await instance.resume()  # what is recorded is not done again
        print(await instance.result())


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   report.pdf is on its way
#   the half of a file is removed
#   cancelled: too slow
#   instance report/1 was cancelled: too slow
#   report.pdf, downloaded
