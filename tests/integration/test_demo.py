"""`memable demo`: that it proves what it shows, fails when it should, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import redis

from memable.cli.demo import find_checkout
from memable.cli.demo.audit import Books, Evidence, Kill, Records, Rows, judge, recorded_again
from memable.state import Status, StepKind, StepRecord, StepState
from tests.worker_process import ROOT, until

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def record(key: str, result: Any = 1, *, at_s: float = 0) -> StepRecord:
    done = NOON + timedelta(seconds=at_s)
    return StepRecord(key, StepKind.STEP, StepState.COMPLETED, result, None, 1, done, done)


def records(*keys: str) -> dict[tuple[str, str], StepRecord]:
    return {("approval/1", key): record(key) for key in keys}


GOOD = Evidence(
    instances=["sync/zones", "approval/1"],
    statuses={"sync/zones": Status.COMPLETED, "approval/1": Status.COMPLETED},
    outcomes={"sync/zones": "312 rows", "approval/1": "shipped"},
    expected_outcomes={"sync/zones": "312 rows", "approval/1": "shipped"},
    samples=[records("charge:v1"), records("charge:v1"), records("charge:v1", "ship:v1")],
    rows=Rows(312, 312, ()),
    books=Books({"charges": 1, "shipments": 1}, (), 1, 1000),
    expected_effects={"charges": 1, "shipments": 1},
    expected_balance_cents=1000,
    kill=Kill("worker 7", ("approval/1",), 1, {"approval/1": 3.2}),
)


def samples(*last: Mapping[tuple[str, str], StepRecord]) -> list[Records]:
    return [*GOOD.samples, *last]


def test_what_went_well_is_exit_code_0() -> None:
    verdict = judge(GOOD)
    assert (verdict.exit_code, verdict.complaints) == (0, [])
    assert dict(verdict.table) == {
        "instances": "2",
        "completed": "2",
        "steps recorded": "2",
        "steps recorded twice": "0 (1 were there before the kill, and stayed as they were)",
        "lost": "0",
        "rows in the target": "312 of 312, equal to the source",
        "effects": "2 (1 charges, 1 shipments)",
        "effects done twice": "0",
        "calls repeated": "1 (answered by their idempotency keys)",
        "seconds to recover": "3.2 (the first of 1 instances; all after 3.2)",
    }


RECORDED_LATER = {**GOOD.samples[-1], ("approval/1", "charge:v1"): record("charge:v1", at_s=0.001)}
WITH_ANOTHER_RESULT = {**GOOD.samples[-1], ("approval/1", "charge:v1"): record("charge:v1", 2)}


@pytest.mark.parametrize(
    ("seen", "complaint"),
    [
        (replace(GOOD, samples=samples(RECORDED_LATER)), "step 'charge:v1' of approval/1 was recorded twice"),
        (replace(GOOD, samples=samples(WITH_ANOTHER_RESULT)), "step 'charge:v1' of approval/1 was recorded twice"),
        # also when the end looks like the beginning
        (replace(GOOD, samples=samples(RECORDED_LATER, GOOD.samples[-1])), "was recorded twice"),
        (replace(GOOD, samples=samples(records("ship:v1"))), "the record of step 'charge:v1' of approval/1 is lost"),
        (replace(GOOD, statuses={"sync/zones": Status.COMPLETED}), "approval/1 is lost"),
        (replace(GOOD, statuses={**GOOD.statuses, "approval/1": Status.FAILED}), "approval/1 is failed, not completed"),
        (replace(GOOD, statuses={**GOOD.statuses, "approval/1": Status.RUNNING}), "approval/1 is running, not"),
        (replace(GOOD, outcomes={**GOOD.outcomes, "approval/1": "refused"}), "ended as 'refused', not as 'shipped'"),
        (replace(GOOD, outcomes={"sync/zones": "312 rows"}), "approval/1 ended as None, not as 'shipped'"),
        (replace(GOOD, rows=Rows(312, 311, ("Europe/Paris: missing",))), "311 rows, the source 312, and 1 differ: Eur"),
        (replace(GOOD, rows=Rows(312, 312, ("Europe/Paris: expected",))), "and 1 differ: Europe/Paris"),
        (replace(GOOD, books=replace(GOOD.books, doubled=("charge 1",))), "done twice: charge 1"),
        (replace(GOOD, books=replace(GOOD.books, effects={"charges": 2, "shipments": 1})), "2 charges instead of 1"),
        (replace(GOOD, books=replace(GOOD.books, effects={"charges": 1})), "0 shipments instead of 1"),
        (replace(GOOD, books=replace(GOOD.books, balance_cents=2000)), "paid 2000 cents instead of 1000"),
        (replace(GOOD, kill=None), "no worker was killed"),
        (replace(GOOD, kill=Kill("worker 7", (), 1, {})), "worker 7 ran nothing when it was killed"),
        (replace(GOOD, kill=Kill("worker 7", ("approval/1",), 1, {})), "was taken over by nobody"),
        (replace(GOOD, samples=[]), "no record was ever seen"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_anything_lost_doubled_or_incomplete_is_exit_code_1(seen: Evidence, complaint: str) -> None:
    verdict = judge(seen)
    assert verdict.exit_code == 1
    assert complaint in " | ".join(verdict.complaints)


def test_the_counts_in_the_table_are_of_what_was_seen() -> None:
    table = dict(judge(replace(GOOD, samples=samples(RECORDED_LATER, records("ship:v1")), statuses={})).table)
    assert table["steps recorded twice"].startswith("1 ")
    assert (table["completed"], table["lost"]) == ("0", "3")


def test_a_record_that_only_comes_later_is_not_recorded_again() -> None:
    assert recorded_again([{}, records("a"), records("a", "b")]) == []
    assert recorded_again([records("a"), records(), records("a")]) == []


def test_outside_of_a_checkout_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_checkout() == ROOT
    monkeypatch.setattr("memable.cli.demo.__file__", str(tmp_path / "lib/memable/cli/demo/__init__.py"))
    monkeypatch.chdir(tmp_path)
    # another's `worker/` is not ours
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker/__init__.py").touch()
    with pytest.raises(click.ClickException, match="run 'make demo' in a checkout"):
        find_checkout()
    monkeypatch.chdir(ROOT)
    assert find_checkout() == ROOT


# ── for real ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Demo:
    """`memable demo` in a process of its own, read line by line as it runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.out = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.out += line

    def ended(self) -> int:
        code = self.process.wait(timeout=150)
        self._reader.join()
        return code

    @property
    def directory(self) -> Path:
        return Path(self._found(r"Redis in (\S+),"))

    @property
    def worker_pids(self) -> list[int]:
        return [int(pid) for pid in self._found(r"worker processes (.+)").split(", ")]

    @property
    def server_pid(self) -> int:
        with redis.Redis(unix_socket_path=str(self.directory / "r.sock")) as looking:
            facts: Any = looking.info("server")
            return int(facts["process_id"])

    def _found(self, pattern: str) -> str:
        found = re.search(pattern, self.out)
        assert found is not None, self.out
        return found[1]


