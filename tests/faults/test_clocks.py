"""A worker whose wall clock is an hour off, as that of a badly kept machine: nothing changes, since time is Redis's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memable import Invocation
from tests.apps import labour
from tests.faults.crew import Crew, results
from tests.worker_process import TOO_LONG_S

HOUR_S = 3600
SLACK_S = 300.0
"""For a slow machine: far less than an hour."""

WRONG_CLOCK = Path(__file__).with_name("wrong_clock.c")


@pytest.fixture(scope="module")
def wrong_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for LD_PRELOAD that puts a process's clock wrong by WRONG_CLOCK_S."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("a wrong clock needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("clock") / "wrong_clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(WRONG_CLOCK), "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"the wrong clock cannot be compiled here: {made.stderr[:200]}")
    return library


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S], ids=["an hour fast", "an hour slow"])
async def test_an_hour_off_changes_nothing(crew: Crew, wrong_clock: Path, off_s: int) -> None:
    """Alone it does all that uses time: it leads, sweeps, fires timers and gives times to all that it records."""
    begun_s = time.time()
    async with crew.worker(lease=1, LD_PRELOAD=wrong_clock, WRONG_CLOCK_S=off_s):
        # longer than a lease, beside which a timer fires
        long = await crew.client.invoke(labour.long, ("async", 3.0))
        timed = await crew.client.invoke(labour.clock, id="42")
        said_s, started_at = await timed.result(timeout=TOO_LONG_S)
        assert said_s - begun_s == pytest.approx(off_s, abs=SLACK_S)  # the clock was wrong indeed
        assert started_at.timestamp() == pytest.approx(begun_s, abs=SLACK_S)
        await long.result(timeout=TOO_LONG_S)
    assert len(crew.calls("async")) == 1
    assert await crew.fields("long", "attempt") == ["1"]

    metadata = await timed.metadata()
    assert metadata is not None
    assert metadata.completed_at is not None
    for each in (metadata.created_at, metadata.started_at, metadata.completed_at):
        assert each is not None
        assert each.timestamp() == pytest.approx(begun_s, abs=SLACK_S)
    rest = {step.key: step for step in await crew.client.steps("clock", "42")}["rest:v1"]
    assert rest.started_at is not None
    assert rest.completed_at is not None
    waited_s = (rest.completed_at - rest.started_at).total_seconds()
    assert labour.SPARE_TIMER_S <= waited_s < labour.SPARE_TIMER_S + SLACK_S


async def test_workers_whose_clocks_differ_by_two_hours_take_nothing_from_each_other(
    crew: Crew, wrong_clock: Path
) -> None:
    kinds = ["async", "thread"]
    async with (
        crew.worker(lease=1, concurrency=1, LD_PRELOAD=wrong_clock, WRONG_CLOCK_S=HOUR_S) as fast,
        crew.worker(lease=1, concurrency=1, LD_PRELOAD=wrong_clock, WRONG_CLOCK_S=-HOUR_S) as slow,
    ):
        held = await crew.client.invoke_many(labour.long, [(kind, 3.0) for kind in kinds])
        assert set(await results(held)) == {fast.pid, slow.pid}
        timed = await crew.client.invoke_many(labour.clock, [None] * 10)
        for invocation in timed:
            assert isinstance(invocation, Invocation)
            await invocation.result(timeout=TOO_LONG_S)
    assert await crew.fields("long", "attempt") == ["1", "1"]
    # once more after the timer, unless it was due already when a slow machine came to park
    assert set(await crew.fields("clock", "attempt")) <= {"1", "2"}
    now_s = time.time()
    for field in ("started_ms", "completed_ms"):
        for at_ms in await crew.fields("clock", field):
            assert int(at_ms or 0) / 1000 == pytest.approx(now_s, abs=2 * SLACK_S)
