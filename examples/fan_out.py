"""One child for each item, spread over all workers; the results come back in the order of the items."""

import asyncio

from memable import App, ChildFailed, Context, Engine

app = App()
alive: set[int] = set()
counts: list[int] = []


async def convert(page: int) -> str:
    alive.add(page)
    counts.append(len(alive))
    await asyncio.sleep(0.01)
    alive.remove(page)
    if page == 13:
        raise ValueError("page 13 is torn")
    return f"page-{page}.png"


@app.workflow("page")
async def page(ctx: Context, number: int) -> str:
    return await ctx.step("convert:v1", convert, number, retry=None)


@app.workflow("book")
async def book(ctx: Context, pages: int) -> list[str]:
    return await ctx.fan_out("pages:v1", range(pages), page, concurrency=4)


@app.workflow("torn_book")
async def torn_book(ctx: Context, pages: int) -> list[str]:
    images = await ctx.fan_out("pages:v1", range(pages), page, fail_fast=False)
    return [f"page {image.index} is missing" if isinstance(image, ChildFailed) else image for image in images]


async def main() -> None:
    async with Engine(app) as engine:
        images = await (await engine.invoke(book, 12)).result()
        print(len(images), "pages, from", images[0], "to", images[-1], "and never more than", max(counts), "at a time")
        images = await (await engine.invoke(torn_book, 15)).result()
        print(images[12:])


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   12 pages, from page-0.png to page-11.png and never more than 4 at a time
#   ['page-12.png', 'page 13 is missing', 'page-14.png']
