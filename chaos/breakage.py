"""Takes the fence away from the workers of this process, so that a test can see the checker catch it.

A worker then neither asks whether it still holds what it runs, nor listens when it is told that it does not, and
`record` takes what it is given from anybody, also where something is recorded already. memable itself knows nothing of
this.
"""

from __future__ import annotations

import os
from typing import Any

from memable import lua


def break_on_request() -> None:
    """What CHAOS_BREAK asks for: nothing, or `fence`."""
    match os.environ.get("CHAOS_BREAK", ""):
        case "":
            pass
        case "fence":
            _take_fence_away()
        case other:
            raise ValueError(f"CHAOS_BREAK is {other!r}; allowed: fence")


def _take_fence_away() -> None:
    # a client needs neither, and the breakage is asked for in workers only
    from memable.runtime.lease import LeaseKeeper
    from memable.runtime.run import Run
    from memable.store import runs

    def deaf(*_: object) -> None:
        return None

    worker: Any = LeaseKeeper
    worker.confirm = deaf
    worker = Run
    worker.on_lease_lost = deaf
    source = lua._text("record.lua")
    for guard, gap in (("if held[1] ~= lease then return {LEASE_LOST} end\n", ""), ("'HSETNX'", "'HSET'")):
        if guard not in source:
            raise ValueError(f"record.lua has no {guard!r} to take away")
        source = source.replace(guard, gap)
    runs._RECORD = lua.assemble("record", source)
