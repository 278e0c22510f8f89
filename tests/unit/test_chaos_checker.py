"""The checker of `make chaos`: evidence in which all is well, and each way in which it might not be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chaos.checker import judge, show
from chaos.evidence import Answer, Evidence, Fault, Invoked, Kind, Left, Signalled
from chaos.history import History
from chaos.ledger import Line, What

ASK, NAP, MEND = "ask/job-1", "nap/job-2", "mend/job-3"
ALICE, BOB = 7, 8
"""Two workers."""


def finished(kind: str, completed_s: float, result: Any = None, *, state: str = "completed") -> str:
    return json.dumps(
        {"state": state, "kind": kind, "started_ms": 0, "completed_ms": round(completed_s * 1000), "result": result}
    )


SUSPENDED = '{"state":"suspended","kind":"signal","type":"str","started_ms":0}'


def good() -> Evidence:
    """Alice is killed while she runs ASK; Bob takes over, and is stopped beyond his lease before he runs NAP."""
    history = History()
    history.lives.update({ASK: ["a"], NAP: ["b"], MEND: ["c"]})
    history.claims.update({ASK: {1: "alice", 2: "bob"}, NAP: {1: "bob"}, MEND: {1: "bob", 2: "bob"}})
    history.losses.update({ASK: {1: 0, 2: 1}})
    history.records.update(
        {
            (ASK, "ask"): [finished("step", 14.5, "ask 1")],
            (ASK, "answer"): [SUSPENDED, finished("signal", 15.0, "yes")],
            (NAP, "nap"): [SUSPENDED.replace("signal", "timer"), finished("timer", 40.0)],
            (MEND, "broken"): [finished("step", 41.0, state="failed"), None, finished("step", 43.0, "broken 3")],
        }
    )
    history.completers.update({(ASK, "answer"): ["signal s1"], (NAP, "nap"): ["timer"]})
    history.dues_ms.update({(NAP, "nap"): [39_990.0]})
    return Evidence(
        lease_s=3,
        faults=[Fault(Kind.KILL, 10.0, 10.1, ALICE), Fault(Kind.STOP, 20.0, 25.0, BOB)],
        invoked=[
            Invoked(ASK, ["ask 1", "yes"], tries=1, created=True, result=["ask 1", "yes"]),
            Invoked(NAP, [], tries=2, created=False, result=[]),
            Invoked(MEND, ["broken 3"], tries=1, created=True, resumed_s=[42.0], result=["broken 3"]),
        ],
        signalled=[
            Signalled(ASK, "answer", "s1", "yes", Answer.ACCEPTED),
            Signalled(ASK, "answer", "s2", "no", Answer.SUPERSEDED),
            Signalled(ASK, "answer", "s1", "yes", Answer.ACCEPTED),
        ],
        ledger=[
            Line(9.0, ALICE, What.RUN, ASK, 1),
            Line(9.1, ALICE, What.BEGIN, ASK, 1, "ask", 1),
            Line(14.0, BOB, What.RUN, ASK, 2),
            Line(14.1, BOB, What.BEGIN, ASK, 2, "ask", 1),
            Line(14.5, BOB, What.END, ASK, 2, "ask", 1),
            Line(16.0, BOB, What.REST, ASK, 2),
            Line(30.0, BOB, What.RUN, NAP, 1),
            Line(40.1, BOB, What.REST, NAP, 1),
            Line(40.9, BOB, What.RUN, MEND, 1),
            Line(40.95, BOB, What.BEGIN, MEND, 1, "broken", 1),
            Line(41.1, BOB, What.REST, MEND, 1),
            Line(42.5, BOB, What.RUN, MEND, 2),
            Line(42.6, BOB, What.BEGIN, MEND, 2, "broken", 1),
            Line(43.1, BOB, What.REST, MEND, 2),
        ],
        history=history,
        left=Left(
            statuses=dict.fromkeys([ASK, NAP, MEND], "completed"),
            completed_ms={ASK: 16_000, NAP: 40_100, MEND: 43_100},
        ),
        ended_s=50.0,
        settled=True,
    )


def test_if_all_is_well_the_exit_code_is_0_and_the_table_tells_what_was_seen() -> None:
    verdict = judge(good(), stall_limit_s=5.0)
    assert (verdict.complaints, verdict.exit_code) == ([], 0)
    expected = {
        "instances": 3,
        "faults": 2,
        "  SIGKILL to a worker": 1,
        "lost": 0,
        "signals accepted": 2,
        "timers fired": 1,
        "latest timer, s": 0.01,
        "instances hit by a fault": 1,
        "longest stall per fault, s": 4.0,
    }
    assert expected.items() <= verdict.table.items()
    assert "nothing lost, nothing doubled" in show(verdict)


def _in_history(change: Callable[[History], Any]) -> Callable[[Evidence], Evidence]:
    def alter(seen: Evidence) -> Evidence:
        change(seen.history)
        return seen

    return alter


def _more(*lines: Line) -> Callable[[Evidence], Evidence]:
    return lambda seen: replace(seen, ledger=sorted([*seen.ledger, *lines], key=lambda line: line.at_s))


def _invoked(at: int, **changes: Any) -> Callable[[Evidence], Evidence]:
    return lambda seen: replace(
        seen, invoked=[replace(each, **changes) if n == at else each for n, each in enumerate(seen.invoked)]
    )


def _signalled(at: int, answer: Answer) -> Callable[[Evidence], Evidence]:
    return lambda seen: replace(
        seen, signalled=[replace(each, answer=answer) if n == at else each for n, each in enumerate(seen.signalled)]
    )


def _left(**changes: Any) -> Callable[[Evidence], Evidence]:
    return lambda seen: replace(seen, left=replace(seen.left, **changes))


@pytest.mark.parametrize(
    ("alter", "complaint"),
    [
        # lost
        (_left(statuses={ASK: "completed", MEND: "completed"}), "nap/job-2 is lost: its invoke was acknowledged"),
        (_left(statuses={ASK: "completed", NAP: "running", MEND: "completed"}), "nap/job-2 is running, not completed"),
        (_invoked(0, result=["ask 1", "no"]), "ask/job-1 returned ['ask 1', 'no'], not ['ask 1', 'yes']"),
        (_invoked(1, result=None), "nap/job-2 is completed, and the client still waits for it"),
        (_in_history(lambda h: h.records[ASK, "ask"].append(None)), "the record 'ask' of ask/job-1 is lost"),
        (_in_history(lambda h: h.records[MEND, "broken"].append(None)), "2 times it was dropped"),
        (lambda seen: replace(seen, settled=False), "not all instances came to their ends in time"),
        # doubled
        (_in_history(lambda h: h.lives[ASK].append("again")), "ask/job-1 was made 2 times"),
        (
            _in_history(lambda h: h.records[ASK, "ask"].append(finished("step", 14.9, "ask 1"))),
            "the record 'ask' of ask/job-1 was {",
        ),
        (_invoked(0, created=False), "ask/job-1: the client that started it was told that it was there already"),
        # called without a right
        (_more(Line(14.6, BOB, What.BEGIN, ASK, 2, "ask", 2)), "in run 2, 0.100 s after its record was written"),
        (_more(Line(41.5, BOB, What.BEGIN, MEND, 1, "broken", 2)), "0.500 s after its record was written"),
        (_more(Line(14.2, ALICE, What.BEGIN, ASK, 1, "ask", 2)), "worker 7, in run 1, 0.200 s after run 2 had begun"),
        (
            lambda seen: replace(seen, ledger=[line for line in seen.ledger if line.key != "ask"]),
            "step 'ask' of ask/job-1 has a record, and was never called",
        ),
        # signals
        (_signalled(1, Answer.ACCEPTED), "the signals ['s1', 's2'] were all accepted"),
        (
            lambda seen: _signalled(0, Answer.SUPERSEDED)(_signalled(2, Answer.SUPERSEDED)(seen)),
            "3 signals were superseded, and none was accepted",
        ),
        (
            _in_history(lambda h: h.records.update({(ASK, "answer"): [finished("signal", 15.0, "no")]})),
            "accepted was s1, recorded is ['no']",
        ),
        (_in_history(lambda h: h.completers.update({(ASK, "answer"): ["signal s2"]})), "by ['signal s2']"),
        (_in_history(lambda h: h.completers[NAP, "nap"].append("timer")), "'nap' of nap/job-2 was completed more than"),
        # timers
        (_in_history(lambda h: h.dues_ms.update({(NAP, "nap"): [40_005.0]})), "timer 'nap' of nap/job-2 fired 5 ms"),
        (_in_history(lambda h: h.dues_ms[NAP, "nap"].append(39_000.0)), "had the deadlines [39990.0, 39000.0]"),
        # stalls
        (
            lambda seen: replace(
                seen, ledger=[replace(line, at_s=line.at_s + 0.4) if line.run == 2 else line for line in seen.ledger]
            ),
            "ask/job-1 did not move for 4.4 s after SIGKILL to a worker 7",
        ),
        # left behind
        (_left(immortal=["chaos:{0}:steps:ask/job-1"]), "chaos:{0}:steps:ask/job-1 would never go"),
        (_left(entries=1), "1 entries are left in the streams"),
        (_left(pending=2), "2 entries are left pending"),
        (_left(disorder=["ask/job-1: completed, and listed as []"]), "completed, and listed as []"),
        # nothing is proved
        (lambda seen: replace(seen, faults=[]), "there was no fault"),
        (lambda seen: replace(seen, invoked=[]), "there was no instance"),
        (lambda seen: replace(seen, clock_drift_s=-0.5), "the clock was moved by -0.500 s"),
        (lambda seen: replace(seen, surprises=["worker 9 ended with 1"]), "worker 9 ended with 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_is_wrong_is_said_and_the_exit_code_is_1(
    alter: Callable[[Evidence], Evidence], complaint: str
) -> None:
    verdict = judge(alter(good()), stall_limit_s=4.2)
    assert verdict.exit_code == 1
    assert any(complaint in each for each in verdict.complaints), verdict.complaints


def test_a_worker_that_was_stopped_before_it_could_know_may_call_as_it_wakes_and_no_later() -> None:
    stopped = Fault(Kind.STOP, 13.0, 18.0, ALICE)
    seen = good()
    seen = replace(seen, faults=[*seen.faults[1:], stopped])
    waking, later = (Line(at_s, ALICE, What.BEGIN, ASK, 1, "ask", 2) for at_s in (18.1, 18.5))
    allowed, refused = judge(_more(waking)(seen)), judge(_more(later)(seen))
    assert allowed.complaints == []
    assert allowed.table["  of both, explained by a SIGSTOP"] == 2
    assert len(refused.complaints) == 2  # after the record, and of an old run


def test_a_worker_that_was_stopped_when_it_could_know_may_call_nothing() -> None:
    seen = good()
    seen = replace(seen, faults=[Fault(Kind.STOP, 15.0, 18.0, ALICE)])
    verdict = judge(_more(Line(18.1, ALICE, What.BEGIN, ASK, 1, "ask", 2))(seen))
    assert len(verdict.complaints) == 2


def test_a_stall_counts_from_the_last_fault_and_the_servers_downtime_is_no_part_of_it() -> None:
    seen = good()
    seen = replace(seen, faults=[*seen.faults, Fault(Kind.SERVER, 11.0, 13.5)])
    table = judge(seen).table
    assert (table["longest stall, s"], table["longest stall per fault, s"]) == (4.0, 0.5)


def test_what_lost_two_workers_in_a_row_waits_to_run_alone_and_that_is_told_apart() -> None:
    seen = good()
    seen.history.losses[ASK][2] = 2
    verdict = judge(seen, stall_limit_s=1.0)
    assert verdict.complaints == []
    assert verdict.table["longest stall per fault, s"] == 0.0
    assert verdict.table["  of what lost two in a row, s"] == 4.0