@contextmanager
def demo(*options: str) -> Iterator[Demo]:
    process = subprocess.Popen(
        [sys.executable, "-m", "memable", "demo", *options],
        # it is the same whatever is set
        env={**os.environ, "MEMABLE_LEASE": "nonsense", "MEMABLE_REDIS_URL": "redis://127.0.0.1:1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield Demo(process)
        finally:
            process.kill()


def is_under_way(demo: Demo) -> Callable[[], bool]:
    return lambda: bool(re.search(r"[1-9]\d* begun", demo.out)) or demo.process.poll() is not None


def said_by_shell(line: str) -> list[str]:
    return subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout.splitlines()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.timeout(180)
async def test_the_demo_comes_out_right_and_can_be_looked_into_meanwhile() -> None:
    with demo("--orders", "8") as played:
        await until(is_under_way(played), "the first order")
        server_pid = played.server_pid
        lines = [line for line in played.out.splitlines() if "-cli -s " in line]
        assert len(lines) == 3
        for line in lines:
            program, _, socket, *command = shlex.split(line)
            with redis.Redis(unix_socket_path=socket, decode_responses=True) as looking:
                assert looking.execute_command(*command)
            if shutil.which(program):
                assert len(said_by_shell(line)) > 1
        assert played.ended() == 0, played.out
    table = dict(re.findall(r"^([a-z ]+?) {2,}(.+)$", played.out, re.MULTILINE))
    assert (table["instances"], table["completed"], table["lost"]) == ("9", "9", "0")
    assert table["steps recorded twice"].startswith("0 (")
    assert table["effects done twice"] == "0"
    assert re.fullmatch(r"(\d+) of \1, equal to the source", table["rows in the target"])
    assert "SIGKILL to worker" in played.out
    assert "Traceback" not in played.out
    assert all(is_gone(pid) for pid in [*played.worker_pids, server_pid])
    assert not played.directory.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
async def test_nothing_is_left_when_it_is_stopped_half_way(number: signal.Signals, code: int) -> None:
    with demo() as played:
        await until(is_under_way(played), "the first order")
        pids = [*played.worker_pids, played.server_pid]
        played.process.send_signal(number)
        assert played.ended() == code, played.out
        # what is left by a SIGKILL ends by itself
        await until(lambda: all(is_gone(pid) for pid in pids), "the end of the processes")
        await until(lambda: not played.directory.exists(), "the end of the directory")
        assert "Traceback" not in played.out


@pytest.mark.timeout(120)
async def test_a_demo_that_does_not_come_to_its_end_in_time_is_exit_code_1() -> None:
    with demo("--orders", "4", "--limit", "2") as played:
        assert played.ended() == 1, played.out
    assert "WRONG: sync/zones is " in played.out
    assert not played.directory.exists()
