"""Numbers are written as they are, texts are never looked into: nothing is rounded, cut or taken for something else."""

from __future__ import annotations

import json
import re

import pytest

from memable.codec import to_json
from memable.errors import StepFailed
from memable.holding import Outcome, Payload
from memable.journal import Draft, Record, in_order
from memable.state import Status, StepKind, StepState
from tests.lua.stage import LONG_MS, STEP, Stage, approval, timer

YEAR_9999_MS = 253_402_300_799_999

HARD = [
    None,
    "",
    "\x00 and \x00",
    "\x00",
    ',"result":',
    '{"state":"completed","result":1,"error":{}}',
    {',"result":': ',"result":1}', "result": {"error": None}, '","error":': 1},
    {"state": "suspended", "started_ms": 1, "due_ms": 2},
    [[], {}, [{}], {"": []}],
    'quotes " \\ \n \u2028 \N{SNOWMAN} \N{GRINNING FACE}',
    9_007_199_254_740_993,
    2**200,
    -0.0,
    5e-324,
    "x" * 1_000_000,
]


@pytest.mark.parametrize("value", HARD, ids=range(len(HARD)))
async def test_any_result_input_payload_and_output_comes_back_as_it_was(stage: Stage, value: object) -> None:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    keys = stage.of()
    await stage.store.invoke(keys, "life", text)
    (held,) = await stage.deliver(keys)
    assert (await stage.store.claim(held, "w1")).input == text
    await stage.store.record(held, "charge", Draft.completed(StepKind.STEP, "Any", text), 1)
    await stage.store.park(held, [approval()], [], "")
    await stage.store.signal(keys, "approval", "s1", Payload("bool", "boolean", text))
    (held,) = await stage.deliver(keys)
    steps = (await stage.store.claim(held, "w1")).steps
    for key in (b"charge", b"approval"):
        record = Record(steps[key])
        assert record.result == text
        assert record.completed_ms
        assert record.state is StepState.COMPLETED
        assert record.failure() is None
    await stage.store.finish(held, Outcome(Status.COMPLETED, text, ""), LONG_MS)
    assert (await stage.fields(keys))["output"] == text.decode()


@pytest.mark.parametrize("message", [',"result":', '","result":1}', "\x00", '\\","result":"', "x\ny"])
async def test_a_recorded_failure_is_not_taken_for_a_result(stage: Stage, message: str) -> None:
    held = await stage.run()
    error = StepFailed(message, key="charge", attempts=3, error_type=message, error_message=message)
    await stage.store.record(held, "charge", Draft.failed(StepKind.STEP, error, 3), 1)
    record = await stage.record(held.keys, "charge")
    assert record is not None
    assert record.result is None
    failure = record.failure()
    assert isinstance(failure, StepFailed)
    assert vars(failure) == vars(error)


@pytest.mark.parametrize("tag", [',"result":', 'Literal["a"]', "dict[str, ',\"result\":']", "\N{SNOWMAN}|x", "%d"])
async def test_a_type_tag_is_not_taken_for_a_result(stage: Stage, tag: str) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", Draft.completed(StepKind.STEP, tag, to_json(1)), 1)
    record = await stage.record(held.keys, "charge")
    assert record is not None
    assert (record.result, record.state) == (b"1", StepState.COMPLETED)


async def test_times_are_whole_numbers_of_redis_clock(stage: Stage) -> None:
    before = await _now_us(stage)
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, 0)
    await stage.store.finish(held, Outcome(Status.COMPLETED, b"1", ""), LONG_MS)
    after = await _now_us(stage)
    fields = await stage.fields(held.keys)
    assert before <= int(fields["created_us"]) <= after
    # to the microsecond, although Lua would write 1.7e+15
    score = await stage.command("ZSCORE", held.keys.index(Status.COMPLETED), "42")
    assert int(float(score)) == int(fields["created_us"])
    for name in ("started_ms", "completed_ms"):
        assert re.fullmatch(r"\d{13}", fields[name])
        assert before // 1000 <= int(fields[name]) <= after // 1000
    record = await stage.command("HGET", held.keys.steps, "charge")
    assert re.search(rb'"started_ms":\d{13},"took_ms":0\.\d{3},"result"', record)
    assert before <= (Record(record).completed_ms or 0) * 1000 <= after


