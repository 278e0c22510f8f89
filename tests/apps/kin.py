"""Parents and children of several workers: `arq tests.apps.kin.Parents`, `.Children`, `.Both`.

What a child's step does is a line in HOSTED_DIR/ledger: `NUMBER PID`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import memable
from memable import App, Context
from tests.apps.labour import tell

CHILDREN = 40
EFFECT_S = 0.02


async def effect(number: int) -> int:
    tell(str(number))
    await asyncio.sleep(EFFECT_S)
    return number * number


async def child(ctx: Context, number: int) -> int:
    return await ctx.step("square:v1", effect, number)


async def parent(ctx: Context, concurrency: int | None) -> list[Any]:
    """Names the child's workflow, which its own worker need not have."""
    one = await ctx.call("one:v1", "child", CHILDREN)
    many = await ctx.fan_out("many:v1", range(CHILDREN), "child", concurrency=concurrency)
    return [*many, one]


async def grandparent(ctx: Context, families: int) -> int:
    return sum(map(sum, await ctx.fan_out("families:v1", [None] * families, "parent")))


parents, children, both = App(), App(), App()
PARENT, GRANDPARENT = both.register("parent", parent), both.register("grandparent", grandparent)
parents.register("parent", parent)
for app in (children, both):
    app.register("child", child)

Parents, Children, Both = (memable.worker_settings(app) for app in (parents, children, both))
