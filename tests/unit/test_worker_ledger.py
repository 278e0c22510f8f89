"""The provider that `worker`'s approval pays: one effect for each idempotency key, however it is called."""

import multiprocessing
import sqlite3
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from memable.errors import PermanentError
from worker import database
from worker.database import connected, transaction
from worker.ledger import DECLINED_CARD, SCHEMA, Action, Call, Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite3", funds_cents=1000)


def call(key: str, attempt: int = 1) -> Call:
    return Call(idempotency_key=key, instance_id="order-1", attempt=attempt)


def test_the_same_key_gets_the_first_answer_and_has_no_second_effect(ledger: Ledger) -> None:
    first = ledger.charge(call("k1"), "o1", "visa", 700)
    again = ledger.charge(call("k1", attempt=2), "o1", "visa", 700)

    assert first == again
    audit = ledger.audit()
    assert (audit.calls, audit.repeated_calls, audit.effects[Action.CHARGE]) == (2, 1, 1)
    assert (audit.balance_cents, audit.doubled) == (700, ())


def test_a_key_used_for_something_else_is_refused_for_good(ledger: Ledger) -> None:
    ledger.charge(call("k1"), "o1", "visa", 100)
    with pytest.raises(PermanentError, match="'k1' was used to charge order o1"):
        ledger.charge(call("k1"), "o1", "visa", 200)
    with pytest.raises(PermanentError, match="'k1' was used"):
        ledger.ship(call("k1"), "o1")


def test_another_key_is_another_charge_and_the_audit_sees_it(ledger: Ledger) -> None:
    ledger.charge(call("k1"), "o1", "visa", 100)
    ledger.charge(call("k2"), "o1", "visa", 100)
    assert ledger.audit().doubled == ("charge o1",)


def test_a_declined_card_and_one_without_funds_are_refused_for_good_and_charge_nothing(ledger: Ledger) -> None:
    with pytest.raises(PermanentError, match="declined"):
        ledger.charge(call("k1"), "o1", DECLINED_CARD, 1)
    ledger.charge(call("k2"), "o2", "visa", 700)
    with pytest.raises(PermanentError, match="insufficient funds: card visa has 300 cents left"):
        ledger.charge(call("k3"), "o3", "visa", 301)

    audit = ledger.audit()
    assert (audit.calls, audit.effects[Action.CHARGE], audit.balance_cents) == (3, 1, 700)


def test_a_refund_gives_the_charge_back_once(ledger: Ledger) -> None:
    charge = ledger.charge(call("k1"), "o1", "visa", 1000)
    assert ledger.refund(call("k2"), charge) == ledger.refund(call("k2"), charge)
    assert ledger.audit().balance_cents == 0
    assert ledger.charge(call("k3"), "o2", "visa", 1000).amount_cents == 1000


def test_what_was_answered_before_is_answered_again_even_when_the_funds_are_gone(ledger: Ledger) -> None:
    charge = ledger.charge(call("k1"), "o1", "visa", 1000)
    assert ledger.charge(call("k1"), "o1", "visa", 1000) == charge


def test_an_empty_ledger_can_be_audited(ledger: Ledger) -> None:
    assert ledger.audit().effects == {Action.CHARGE: 0, Action.REFUND: 0, Action.SHIP: 0}


def test_threads_with_the_same_key_at_the_same_moment_charge_once(tmp_path: Path) -> None:
    # on a new file each time: they also race for creating it
    for number in range(5):
        ledger = Ledger(tmp_path / f"{number}.sqlite3")
        together = Barrier(6)

        def charge(ledger: Ledger = ledger, together: Barrier = together) -> str:
            together.wait()
            return ledger.charge(call("k1"), "o1", "visa", 5).reference

        with ThreadPoolExecutor(6) as pool:
            futures = [pool.submit(charge) for _ in range(6)]
            assert len({future.result() for future in futures}) == 1
        audit = ledger.audit()
        assert (audit.calls, audit.effects[Action.CHARGE], audit.balance_cents) == (6, 1, 5)


def test_processes_with_the_same_keys_charge_once_each(ledger: Ledger) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [
            pool.submit(ledger.charge, call(f"k{number}"), f"o{number}", "visa", 10)
            for number in range(20)
            for _ in range(3)
        ]
        references = {future.result().reference for future in futures}
    audit = ledger.audit()
    assert len(references) == 20
    assert (audit.calls, audit.effects[Action.CHARGE], audit.doubled) == (60, 20, ())


def test_concurrent_charges_with_keys_of_their_own_never_overdraw_a_card(ledger: Ledger) -> None:
    together = Barrier(6)

    def charge(number: int) -> bool:
        together.wait()
        try:
            ledger.charge(call(f"k{number}"), f"o{number}", "visa", 300)
        except PermanentError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(charge, range(6))) == 3
    assert ledger.audit().balance_cents == 900


def test_a_ledger_is_write_ahead_logged_and_synchronous(ledger: Ledger) -> None:
    with connected(ledger.path, SCHEMA) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (database.BUSY_TIMEOUT_S * 1000,)


def test_readers_do_not_wait_for_a_writer(ledger: Ledger) -> None:
    ledger.charge(call("k1"), "o1", "visa", 5)
    with connected(ledger.path, SCHEMA) as connection, transaction(connection):
        connection.execute("DELETE FROM effect")
        assert ledger.audit().balance_cents == 5


def test_a_writer_that_waits_longer_than_the_busy_timeout_fails_in_a_way_that_is_retried(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.audit()
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    with (
        connected(ledger.path, SCHEMA) as connection,
        transaction(connection),
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        ledger.charge(call("k1"), "o1", "visa", 5)
    assert ledger.charge(call("k1"), "o1", "visa", 5).amount_cents == 5


def test_a_transaction_that_fails_leaves_nothing_and_the_first_error(ledger: Ledger) -> None:
    def write_and_fail(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO effect VALUES ('k', 'r', 'charge', 'o', 'c', 1, 1, '')")
            raise ZeroDivisionError

    with connected(ledger.path, SCHEMA) as connection:
        with pytest.raises(ZeroDivisionError):
            write_and_fail(connection)
        assert not connection.in_transaction
    assert ledger.audit().balance_cents == 0
