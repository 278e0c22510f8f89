"""The checker of `make chaos`: evidence in which all is well, and each way in which it might not be."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.checker import judge, show
from chaos.evidence import Answer, Consumer, Fault, Kind, Said
from chaos.history import Delivery, Lead, read_history
from chaos.ledger import Line, What
from chaos.logs import read_log
from memable.keys import Keys
from tests.chaos_evidence import (
    ALICE,
    ASK,
    BOB,
    CAROL,
    MEND,
    NAP,
    Alteration,
    both,
    delivered,
    finished,
    good,
    in_history,
    invoked,
    left,
    more,
    more_faults,
    signalled,
)


def test_if_all_is_well_the_exit_code_is_0_and_the_table_tells_what_was_seen() -> None:
    verdict = judge(good())
    assert (verdict.complaints, verdict.exit_code) == ([], 0)
    expected = {
        "instances": 3,
        "faults injected": 2,
        "  SIGKILL to a worker": 1,
        "lost": 0,
        "signals accepted": 2,
        "timers fired": 1,
        "latest timer per fault, s": 0.01,
        "  in a calm (1 timers), s": 0.01,
        "instances hit by a fault": 1,
        "longest stall per fault, s": 4.0,
    }
    assert expected.items() <= verdict.table.items()
    assert "nothing lost, nothing doubled" in show(verdict)


@pytest.mark.parametrize(
    ("alter", "complaint"),
    [
        # lost
        (left(statuses={ASK: "completed", MEND: "completed"}), "nap/job-2 is lost: its invoke was acknowledged"),
        (left(statuses={ASK: "completed", NAP: "running", MEND: "completed"}), "nap/job-2 is running, not completed"),
        (invoked(0, result=["ask 1", "no"]), "ask/job-1 returned ['ask 1', 'no'], not ['ask 1', 'yes']"),
        (invoked(1, result=None), "nap/job-2 is completed, and the client still waits for it"),
        (in_history(lambda h: h.records[ASK, "ask"].append(None)), "the record 'ask' of ask/job-1 is lost"),
        (in_history(lambda h: h.records[MEND, "broken"].append(None)), "2 times it was dropped"),
        (lambda seen: replace(seen, settled=False), "not all instances came to their ends in time"),
        # doubled
        (in_history(lambda h: h.lives[ASK].append("again")), "ask/job-1 was made 2 times"),
        (
            in_history(lambda h: h.records[ASK, "ask"].append(finished("step", 14.9, "ask 1"))),
            "the record 'ask' of ask/job-1 was {",
        ),
        (invoked(0, created=False), "ask/job-1: the client that started it was told that it was there already"),
        # called without a right
        (more(Line(14.6, BOB, What.BEGIN, ASK, 2, "ask", 2)), "in run 2, 0.100 s after its record was written"),
        (more(Line(41.5, BOB, What.BEGIN, MEND, 1, "broken", 2)), "0.500 s after its record was written"),
        (more(Line(14.2, ALICE, What.BEGIN, ASK, 1, "ask", 2)), "worker 7, in run 1, 0.200 s after run 2 had begun"),
        (
            lambda seen: replace(seen, ledger=[line for line in seen.ledger if line.key != "ask"]),
            "step 'ask' of ask/job-1 has a record, and was never called",
        ),
        # signals
        (signalled(1, Answer.ACCEPTED), "the signals ['s1', 's2'] were all accepted"),
        (
            lambda seen: signalled(0, Answer.SUPERSEDED)(signalled(2, Answer.SUPERSEDED)(seen)),
            "3 signals were superseded, and none was accepted",
        ),
        (
            in_history(lambda h: h.records.update({(ASK, "answer"): [finished("signal", 15.0, "no")]})),
            "accepted was s1, recorded is ['no']",
        ),
        (in_history(lambda h: h.completers.update({(ASK, "answer"): ["signal s2"]})), "by ['signal s2']"),
        (in_history(lambda h: h.completers[NAP, "nap"].append("timer")), "'nap' of nap/job-2 was completed more than"),
        # timers
        (in_history(lambda h: h.dues_ms.update({(NAP, "nap"): [40_005.0]})), "timer 'nap' of nap/job-2 fired 5 ms"),
        (in_history(lambda h: h.dues_ms[NAP, "nap"].append(39_000.0)), "had the deadlines [39990.0, 39000.0]"),
        # stalls
        (
            lambda seen: replace(
                seen, ledger=[replace(line, at_s=line.at_s + 0.4) if line.run == 2 else line for line in seen.ledger]
            ),
            "ask/job-1 did not move for 4.4 s after SIGKILL to a worker 7",
        ),
        # left behind
        (left(immortal=["chaos:{0}:steps:ask/job-1"]), "chaos:{0}:steps:ask/job-1 would never go"),
        (left(entries=1), "1 entries are left in the streams"),
        (left(pending=2), "2 entries are left pending"),
        (left(disorder=["ask/job-1: completed, and listed as []"]), "completed, and listed as []"),
        # nothing is proved
        (lambda seen: replace(seen, faults=[]), "there was no fault"),
        (lambda seen: replace(seen, invoked=[]), "there was no instance"),
        (lambda seen: replace(seen, clock_drift_s=-0.5), "the clock was moved by -0.500 s"),
        (lambda seen: replace(seen, surprises=["worker 9 ended with 1"]), "worker 9 ended with 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_is_wrong_is_said_and_the_exit_code_is_1(alter: Alteration, complaint: str) -> None:
    verdict = judge(alter(good()), beyond_lease_s=1.2)
    assert verdict.exit_code == 1
    assert any(complaint in each for each in verdict.complaints), verdict.complaints


def test_a_worker_that_was_stopped_before_it_could_know_may_call_as_it_wakes_and_no_later() -> None:
    stopped = Fault(Kind.STOP, 13.0, 18.0, ALICE)
    seen = good()
    seen = replace(seen, faults=[*seen.faults[1:], stopped])
    waking, later = (Line(at_s, ALICE, What.BEGIN, ASK, 1, "ask", 2) for at_s in (18.1, 18.5))
    allowed, refused = judge(more(waking)(seen)), judge(more(later)(seen))
    assert allowed.complaints == []
    assert allowed.table["  of these, explained by a SIGSTOP"] == 2
    assert len(refused.complaints) == 2  # after the record, and of an old run


def test_a_worker_that_was_stopped_when_it_could_know_may_call_nothing() -> None:
    seen = good()
    seen = replace(seen, faults=[Fault(Kind.STOP, 15.0, 18.0, ALICE)])
    verdict = judge(more(Line(18.1, ALICE, What.BEGIN, ASK, 1, "ask", 2))(seen))
    assert len(verdict.complaints) == 2


# ── stalls ───────────────────────────────────────────────────────────────────────────────────────────────────────────

KILLED = Fault(Kind.KILL, 10.0, 10.1, ALICE)
"""It is 4 s until ASK moves again: too long for those of the following tests that allow a lease and half a second."""

FOUR = "ask/job-1 did not move for 4.0 s after SIGKILL to a worker 7"


def stalls(*alterations: Alteration, beyond_lease_s: float = 0.5) -> list[str]:
    """What is said of stalls."""
    complaints = judge(both(*alterations)(good()), beyond_lease_s=beyond_lease_s).complaints
    return [each for each in complaints if "did not move" in each]


def test_a_stall_may_last_a_lease_and_two_seconds() -> None:
    def killed(at_s: float) -> Alteration:
        return lambda seen: replace(seen, faults=[Fault(Kind.KILL, at_s, at_s, ALICE)])

    assert judge(killed(9.01)(good())).complaints == []
    assert judge(killed(8.99)(good())).complaints == [FOUR.replace("4.0", "5.0")]


def test_a_signal_that_somebody_else_brings_is_no_sign_of_life() -> None:
    signalled = finished("signal", 11.0, "yes")
    assert stalls(in_history(lambda history: history.records[ASK, "answer"].__setitem__(1, signalled))) == [FOUR]


def test_the_servers_downtime_is_no_part_of_a_stall_and_a_restart_is_a_fault_of_its_own() -> None:
    restarted = Fault(Kind.SERVER, 10.2, 10.6)
    assert stalls(more_faults(restarted)) == []
    table = judge(more_faults(restarted)(good())).table
    assert (table["longest stall, s"], table["longest stall per fault, s"]) == (4.0, 3.4)
    alone = both(lambda seen: replace(seen, faults=[restarted]))
    assert stalls(alone, beyond_lease_s=0.2) == [
        "ask/job-1 did not move for 3.4 s after server killed and restarted",
    ]


@pytest.mark.parametrize("kind", [Kind.STOP, Kind.PAUSE, Kind.TERM, Kind.KILL, Kind.CUT_REPLY, Kind.CUT_ALL])
def test_no_fault_of_a_worker_that_has_nothing_to_do_with_it_excuses_a_stall(kind: Kind) -> None:
    assert stalls(more_faults(Fault(kind, 11.0, 13.9, CAROL))) == [FOUR]
    assert stalls(more_faults(Fault(kind, 11.0, 13.9, None))) == [FOUR]


@pytest.mark.parametrize("kind", [Kind.STOP, Kind.PAUSE, Kind.TERM, Kind.KILL, Kind.CUT_REPLY, Kind.CUT_ALL])
def test_a_fault_of_the_leader_excuses_it_while_there_is_something_to_recover(kind: Kind) -> None:
    assert stalls(more_faults(Fault(kind, 11.0, 11.1, BOB))) == []
    handed_back = delivered(ASK, Delivery(8.9, ALICE, 1, 10.5), Delivery(13.6, BOB, 2, 16.0))
    assert stalls(handed_back, more_faults(Fault(kind, 11.0, 11.1, BOB))) == [FOUR]


def test_a_fault_of_who_led_once_or_leads_later_is_no_excuse() -> None:
    led_later = in_history(lambda history: history.leads.update({0: history.leads[0][7:]}))
    assert stalls(led_later, more_faults(Fault(Kind.PAUSE, 11.0, 11.1, BOB))) == [FOUR]
    led_once = in_history(lambda history: history.leads.update({0: history.leads[0][:3]}))
    assert stalls(led_once, more_faults(Fault(Kind.PAUSE, 11.0, 11.1, BOB))) == [FOUR]


def test_a_fault_of_the_leader_of_another_partition_is_no_excuse() -> None:
    seen = more_faults(Fault(Kind.STOP, 11.0, 13.0, CAROL))(good())
    seen.history.leads[1] = [Lead("token of Carol", 13.0)]
    assert any("did not move" in each for each in judge(seen, beyond_lease_s=0.5).complaints)
    seen.history.partitions[ASK] = 1
    assert judge(seen, beyond_lease_s=0.5).complaints == []


def test_a_fault_of_whoever_has_it_by_then_has_it_wait_anew() -> None:
    had = [Delivery(8.9, ALICE, 1, 11.0), Delivery(11.1, CAROL, None, 13.5), Delivery(13.6, BOB, 2, 16.0)]
    by_carol = delivered(ASK, *had)
    assert stalls(by_carol) == [FOUR]
    assert stalls(by_carol, more_faults(Fault(Kind.KILL, 12.0, 12.1, CAROL))) == []
    # she had just died, and the server did not know
    assert stalls(by_carol, more_faults(Fault(Kind.POISON, 11.09, 11.09, CAROL))) == []
    assert stalls(by_carol, more_faults(Fault(Kind.POISON, 11.05, 11.05, CAROL))) == [FOUR]
    # she was stopped before: it waits from when it came to her
    assert stalls(by_carol, more_faults(Fault(Kind.STOP, 10.3, 16.0, CAROL))) == []
    assert stalls(by_carol, more_faults(Fault(Kind.STOP, 10.2, 11.0, CAROL))) == [FOUR]


def test_what_a_run_of_the_past_does_is_no_sign_of_life() -> None:
    had = [Delivery(7.9, ALICE, 1, 8.4), Delivery(8.5, CAROL, 2, 13.5), Delivery(13.6, BOB, 3, 16.0)]
    seen = both(delivered(ASK, *had), more(Line(12.0, ALICE, What.END, ASK, 1, "ask", 1)))(good())
    seen = replace(
        seen,
        faults=[Fault(Kind.KILL, 10.0, 10.1, CAROL)],
        ledger=[replace(each, run=3) if (each.name, each.run) == (ASK, 2) else each for each in seen.ledger],
    )
    assert judge(seen).table["longest stall per fault, s"] == 4.0


def test_what_was_delivered_and_never_claimed_is_hit_as_well() -> None:
    unclaimed = delivered(ASK, Delivery(9.9, ALICE, None, 13.5), Delivery(13.6, BOB, 2, 16.0))
    assert stalls(unclaimed) == [FOUR]


def test_what_had_parked_before_is_not_hit() -> None:
    parked = delivered(ASK, Delivery(8.9, ALICE, 1, parked=True), Delivery(13.6, BOB, 2, 16.0))
    assert stalls(parked) == []
    still_at_it = more(Line(10.1, ALICE, What.REST, ASK, 1))
    stopped = both(lambda seen: replace(seen, faults=[Fault(Kind.STOP, 10.0, 14.5, ALICE)]))
    assert stalls(parked, still_at_it, stopped) == []
    assert judge(both(parked, still_at_it, stopped)(good())).table["longest stall per fault, s"] == 0.1


@pytest.mark.parametrize("kind", [Kind.PAUSE, Kind.CUT_INSIDE, Kind.TERM, Kind.STOP])
def test_what_a_worker_that_lives_does_itself_is_a_sign_of_life(kind: Kind) -> None:
    hit = both(lambda seen: replace(seen, faults=[Fault(kind, 10.0, 10.1, ALICE)]))
    assert stalls(hit) == [f"ask/job-1 did not move for 4.0 s after {kind} 7"]
    assert stalls(hit, more(Line(12.0, ALICE, What.END, ASK, 1, "ask", 1))) == []
    assert stalls(more(Line(12.0, ALICE, What.END, ASK, 1, "ask", 1))) == [FOUR]  # the dead leave nothing behind


def test_a_suspect_may_wait_a_lease_longer_and_no_more() -> None:
    suspect = in_history(lambda history: history.losses[ASK].__setitem__(2, 2))
    table = judge(suspect(good())).table
    assert (table["longest stall per fault, s"], table["  of suspects, s"]) == (0.0, 4.0)
    assert stalls(suspect, beyond_lease_s=-1.9) == []
    assert stalls(suspect, beyond_lease_s=-2.1) == [FOUR.replace("ask/job-1", "ask/job-1, a suspect,")]


def test_while_no_worker_has_been_left_in_peace_for_a_lease_nobody_can_recover() -> None:
    def cut(at_s: float, pid: int) -> Alteration:
        return more_faults(Fault(Kind.CUT_ALL, at_s, at_s, pid))

    nobody_led = in_history(lambda history: history.leads.clear())
    carol = cut(10.7, CAROL)
    assert stalls(nobody_led, carol) == [FOUR]
    assert stalls(nobody_led, cut(10.6, BOB)) == [FOUR]
    assert stalls(nobody_led, carol, cut(10.6, BOB)) == []  # from 13.6 on Bob may recover it
    assert stalls(nobody_led, carol, cut(10.4, BOB)) == [FOUR.replace("4.0", "3.6")]
    handed_back = delivered(ASK, Delivery(8.9, ALICE, 1, 10.5), Delivery(13.6, BOB, 2, 16.0))
    assert stalls(nobody_led, carol, cut(10.6, BOB), handed_back) == [FOUR]


def test_neighbours_of_what_blocks_their_loop_may_wait_for_as_long_as_it_does() -> None:
    def blocked(until_s: float) -> Alteration:
        return both(lambda seen: replace(seen, faults=[Fault(Kind.BLOCK, 10.0, until_s, ALICE)]))

    assert stalls(blocked(10.6)) == []
    assert stalls(blocked(10.4)) == ["ask/job-1 did not move for 3.6 s after event loop blocked by an instance 7"]
    had = [Delivery(8.9, ALICE, 1, 10.1), Delivery(10.1, CAROL, None, 10.8), Delivery(13.6, BOB, 2, 16.0)]
    assert stalls(delivered(ASK, *had), more_faults(Fault(Kind.BLOCK, 10.2, 16.0, CAROL))) == []


# ── timers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def late(*alterations: Alteration) -> list[str]:
    """What is said of a timer that fires 5.5 s after its deadline."""
    due = in_history(lambda history: history.dues_ms.update({(NAP, "nap"): [34_500.0]}))
    complaints = judge(both(due, *alterations)(good())).complaints
    return [each for each in complaints if "late" in each]


def test_a_timer_may_be_a_lease_and_two_seconds_late_after_the_last_fault_of_server_or_leader() -> None:
    said = ["timer 'nap' of nap/job-2, due at 34.500, fired 5.5 s late"]
    assert late() == said
    assert late(more_faults(Fault(Kind.KILL, 35.5, 35.6, BOB))) == []
    assert late(more_faults(Fault(Kind.SERVER, 34.0, 35.5))) == []
    assert late(more_faults(Fault(Kind.KILL, 35.5, 35.6, CAROL))) == said
    assert late(more_faults(Fault(Kind.KILL, 34.0, 34.2, BOB))) == said
    # nobody is there, but for one of them no longer than a lease
    bob, carol = Fault(Kind.STOP, 34.0, 39.0, BOB), Fault(Kind.STOP, 34.0, 39.5, CAROL)
    assert late(more_faults(bob)) == late(more_faults(replace(bob, until_s=37.4), carol)) == said
    assert late(more_faults(bob, carol)) == []


def test_a_timer_is_in_a_calm_if_no_fault_was_in_the_air() -> None:
    row = "  in a calm ({} timers), s"
    for fault, calm in ((Fault(Kind.CUT_ALL, 40.0, 40.0, CAROL), 0), (Fault(Kind.STOP, 33.0, 35.1, CAROL), 0)):
        assert judge(more_faults(fault)(good())).table[row.format(calm)] == 0.0
    assert judge(more_faults(Fault(Kind.STOP, 33.0, 34.9, CAROL))(good())).table[row.format(1)] == 0.01


# ── poison ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "result", "is_fine"),
    [
        ("failed", "WorkerLost: it kills its worker", True),
        ("failed", "StepFailed: something else", False),
        ("completed", ["all", "well"], False),
        ("running", None, False),
        ("running", "WorkerLost: it kills its worker", False),
    ],
)
def test_what_kills_its_workers_must_be_failed_for_it(status: str, result: Any, is_fine: bool) -> None:
    statuses = {**good().left.statuses, ASK: status}
    poisoned = both(invoked(0, fails="WorkerLost", result=result), left(statuses=statuses))
    complaints = judge(poisoned(good())).complaints
    assert complaints == ([] if is_fine else [f"ask/job-1 is {status}, not failed with WorkerLost: {result}"])


# ── what workers leave behind ────────────────────────────────────────────────────────────────────────────────────────


def consumers(pid: int, *, ended_s: float) -> list[str]:
    there = left(consumers=[Consumer("chaos:{0}:stream:ask", pid)])
    seen = replace(there(good()), ended_s=ended_s, gone_s={ALICE: 10.1, BOB: ended_s + 0.5})
    return list(judge(seen).complaints)


def test_the_consumers_of_the_dead_go_within_a_time() -> None:
    assert consumers(ALICE, ended_s=85.0) == []
    assert consumers(ALICE, ended_s=86.1) == [
        "the consumer of worker 7 is left in chaos:{0}:stream:ask, 76 s after the worker was gone"
    ]


def test_who_leaves_in_peace_leaves_no_consumer() -> None:
    assert consumers(BOB, ended_s=60.0) == [
        "worker 8 has left in peace, and its consumer is left in chaos:{0}:stream:ask"
    ]


def _said(level: str, message: str, traceback: str = "", at_s: float | None = 30.0) -> Alteration:
    return lambda seen: replace(seen, said=[Said(BOB, at_s, level, "memable.run", message, traceback)])


@pytest.mark.parametrize(
    ("alter", "complaint"),
    [
        (_said("warning", "nap/job-2 was abandoned"), None),
        (_said("warning", "mend/job-3 failed", "Traceback: broken"), None),
        (_said("error", "WorkerLost: poison/job-9 has lost its worker 5 times in a row"), None),
        (
            _said("error", "nap/job-2 is left to its lease"),
            "at 30.000, level error: nap/job-2 is left to its lease",
        ),
        (_said("critical", "no more"), "level critical: no more"),
        (_said("error", "WorkerLost: nap/job-2 has lost its worker 5 times in a row"), "WorkerLost: nap/job-2"),
        (_said("warning", "nap/job-2 failed", "Traceback: KeyError"), "nap/job-2 failed Traceback: KeyError"),
        (_said("error", "mend/job-3 failed"), "level error: mend/job-3 failed"),
        (_said("", "Exception in thread", at_s=None), "worker 8 wrote past its log: Exception in thread"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_and_tracebacks_in_a_log_are_complaints_unless_they_are_explained(
    alter: Alteration, complaint: str | None
) -> None:
    verdict = judge(alter(good()))
    assert verdict.table["errors in logs"] == len(verdict.complaints) == (0 if complaint is None else 1)
    assert complaint is None or complaint in verdict.complaints[0]


def test_of_a_log_everything_is_read_that_is_no_mere_information(tmp_path: Path) -> None:
    lines = [
        '{"time": "1970-01-01T00:00:01.500+00:00", "level": "info", "logger": "memable", "message": "at work"}',
        '{"time": "1970-01-01T00:00:02.500+00:00", "level": "error", "logger": "memable", "message": ""}',
        '{"time": "1970-01-01T00:00:03.500+00:00", "level": "info", "logger": "memable", "message": "", "error": "T"}',
        "",
        "Traceback (most recent call last):",
        '{"not": "ours"}',
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    assert list(read_log(tmp_path / "log", BOB)) == [
        Said(BOB, 2.5, "error", "memable", ""),
        Said(BOB, 3.5, "info", "memable", "", "T"),
        Said(BOB, None, "", "", lines[4]),
        Said(BOB, None, "", "", lines[5]),
    ]


# ── history ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_aof_tells_who_had_what_from_when_until_when_and_who_led(tmp_path: Path) -> None:
    claim = "FORCE JUSTID"
    commands = f"""
        SET chaos:{{1}}:leader t0 PXAT 3500
        SET chaos:{{0}}:leader 't1 new' PXAT 4000
        XADD chaos:{{0}}:stream:ask 1000-0 i job-1
        HSET chaos:{{0}}:instance:ask/job-1 status queued life a entry 1000-0
        XCLAIM chaos:{{0}}:stream:ask workers host-7-abc 0 1000-0 TIME 1100 RETRYCOUNT 1 {claim}
        XCLAIM chaos:{{0}}:stream:ask workers host-7-abc 0 1000-0 TIME 1900 RETRYCOUNT 1 {claim}
        HSET chaos:{{0}}:instance:ask/job-1 status running lease l1 worker host-7-abc attempt 1
        HINCRBY chaos:{{0}}:instance:ask/job-1 recoveries 1
        XADD chaos:{{0}}:stream:ask 5000-0 i job-1
        HSET chaos:{{0}}:instance:ask/job-1 status queued entry 5000-0
        XCLAIM chaos:{{0}}:stream:ask workers my-host-8-abc 0 5000-0 TIME 5100 RETRYCOUNT 1 {claim}
        HSET chaos:{{0}}:instance:ask/job-1 status running lease l2 worker my-host-8-abc attempt 2
        HSET chaos:{{0}}:instance:ask/job-1 status suspended message answer
        XADD chaos:{{0}}:stream:ask 6000-0 i job-1
        HSET chaos:{{0}}:instance:ask/job-1 status queued entry 6000-0
        XCLAIM chaos:{{0}}:stream:ask workers host-9-abc 0 6000-0 TIME 6100 RETRYCOUNT 1 {claim}
        HSET chaos:{{0}}:instance:ask/job-1 status completed completed_ms 7000
        HSET chaos:{{1}}:instance:ask/job-2 status queued life b entry 1-0
    """
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "a.aof.1.base.aof").touch()
    aof = "".join(
        f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        for words in map(shlex.split, commands.strip().splitlines())
    )
    (tmp_path / "appendonlydir" / "a.aof.1.incr.aof").write_bytes(aof.encode())
    history = read_history(tmp_path, Keys("chaos", partitions=2).partitions)
    assert history.deliveries == {
        ASK: [Delivery(1.1, 7, 1, 5.0), Delivery(5.1, 8, 2, parked=True), Delivery(6.1, 9, None, 7.0)]
    }
    assert history.losses[ASK] == {1: 0, 2: 1}
    assert history.leads == {1: [Lead("t0", 3.5)], 0: [Lead("t1", 4.0)]}
    assert history.partitions == {ASK: 0, "ask/job-2": 1}
