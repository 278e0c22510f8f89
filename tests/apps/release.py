"""One of two releases of a shop, for tests of deploys: `arq tests.apps.release.WorkerSettings`, RELEASE says which.

What is done is told in files of HOSTED_DIR.
"""

from __future__ import annotations

import os
from functools import partial

import memable
from memable import App, Context, current_step
from tests.apps.hosted import tell

RELEASE = os.environ["RELEASE"]
app = App()


def effect(what: str) -> str:
    tell("effects", f"{what} of {current_step().instance_id}")
    return f"{what} by {RELEASE}"


charge, reserve, ship = (partial(effect, what) for what in ("charge", "reserve", "ship"))


@app.workflow("order")
async def order(ctx: Context) -> list[str]:
    """The new release reserves, too."""
    charged = await ctx.step("charge:v1", charge)
    reserved = [await ctx.step("reserve:v1", reserve)] if RELEASE == "new" else []
    await ctx.suspend("go:v1")
    return [charged, *reserved, await ctx.step("ship:v1", ship)]


if RELEASE == "new":

    @app.workflow("invoice")
    async def invoice(ctx: Context) -> str:
        return await ctx.step("write:v1", effect, "invoice")


WorkerSettings = memable.worker_settings(app, poll_delay=0.05)
