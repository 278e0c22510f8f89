"""Throughput and latency of one arq worker process, beside the floor (floor.py): same run, same server, same machine.

    make bench
    python benchmarks/throughput.py --instances 20000 --runs 5 --json

Starts a private server with AOF everysec, as people deploy it. Instances are invoked before the worker starts, by a
client in a process of its own, for memable as for the floor; the worker's rate is from its first claim to its last
end, as Redis's clock recorded them. In each run floor and memable take turns, and the ratio is that of the run, so that
what else the machine does meanwhile counts for both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import redis

from memable import Status
from memable.embedded import TemporaryServer, find_server
from memable.keys import Keys
from memable.settings import Settings

HERE = Path(__file__).parent
KEYS = Keys(Settings.model_fields["namespace"].default, partitions=1)
LONG_STEPS = 10
LONG_SHARE = 5
"""Of instances with ten steps a fifth as many are run: twice as many steps in all."""
STALLED_S = 60.0


@dataclass(frozen=True)
class Rate:
    """How fast something was done, and what it took: one line of the output."""

    what: str
    who: str
    run: int
    per_s: float
    cpu_us: float
    """Of the process that did it, for each."""
    server_cpu_us: float
    """Of the server's main thread, for each."""
    server_calls: float
    """Commands that clients sent, for each."""


@dataclass(frozen=True)
class Latency:
    """From invoke to result, with one client and one idle worker."""

    what: str
    who: str
    run: int
    p50_ms: float
    p99_ms: float


