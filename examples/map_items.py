"""One memoised step for each of many items, in one process: at most four at a time, and the failed ones once more."""

import asyncio

from memable import App, Context, Engine, StepFailed

app = App()
asleep = {"http://example.org/3"}


async def size_of(url: str) -> int:
    """Stands for a download."""
    await asyncio.sleep(0.01)
    if url in asleep:
        raise ConnectionError("no answer")
    return 100 * len(url)


@app.workflow("survey")
async def survey(ctx: Context, urls: list[str]) -> list[int]:
    """Fails with the first page that cannot be had; a resume goes on with that one."""
    return await ctx.map("size:v1", urls, size_of, concurrency=4)


@app.workflow("poll")
async def poll(ctx: Context, urls: list[str]) -> str:
    """Takes what it can get."""
    sizes = await ctx.map("size:v1", urls, size_of, concurrency=4, fail_fast=False)
    failed = [each for each in sizes if isinstance(each, StepFailed)]
    return f"{len(sizes) - len(failed)} sizes, and {len(failed)} failed: {failed[0].error_message}"


async def main() -> None:
    urls = [f"http://example.org/{number}" for number in range(6)]
    async with Engine(app) as engine:
        print("poll:", await (await engine.invoke(poll, urls)).result())
        instance = await engine.invoke(survey, urls, id="1")
        print("survey:", (await instance.wait()).status)
        asleep.clear()
        await instance.resume()
        print("resumed:", await instance.result())


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   poll: 5 sizes, and 1 failed: no answer
#   survey: failed
#   resumed: [2000, 2000, 2000, 2000, 2000, 2000]
