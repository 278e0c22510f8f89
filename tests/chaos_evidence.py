"""Evidence in which all is well, for the checker of `make chaos`, and alterations of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.evidence import Answer, Evidence, Fault, Invoked, Kind, Left, Signalled
from chaos.history import Delivery, History, Lead
from chaos.ledger import Line, What

Alteration = Callable[[Evidence], Evidence]

ASK, NAP, MEND = "ask/job-1", "nap/job-2", "mend/job-3"
ALICE, BOB, CAROL = 7, 8, 9
"""Workers. Bob leads."""


def finished(kind: str, completed_s: float, result: Any = None, *, state: str = "completed") -> str:
    return json.dumps(
        {"state": state, "kind": kind, "started_ms": 0, "took_ms": round(completed_s * 1000), "result": result}
    )


SUSPENDED = '{"state":"suspended","kind":"signal","type":"str","started_ms":0}'


def good() -> Evidence:
    """Alice is killed while she has ASK; Bob takes over, and is stopped beyond his lease before he has NAP."""
    history = History()
    history.lives.update({ASK: ["a"], NAP: ["b"], MEND: ["c"]})
    history.claims.update({ASK: {1: "alice", 2: "bob"}, NAP: {1: "bob", 2: "bob"}, MEND: {1: "bob", 2: "bob"}})
    history.losses.update({ASK: {1: 0, 2: 1}})
    history.deliveries.update(
        {
            ASK: [Delivery(8.9, ALICE, 1, 13.5), Delivery(13.6, BOB, 2, 16.0)],
            NAP: [Delivery(29.9, BOB, 1, parked=True), Delivery(40.0, BOB, 2, 40.2)],
            MEND: [Delivery(40.8, BOB, 1, 41.1), Delivery(42.1, BOB, 2, 43.1)],
        }
    )
    history.partitions.update(dict.fromkeys([ASK, NAP, MEND], 0))
    history.leads[0] = [Lead("token of Bob", at_s + 3.0) for at_s in range(5, 50) if not 20 <= at_s < 25]
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
            Line(5.0, BOB, What.MAY_LEAD, "token of Bob", 0),
            Line(5.1, CAROL, What.MAY_LEAD, "token of Carol", 0),
            Line(9.0, ALICE, What.RUN, ASK, 1),
            Line(9.1, ALICE, What.BEGIN, ASK, 1, "ask", 1),
            Line(14.0, BOB, What.RUN, ASK, 2),
            Line(14.1, BOB, What.BEGIN, ASK, 2, "ask", 1),
            Line(14.5, BOB, What.END, ASK, 2, "ask", 1),
            Line(16.0, BOB, What.REST, ASK, 2),
            Line(30.0, BOB, What.RUN, NAP, 1),
            Line(30.1, BOB, What.REST, NAP, 1),
            Line(40.1, BOB, What.RUN, NAP, 2),
            Line(40.15, BOB, What.REST, NAP, 2),
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
            completed_ms={ASK: 16_000, NAP: 40_200, MEND: 43_100},
        ),
        ended_s=50.0,
        settled=True,
        gone_s={ALICE: 10.1, BOB: 50.5, CAROL: 50.6},
    )


def in_history(change: Callable[[History], Any]) -> Alteration:
    def alter(seen: Evidence) -> Evidence:
        change(seen.history)
        return seen

    return alter


def more(*lines: Line) -> Alteration:
    return lambda seen: replace(seen, ledger=sorted([*seen.ledger, *lines], key=lambda line: line.at_s))


def invoked(at: int, **changes: Any) -> Alteration:
    return lambda seen: replace(
        seen, invoked=[replace(each, **changes) if n == at else each for n, each in enumerate(seen.invoked)]
    )


def signalled(at: int, answer: Answer) -> Alteration:
    return lambda seen: replace(
        seen, signalled=[replace(each, answer=answer) if n == at else each for n, each in enumerate(seen.signalled)]
    )


def more_faults(*faults: Fault) -> Alteration:
    """These in addition."""
    return lambda seen: replace(seen, faults=sorted([*seen.faults, *faults], key=lambda fault: fault.at_s))


def delivered(name: str, *deliveries: Delivery) -> Alteration:
    """These and no others."""
    return in_history(lambda history: history.deliveries.update({name: list(deliveries)}))


def both(*alterations: Alteration) -> Alteration:
    def alter(seen: Evidence) -> Evidence:
        for each in alterations:
            seen = each(seen)
        return seen

    return alter


def left(**changes: Any) -> Alteration:
    return lambda seen: replace(seen, left=replace(seen.left, **changes))