class Bench:
    """One server, and the processes that use it."""

    def __init__(self, url: str, admin: redis.Redis, tell: Callable[[Rate | Latency], None]) -> None:
        self._url, self._admin, self._tell = url, admin, tell

    def run(self, number: int, instances: int) -> None:
        """All measures, once."""
        for steps, count in ((1, instances), (LONG_STEPS, max(1, instances // LONG_SHARE))):
            self._floor(number, count, steps)
            self._memable(number, count, steps)
        self._latency(number, max(50, instances // 20))

    def _floor(self, number: int, instances: int, steps: int) -> None:
        self._admin.flushall()
        with self._rated("invoke", "floor", number, steps, instances) as used:
            used.update(self._process("floor.py", "invoke", "--instances", instances))
        with self._rated("work", "floor", number, steps, instances) as used:
            used.update(self._process("floor.py", "work", "--instances", instances, "--steps", steps))

    def _memable(self, number: int, instances: int, steps: int) -> None:
        self._admin.flushall()
        with self._rated("invoke", "memable", number, steps, instances) as used:
            used.update(self._process("noop.py", "invoke", "--instances", instances, "--steps", steps))
        with self._worker(), self._rated("work", "memable", number, steps, instances) as used:
            self._await_completed(instances)
            used["elapsed_s"] = self._between_claim_and_end(instances)
            used.update(self._process("noop.py", "usage"))

    def _latency(self, number: int, instances: int) -> None:
        self._admin.flushall()
        with self._worker():
            latencies_ms = self._process("noop.py", "latency", "--instances", instances)["latencies_ms"]
        cuts = quantiles(latencies_ms, n=100)
        self._tell(Latency("latency", "memable", number, round(cuts[49], 2), round(cuts[98], 2)))

    @contextmanager
    def _rated(self, role: str, who: str, number: int, steps: int, instances: int) -> Iterator[dict[str, float]]:
        """Tell the rate of what is done inside, from `elapsed_s` and `cpu_s` that it leaves."""
        used: dict[str, float] = {}
        cpu_s, calls = self._server_use()
        yield used
        cpu_s, calls = (after - before for after, before in zip(self._server_use(), (cpu_s, calls), strict=True))
        if role == "invoke" and steps > 1:
            return  # as with one step
        what, count = ("invokes", instances) if role == "invoke" else ("instances", instances)
        if role == "work" and steps > 1:
            what, count = f"steps, {steps} an instance", instances * steps
        self._tell(
            Rate(
                what,
                who,
                number,
                per_s=round(count / used["elapsed_s"]),
                cpu_us=round(used["cpu_s"] / count * 1e6, 1),
                server_cpu_us=round(cpu_s / count * 1e6, 1),
                server_calls=round(calls / count, 2),
            )
        )

    def _server_use(self) -> tuple[float, float]:
        cpu: Any = self._admin.info("cpu")
        commands: Any = self._admin.info("commandstats")
        sent = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_xreadgroup")
        calls = sum(commands[each]["calls"] for each in sent if each in commands)
        return cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"], calls

    def _process(self, program: str, role: str, *options: object) -> dict[str, Any]:
        words = [sys.executable, str(HERE / program), role, "--url", self._url, *map(str, options)]
        return dict(json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout))

    @contextmanager
    def _worker(self) -> Iterator[None]:
        worker = subprocess.Popen(
            [sys.executable, "-m", "arq", "benchmarks.noop_worker.WorkerSettings"],
            cwd=HERE.parent,
            env={**os.environ, "MEMABLE_REDIS_URL": self._url},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield
        finally:
            worker.terminate()
            _, said = worker.communicate(timeout=60)
            if worker.returncode:
                # told only then: arq talks of itself all the time
                print(said, file=sys.stderr)

    def _await_completed(self, instances: int) -> None:
        index = KEYS.partitions[0].index("noop", Status.COMPLETED)
        completed, moved_s = 0, time.monotonic()
        while completed < instances:
            time.sleep(0.02)
            before, completed = completed, int(str(self._admin.zcard(index)))
            if completed > before:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > STALLED_S:
                raise SystemExit(f"the worker has completed {completed} of {instances} instances, and no more")

    def _between_claim_and_end(self, instances: int) -> float:
        pipeline = self._admin.pipeline(transaction=False)
        for number in range(instances):
            pipeline.hmget(KEYS.of("noop", str(number)).instance, ["started_ms", "completed_ms"])
        times: list[tuple[bytes, bytes]] = pipeline.execute()
        return (max(int(end) for _, end in times) - min(int(begin) for begin, _ in times)) / 1000


@contextmanager
def server() -> Iterator[str]:
    """A private server with AOF everysec, reached over TCP as a deployed one is: its URL."""
    with TemporaryServer(appendonly=True) as private, redis.Redis.from_url(private.url) as admin:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        # a rewrite of the AOF would fall into one measure or another
        for name, value in {"appendfsync": "everysec", "auto-aof-rewrite-percentage": 0, "port": port}.items():
            admin.config_set(name, value)
        yield f"redis://127.0.0.1:{port}"


def table(lines: list[Rate | Latency]) -> str:
    """Medians over the runs, memable beside the floor, and the median of the ratios of each run."""
    rows = [["", "memable", "floor", "ratio", "CPU µs", "floor", "server µs", "floor", "calls", "floor"]]
    rates = [line for line in lines if isinstance(line, Rate)]
    for what in dict.fromkeys(rate.what for rate in rates):
        sides = [[rate for rate in rates if (rate.what, rate.who) == (what, who)] for who in ("memable", "floor")]
        row = [f"{what} /s"]
        for name, form in (("per_s", ",.0f"), ("cpu_us", ".1f"), ("server_cpu_us", ".1f"), ("server_calls", ".1f")):
            row += (format(median(getattr(rate, name) for rate in side), form) for side in sides)
        ratio = median(our.per_s / floor.per_s for our, floor in zip(*sides, strict=True))
        row.insert(3, f"{ratio:.2f}")
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    latencies = [line for line in lines if isinstance(line, Latency)]
    p50_ms, p99_ms = median(each.p50_ms for each in latencies), median(each.p99_ms for each in latencies)
    text.append(f"idle latency, invoke to result: p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--instances", type=int, default=10_000, help="of one step each (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="the table shows medians (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="JSON lines only, no table")
    given = parser.parse_args()
    lines: list[Rate | Latency] = []

    def tell(line: Rate | Latency) -> None:
        lines.append(line)
        print(json.dumps(asdict(line), ensure_ascii=False), flush=True)

    with server() as url, redis.Redis.from_url(url) as admin:
        for number in range(given.runs):
            Bench(url, admin, tell).run(number, given.instances)
    if not given.json:
        binary = find_server()
        server_name = f"{binary.kind} {'.'.join(map(str, binary.version))} with AOF everysec"
        machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"
        print(f"\none arq worker process, concurrency 100, {server_name}, medians of {given.runs}")
        print(f"{machine}, {time.strftime('%F')}\n")
        print(table(lines))


if __name__ == "__main__":
    main()
