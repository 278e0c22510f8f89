"""The checker of `make chaos` on lives, children, messages, choices, further attempts, cancels and delays."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.checker import judge
from chaos.evidence import Answer, Evidence, Invoked, Signalled
from chaos.history import Delivery, History, read_history
from chaos.ledger import Line, What
from memable.keys import Keys
from tests.chaos_evidence import ASK, BOB, Alteration, both, finished, good, in_history, left, more

LIVES, RACE, FAMILY, CHILD, PATIENT, SUNK = (
    "lives/job-4",
    "race/job-5",
    "family/job-6",
    "part/job-6~f~parts~0",
    "patient/job-7",
    "sunk/job-8",
)
STATUSES = {
    **dict.fromkeys([LIVES, RACE, FAMILY, PATIENT], "completed"),
    **dict.fromkeys([CHILD, SUNK], "cancelled"),
}


def retrying(attempts: int, due_s: float) -> str:
    return json.dumps({"state": "retrying", "kind": "step", "attempts": attempts, "due_ms": due_s * 1000}).replace(
        ": ", ":"
    )


def richer() -> Evidence:
    """Beside what is in `good`: two lives, a race, a child that was given up, a back-off, a cancelled instance."""
    seen = good()
    history = seen.history
    history.lives.update({name: [name] for name in [*STATUSES, f"{LIVES}#2"]})
    history.completers.update(
        {
            (LIVES, "hear"): ["message m1"],
            (f"{LIVES}#2", "hear"): ["message m2"],
            (RACE, "left"): ["signal l1"],
            (RACE, "right"): ["choice choice"],
        }
    )
    history.records.update(
        {
            (RACE, "left"): [finished("signal", 31.0, "l")],
            (RACE, "choice"): [finished("choice", 31.0, "left")],
            (FAMILY, "parts"): [finished("child", 33.0, state="failed")],
            (PATIENT, "try"): [retrying(1, 34.0), retrying(2, 37.0), finished("step", 38.0)],
        }
    )
    history.dues_ms.update({(PATIENT, "try"): [34_000, 37_000], (LIVES, "_delay"): [26_000]})
    history.queued_ms.update({PATIENT: [30_500, 34_005, 37_004], LIVES: [26_003]})
    ran = [
        Line(26.1, BOB, What.RUN, LIVES, 1),
        Line(26.2, BOB, What.BEGIN, LIVES, 1, "work", 1),
        Line(27.0, BOB, What.RUN, f"{LIVES}#2", 1),
        *(Line(at_s, BOB, What.BEGIN, PATIENT, 1, "try", n) for n, at_s in ((1, 31.0), (2, 34.1), (3, 37.1))),
        Line(32.0, BOB, What.BEGIN, SUNK, 1, "sink", 1),
    ]
    ended_ms = {LIVES: 28_000, RACE: 32_000, FAMILY: 34_000, CHILD: 32_990, PATIENT: 39_000, SUNK: 33_000}
    statuses, completed_ms = {**seen.left.statuses, **STATUSES}, {**seen.left.completed_ms, **ended_ms}
    return replace(
        seen,
        invoked=[
            *seen.invoked,
            Invoked(LIVES, ["m1", "m2"], tries=1, created=True, lives=2, result=["m1", "m2"]),
            Invoked(RACE, ["left"], tries=1, created=True, or_else=[["timer"]], result=["timer"]),
            Invoked(FAMILY, [], tries=1, created=True, result=[]),
            Invoked(PATIENT, [], tries=1, created=True, result=[]),
            Invoked(SUNK, [], tries=1, created=True, cancelled_s=32.9, told="cancelled", result="it was cancelled"),
        ],
        signalled=[
            *seen.signalled,
            Signalled(RACE, "left", "l1", "l", Answer.ACCEPTED),
            Signalled(RACE, "right", "r1", "r", Answer.SUPERSEDED),
            Signalled(SUNK, "answer", "a1", "a", Answer.REJECTED),
        ],
        ledger=sorted([*seen.ledger, *ran], key=lambda line: line.at_s),
        left=replace(seen.left, statuses=statuses, completed_ms=completed_ms),
    )


def test_if_all_is_well_with_the_rest_too_the_table_tells_what_was_seen() -> None:
    verdict = judge(richer())
    assert verdict.complaints == []
    expected = {
        "instances": 8,
        "completed": 7,
        "  cancelled by the client": 1,
        "children": 1,
        "further lives": 1,
        "messages received": 2,
        "signals superseded": 2,
        "timers fired": 4,
    }
    assert expected.items() <= verdict.table.items()


def _known(name: str, **changes: Any) -> Alteration:
    return lambda seen: replace(
        seen, invoked=[replace(each, **changes) if each.name == name else each for each in seen.invoked]
    )


def _status(name: str, status: str) -> Alteration:
    return left(statuses={**richer().left.statuses, name: status})


def _ended(name: str, at_ms: int) -> Alteration:
    return left(completed_ms={**richer().left.completed_ms, name: at_ms})


def _answered(key: str, answer: Answer) -> Alteration:
    return lambda seen: replace(
        seen, signalled=[replace(each, answer=answer) if each.key == key else each for each in seen.signalled]
    )


def _records(name: str, key: str, *texts: str) -> Alteration:
    return in_history(lambda history: history.records.update({(name, key): list(texts)}))


def _completers(name: str, key: str, *by: str) -> Callable[[Evidence], Evidence]:
    return in_history(lambda history: history.completers.update({(name, key): list(by)}))


@pytest.mark.parametrize(
    ("alter", "complaint"),
    [
        # lives
        (_known(LIVES, lives=3), "lives/job-4 has had 2 lives, not 3"),
        (in_history(lambda h: h.lives.update({f"{LIVES}#3": ["once more"]})), "lives/job-4 has had 3 lives, not 2"),
        (in_history(lambda h: h.lives[f"{LIVES}#2"].append("once more")), "lives/job-4#2 was made 2 times"),
        (more(Line(27.1, BOB, What.BEGIN, LIVES, 1, "work", 2)), "0.100 s after life 2 had begun"),
        # messages, signals, choices
        (_completers(f"{LIVES}#2", "again", "message m2"), "message m2 to lives/job-4#2 was received more than once"),
        (_answered("right", Answer.ACCEPTED), "chose 'left', and accepted were signals to ['right']"),
        (_records(RACE, "choice", finished("choice", 31.0, "timer")), "chose 'timer', and accepted were"),
        (_completers(RACE, "right"), "1 signals were superseded, and none was accepted"),
        (_answered("left", Answer.REJECTED), "a signal was rejected, and the instance was not cancelled"),
        (_known(RACE, result=["right"]), "race/job-5 returned ['right'], not ['left']"),
        # children
        (_status(CHILD, "running"), "part/job-6~f~parts~0 is running, and its parent has ended"),
        (_ended(CHILD, 33_100), "part/job-6~f~parts~0 ended 0.100 s after that was recorded"),
        (
            in_history(lambda h: h.lives.update({"part/job-6~g~parts~0": ["g"]})),
            "job-6 has more than one child 0 of 'parts'",
        ),
        # further attempts
        (more(Line(36.0, BOB, What.BEGIN, PATIENT, 1, "try", 1)), "in run 1, as attempt 1, which was counted"),
        (more(Line(36.9, BOB, What.BEGIN, PATIENT, 1, "try", 3)), "began 0.100 s early"),
        (more(Line(37.9, BOB, What.BEGIN, PATIENT, 1, "try", 4)), "'try') was announced by nobody"),
        (_records(PATIENT, "try", retrying(2, 34.0), retrying(2, 37.0)), "and became"),
        # ends
        (_known(SUNK, told="completed"), "sunk/job-8 is cancelled, and its cancel was answered with completed"),
        (_known(SUNK, cancelled_s=None, told=None), "sunk/job-8 is cancelled, not completed"),
        (_known(SUNK, result=["sink"]), "sunk/job-8 is cancelled, and the client was told of ['sink']"),
        (more(Line(36.1, BOB, What.BEGIN, SUNK, 1, "sink", 2)), "in run 1, 3.100 s after it was over"),
        (more(Line(19.1, BOB, What.BEGIN, ASK, 2, "sent", 1)), "in run 2, 3.100 s after it was over"),
        # delays
        (in_history(lambda h: h.queued_ms.update({LIVES: [25_990]})), "'_delay' of lives/job-4 fired 10 ms early"),
        (in_history(lambda h: h.queued_ms.update({LIVES: [31_100]})), "'_delay' of lives/job-4, due at 26.000, fired"),
        (in_history(lambda h: h.queued_ms.update({PATIENT: [30_500, 39_200]})), None),  # told, while it ran
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_whatever_is_wrong_with_the_rest_is_said_too(alter: Alteration, complaint: str | None) -> None:
    complaints = judge(alter(richer())).complaints
    assert any(complaint in each for each in complaints) if complaint else complaints == [], complaints


def test_what_the_cancelled_had_accepted_needs_no_point() -> None:
    kept = Signalled(SUNK, "later", "s1", "l", Answer.ACCEPTED)
    accepted: Alteration = lambda seen: replace(seen, signalled=[*seen.signalled, kept])  # noqa: E731
    assert judge(accepted(richer())).complaints == []
    completed = both(accepted, _status(SUNK, "completed"), _known(SUNK, told="completed", result=[]))
    assert any("accepted was s1, recorded is []" in each for each in judge(completed(richer())).complaints)


def test_the_aof_tells_lives_apart_and_when_what_waits_without_an_entry_was_queued(tmp_path: Path) -> None:
    claim = "FORCE JUSTID"
    commands = f"""
        ZADD chaos:{{0}}:timers 900 lives/job-4/_delay
        HSET chaos:{{0}}:instance:lives/job-4 status queued life a created_us 1 due 900
        XADD chaos:{{0}}:stream:lives 1000-0 i job-4
        HSET chaos:{{0}}:instance:lives/job-4 entry 1000-0 status queued
        XCLAIM chaos:{{0}}:stream:lives workers host-7-abc 0 1000-0 TIME 1100 RETRYCOUNT 1 {claim}
        HSET chaos:{{0}}:instance:lives/job-4 status running lease l1 worker host-7-abc attempt 1
        HSET chaos:{{0}}:steps:lives/job-4 work one
        XADD chaos:{{0}}:stream:lives 2000-0 i job-4
        HSET chaos:{{0}}:instance:lives/job-4 status queued life b entry 2000-0
        XCLAIM chaos:{{0}}:stream:lives workers host-8-abc 0 2000-0 TIME 2100 RETRYCOUNT 1 {claim}
        HSET chaos:{{0}}:instance:lives/job-4 status running lease l2 worker host-8-abc attempt 1
        HSET chaos:{{0}}:steps:lives/job-4 work two
        HSET chaos:{{0}}:instance:lives/job-4 status queued message retrying
        XADD chaos:{{0}}:stream:lives 5000-0 i job-4
        HSET chaos:{{0}}:instance:lives/job-4 status queued entry 5000-0
    """
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "a.aof.1.base.aof").touch()
    aof = "".join(
        f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        for words in map(shlex.split, commands.strip().splitlines())
    )
    (tmp_path / "appendonlydir" / "a.aof.1.incr.aof").write_bytes(aof.encode())
    history: History = read_history(tmp_path, Keys("chaos", partitions=1).partitions)
    first, second = LIVES, f"{LIVES}#2"
    assert history.lives == {first: ["a"], second: ["b"]}
    assert history.queued_ms == {first: [1000], second: [2000, 5000]}
    assert history.records == {(first, "work"): ["one"], (second, "work"): ["two"]}
    assert history.claims == {first: {1: "host-7-abc"}, second: {1: "host-8-abc"}}
    assert history.dues_ms == {(first, "_delay"): [900.0]}
    assert history.deliveries == {
        first: [Delivery(1.1, 7, 1, 2.0)],
        second: [Delivery(2.1, 8, 1, parked=True)],
    }
