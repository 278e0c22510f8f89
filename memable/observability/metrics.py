"""What a worker process counts, as Prometheus reads it. The table `METRICS` says all there is.

Counting happens in the event loop's thread with plain numbers, which cost a tenth of those of prometheus-client; the
thread that serves a scrape only reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal, NamedTuple

from memable.fleet import Load
from memable.holding import Claim, Held
from memable.runtime.observing import Observer, RunObserver, RunOutcome, StepOutcome, WatchedWorker, queued_s

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of all histograms."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name, kind and labels, and what it counts."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


STARTED: Final = Metric(
    "memable_instances_started_total",
    "counter",
    "Instances whose first run began here; each life that begins with continue_as counts.",
    ("workflow",),
)
RUNS: Final = Metric(
    "memable_runs_total",
    "counter",
    "Runs that ended here, by how: " + ", ".join(RunOutcome) + ".",
    ("workflow", "outcome"),
)
RUN_SECONDS: Final = Metric("memable_run_seconds", "histogram", "From an instance's claim to its rest.", ("workflow",))
QUEUE_DELAY: Final = Metric(
    "memable_queue_delay_seconds",
    "histogram",
    "From being ready to run (invoked, signalled, fired, handed back) to being claimed, by Redis's clock.",
    ("workflow",),
)
STEPS: Final = Metric(
    "memable_steps_total",
    "counter",
    "Steps that were called here, by how they ended: completed and failed are recorded, cancelled are not.",
    ("workflow", "outcome"),
)
RETRIES: Final = Metric(
    "memable_step_retries_total", "counter", "Calls of a step's function after the first.", ("workflow",)
)
STEP_SECONDS: Final = Metric(
    "memable_step_seconds", "histogram", "How long one call of a step's function took; retries count.", ("workflow",)
)
CLAIMS_REFUSED: Final = Metric(
    "memable_claims_refused_total",
    "counter",
    "Deliveries that were of the past, or whose instance another worker has.",
    ("workflow",),
)
RECOVERIES: Final = Metric(
    "memable_recoveries_total",
    "counter",
    "Instances that this leader took from dead workers: queued again, or failed after MEMABLE_MAX_RECOVERIES.",
    ("workflow", "outcome"),
)
DEADLINES: Final = Metric(
    "memable_deadlines_exceeded_total", "counter", "Instances that this leader failed at their deadline.", ("workflow",)
)
TIMER_LATENESS: Final = Metric(
    "memable_timer_lateness_seconds",
    "histogram",
    "How long after they were due this leader fired timers (timeouts, delays and back-offs too), by Redis's clock.",
    ("workflow",),
)
SLOTS: Final = Metric("memable_slots", "gauge", "How many instances can run here at once: MEMABLE_CONCURRENCY.")
SLOTS_USED: Final = Metric("memable_slots_used", "gauge", "How many run here now.")
PARTITIONS_LED: Final = Metric(
    "memable_partitions_led", "gauge", "How many partitions this worker leads: 0 or 1 with one partition."
)
REDIS_CONNECTED: Final = Metric("memable_redis_connected", "gauge", "1 while Redis serves this worker, else 0.")
REDIS_CALLS: Final = Metric(
    "memable_redis_calls_total", "counter", "Commands and scripts sent to Redis, those sent again too."
)
REDIS_ROUND_TRIPS: Final = Metric(
    "memable_redis_round_trips_total", "counter", "Writes to Redis, each of which carries all calls that were waiting."
)
REDIS_REFUSALS: Final = Metric("memable_redis_refusals_total", "counter", "Calls that Redis answered with an error.")
REDIS_RECONNECTS: Final = Metric("memable_redis_reconnects_total", "counter", "Connections made after the first one.")
BACKLOG: Final = Metric(
    "memable_backlog",
    "gauge",
    "Instances ready to run that no worker has taken; told by the leader of partition 0 for all.",
    ("workflow",),
)
BACKLOG_AGE: Final = Metric(
    "memable_backlog_oldest_seconds",
    "gauge",
    "How long the one that was ready first has been waiting, by Redis's clock; told by the same.",
    ("workflow",),
)
INSTANCES: Final = Metric(
    "memable_instances",
    "gauge",
    "Instances in Redis by status, children and those kept by retention too; told by the same.",
    ("workflow", "status"),
)
WORKER: Final = Metric("memable_worker_info", "gauge", "Always 1.", ("worker", "version"))

METRICS: Final = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
NAMES: Final = frozenset(each.name for each in METRICS)
"""As they are in the endpoint; a histogram's samples have `_bucket`, `_sum` and `_count` behind its name."""


class Histogram:
    """Counts durations by their size."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds


class Sample(NamedTuple):
    """One value of a metric, with the values of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram


class _Workflow:
    """What is counted of one workflow; each run has this at hand, and looks nothing up."""

    __slots__ = (
        "deadlines",
        "delay",
        "lateness",
        "name",
        "recoveries",
        "refused",
        "retries",
        "run",
        "runs",
        "started",
        "step",
        "steps",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = self.retries = self.refused = self.deadlines = 0
        # all of them from the beginning: a rate needs a zero to start from
        self.runs = dict.fromkeys(RunOutcome, 0)
        self.steps = dict.fromkeys(StepOutcome, 0)
        self.recoveries = {"queued": 0, "failed": 0}
        self.run, self.delay, self.step, self.lateness = Histogram(), Histogram(), Histogram(), Histogram()

    def samples(self) -> Iterator[Sample]:
        own = (self.name,)
        yield Sample(STARTED, own, self.started)
        for metric, counts in ((RUNS, self.runs), (STEPS, self.steps), (RECOVERIES, self.recoveries)):
            for outcome, count in counts.items():
                yield Sample(metric, (self.name, str(outcome)), count)
        for metric, count in ((RETRIES, self.retries), (CLAIMS_REFUSED, self.refused), (DEADLINES, self.deadlines)):
            yield Sample(metric, own, count)
        for metric, histogram in (
            (RUN_SECONDS, self.run),
            (QUEUE_DELAY, self.delay),
            (STEP_SECONDS, self.step),
            (TIMER_LATENESS, self.lateness),
        ):
            yield Sample(metric, own, histogram)


class _Run(RunObserver):
    __slots__ = ("_begin_s", "_counts", "_is_first")

    def __init__(self, counts: _Workflow, *, is_first: bool) -> None:
        self._counts, self._is_first = counts, is_first
        self._begin_s = monotonic()

    def enters(self) -> None:
        if self._is_first:
            self._counts.started += 1

    def attempt_begins(self, key: str, attempt: int) -> None:  # noqa: ARG002
        if attempt > 1:
            self._counts.retries += 1

    def attempt_ended(self, begun: Any, elapsed_s: float, error: BaseException | None) -> None:  # noqa: ARG002
        self._counts.step.observe(elapsed_s)

    def step_ended(self, outcome: StepOutcome) -> None:
        self._counts.steps[outcome] += 1

    def ended(self, outcome: RunOutcome) -> None:
        self._counts.runs[outcome] += 1
        self._counts.run.observe(monotonic() - self._begin_s)


class Metrics(Observer):
    """Counts what it is told; `samples` is everything there is, of the worker too."""

    def __init__(self, worker: WatchedWorker, version: str) -> None:
        self._worker, self._version = worker, version
        self.loads: Sequence[Load] = ()
        """What was counted last in Redis, if this is the worker that tells."""
        self._workflows: dict[str, _Workflow] = {}

    def count(self, workflow: str) -> _Workflow:
        """What is counted of one workflow, from zero."""
        counts = self._workflows.get(workflow)
        if counts is None:
            counts = self._workflows[workflow] = _Workflow(workflow)
        return counts

    def run_begins(self, held: Held, claim: Claim) -> RunObserver:
        counts = self.count(held.keys.workflow)
        counts.delay.observe(queued_s(held, claim))
        return _Run(counts, is_first=claim.attempt == 1)

    def claim_refused(self, workflow: str) -> None:
        self.count(workflow).refused += 1

    def recovered(self, workflow: str, *, has_failed: bool) -> None:
        self.count(workflow).recoveries["failed" if has_failed else "queued"] += 1

    def expired(self, workflow: str) -> None:
        self.count(workflow).deadlines += 1

    def timer_fired(self, workflow: str, late_s: float) -> None:
        self.count(workflow).lateness.observe(late_s)

    def samples(self) -> Iterator[Sample]:
        """Everything, from any thread."""
        worker = self._worker
        yield Sample(WORKER, (worker.worker, self._version), 1)
        yield Sample(SLOTS, (), worker.slots)
        yield Sample(SLOTS_USED, (), worker.running)
        yield Sample(PARTITIONS_LED, (), worker.partitions_led)
        yield Sample(REDIS_CONNECTED, (), worker.is_connected)
        traffic = worker.traffic
        yield Sample(REDIS_CALLS, (), traffic.calls)
        yield Sample(REDIS_ROUND_TRIPS, (), traffic.round_trips)
        yield Sample(REDIS_REFUSALS, (), traffic.refusals)
        yield Sample(REDIS_RECONNECTS, (), max(0, traffic.connects - 1))
        # one that waits for Redis does not know better, and an old number would look like a fresh one
        for load in self.loads if worker.is_connected else ():
            yield Sample(BACKLOG, (load.workflow,), load.waiting)
            yield Sample(BACKLOG_AGE, (load.workflow,), load.oldest_waiting_s or 0)
            for status, count in load.counts.items():
                yield Sample(INSTANCES, (load.workflow, str(status)), count)
        for counts in list(self._workflows.values()):
            yield from counts.samples()
