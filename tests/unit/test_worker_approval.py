"""The plain parts of `worker`'s approval: models, retry policies, settings, and what the provider is told."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest

import worker
from memable.errors import PermanentError, StepTimeout
from worker import approval, database
from worker.approval import CALL_TIMEOUT_S, PROVIDER_RETRY, REFUND_RETRY, Decision, Order, Receipt
from worker.ledger import Action, Ledger
from worker.settings import WorkerAppSettings
from worker.sync import WRITE_TIMEOUT_S


@dataclass
class FakeStep:
    idempotency_key: str
    instance_id: str = "order-1"
    attempt: int = 1


ORDER = Order(id="o1", amount_cents=950)


def test_a_step_hands_its_idempotency_key_to_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite3")

    def as_step(key: str, attempt: int) -> None:
        monkeypatch.setattr(approval, "current_step", lambda: FakeStep(key, attempt=attempt))

    as_step("charge-key", 1)
    charge = approval.charge_card(ledger, ORDER)
    as_step("charge-key", 2)
    assert approval.charge_card(ledger, ORDER) == charge
    as_step("refund-key", 1)
    refund = approval.refund_card(ledger, charge)
    as_step("ship-key", 1)
    approval.ship_order(ledger, ORDER.id)

    assert charge.amount_cents + refund.amount_cents == 0
    audit = ledger.audit()
    assert (audit.calls, audit.repeated_calls, audit.doubled) == (4, 1, ())
    assert audit.effects == {Action.CHARGE: 1, Action.REFUND: 1, Action.SHIP: 1}


def test_what_may_pass_is_retried_and_a_declined_card_is_not() -> None:
    timeout = StepTimeout("step", key="charge:v1", attempts=1, error_type="TimeoutError", error_message="")
    for policy in (PROVIDER_RETRY, REFUND_RETRY):
        assert policy.allows(sqlite3.OperationalError("database is locked"))
        assert policy.allows(ConnectionResetError())
        assert policy.allows(timeout)
        assert not policy.allows(PermanentError("declined"))
    assert not PROVIDER_RETRY.allows(ValueError("a mistake in the code"))


def test_a_writer_gives_up_waiting_before_its_step_times_out() -> None:
    longest_pace_s = longest_latency_s = 10
    assert 2 * database.BUSY_TIMEOUT_S + longest_latency_s < CALL_TIMEOUT_S
    assert database.BUSY_TIMEOUT_S + longest_pace_s < WRITE_TIMEOUT_S


@pytest.mark.parametrize("bad", [{"id": ""}, {"amount_cents": 0}, {"amount_cents": 9.5}, {"cooling_off_s": -1}])
def test_an_order_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Order.model_validate({"id": "o1", "amount_cents": 1} | bad)


def test_models_survive_json_as_records_would() -> None:
    receipt = Receipt(order_id="o1", status="refused", decided_by="ann", charge="c", refund="r", charged_cents=0)
    for model in (ORDER, Decision(approved=True, by="ann"), receipt):
        assert type(model).model_validate_json(model.model_dump_json(), strict=True) == model


def test_settings_come_from_the_environment_with_their_own_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_LEDGER", "/somewhere/books")
    monkeypatch.setenv("WORKER_PROVIDER_LATENCY_S", "0.5")
    monkeypatch.setenv("MEMABLE_TARGET", "/not/ours")
    settings = WorkerAppSettings()
    assert settings.ledger == Path("/somewhere/books")
    assert settings.provider_latency_s == 0.5
    assert settings.target.name == "zones.sqlite3"


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_CARD_FUNDS_CENTS", "-1")
    with pytest.raises(ValueError, match="card_funds_cents"):
        WorkerAppSettings()


def test_the_package_has_no_attributes_by_accident() -> None:
    with pytest.raises(AttributeError, match="WorkerSetings"):
        _ = worker.WorkerSetings