async def _now_us(stage: Stage) -> int:
    seconds, microseconds = await stage.command("TIME")
    return int(seconds) * 1_000_000 + int(microseconds)


@pytest.mark.parametrize(
    ("at_ms", "due_ms"),
    [
        (YEAR_9999_MS, YEAR_9999_MS),
        (float(YEAR_9999_MS), YEAR_9999_MS),
        (YEAR_9999_MS - 0.75, YEAR_9999_MS),
        (2_000_000_000_000.0004, 2_000_000_000_001),
        (1.9e12, 1_900_000_000_000),
        (4_102_444_800_000.5, 4_102_444_800_001),
        (2.0**53, 2**53),
    ],
)
async def test_a_deadline_at_a_moment_is_kept_to_the_millisecond(stage: Stage, at_ms: float, due_ms: int) -> None:
    held = await stage.parked(timer(at_ms=at_ms))
    facts = json.loads(await stage.command("HGET", held.keys.steps, "cooling-off"))
    assert facts["due_ms"] == due_ms
    assert (await stage.check()).zsets[held.keys.timers] == {"order/42/cooling-off": due_ms}


@pytest.mark.parametrize(
    ("after_ms", "later_ms"),
    [
        (1, 1),
        (0.5, 1),
        (1e-9, 1),
        (1500.0000001, 1501),
        (1e13, 10**13),
        (86_399_999_999_999_999.0, 86_400_000_000_000_000),
    ],
)
async def test_a_deadline_after_a_while_is_rounded_up(stage: Stage, after_ms: float, later_ms: int) -> None:
    held = await stage.parked(timer(after_ms=after_ms))
    facts = json.loads(await stage.command("HGET", held.keys.steps, "cooling-off"))
    assert facts["due_ms"] - facts["started_ms"] == pytest.approx(later_ms, abs=0 if later_ms < 2**53 else 16)
    (score,) = (await stage.check()).zsets[held.keys.timers].values()
    assert score == facts["due_ms"]


@pytest.mark.parametrize(("elapsed_ms", "recorded_ms"), [(0, 0), (0.4, 0), (1e7, 10**7), (123456789.9, 123456789)])
async def test_a_step_began_as_long_ago_as_its_worker_says(stage: Stage, elapsed_ms: float, recorded_ms: int) -> None:
    held = await stage.run()
    await stage.store.record(held, "charge", STEP, elapsed_ms)
    facts = json.loads(await stage.command("HGET", held.keys.steps, "charge"))
    # it began in a whole millisecond, and ended in a microsecond
    assert recorded_ms <= facts["took_ms"] < recorded_ms + 1


async def test_what_follows_in_the_same_millisecond_is_in_order(stage: Stage) -> None:
    """Whatever the keys, and however the time that a worker has measured is rounded."""
    held, keys = await stage.run(), [f"step {(7 * number) % 50}" for number in range(50)]
    for key in keys:
        if keys.index(key) % 5 == 4:
            await stage.store.open(held, [timer(key, after_ms=-1)], [])
        else:
            await stage.store.record(held, key, STEP, 0.0)
    fields = (await stage.check()).hashes[held.keys.steps]
    records = {key: value.encode() for key, value in fields.items()}
    assert [key for key, _ in in_order(records)] == keys


async def test_lists_of_keys_are_kept_whole(stage: Stage) -> None:
    keys = ["a", "b c", "d:e", "\N{SNOWMAN}", "%s", "a.b", "a+", "[1]", "a|b", ","]
    held = await stage.parked(*(approval(key) for key in keys))
    assert (await stage.fields(held.keys))["waiting"].split("\n") == keys
    for at, key in enumerate(keys):
        await stage.store.signal(held.keys, key, "s1", Payload("bool", "boolean", b"true"))
        assert (await stage.fields(held.keys)).get("waiting", "").split("\n") == (keys[at + 1 :] or [""])
