"""The outside world of the `approval` workflow: a payment provider and a warehouse, in one SQLite file.

It behaves as real ones do: it takes an idempotency key with each request, and a request whose key it has seen gets the
first answer again, without a second effect. Beside the *effects* it writes down every *call*, so that anybody can
count afterwards: a step may be called more than once, its effect exists once.
"""

from __future__ import annotations

import os
import sqlite3
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from memable import PermanentError
from worker.database import connected, transaction

DECLINED_CARD = "card_declined"
"""The card that the provider always declines, as the sandboxes of payment providers have one."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS call (
    id INTEGER PRIMARY KEY, idempotency_key TEXT NOT NULL, action TEXT NOT NULL, order_id TEXT NOT NULL,
    instance_id TEXT NOT NULL, attempt INTEGER NOT NULL, pid INTEGER NOT NULL, called_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS effect (
    idempotency_key TEXT PRIMARY KEY, reference TEXT NOT NULL, action TEXT NOT NULL, order_id TEXT NOT NULL,
    card TEXT NOT NULL, amount_cents INTEGER NOT NULL, pid INTEGER NOT NULL, done_at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS effect_by_card ON effect (card);
CREATE INDEX IF NOT EXISTS effect_by_order ON effect (order_id, action)
"""


class Action(StrEnum):
    """What the outside world can be asked to do for an order."""

    CHARGE = "charge"
    REFUND = "refund"
    SHIP = "ship"


class Call(BaseModel):
    """Who asks: the step's idempotency key decides, the rest is for the books."""

    model_config = ConfigDict(frozen=True)

    idempotency_key: str
    instance_id: str
    attempt: int


class Effect(BaseModel):
    """Something that was done, once."""

    model_config = ConfigDict(frozen=True)

    reference: str
    """The provider's own number for it."""
    action: Action
    order_id: str
    card: str
    amount_cents: int
    """What it takes from the card; negative for a refund, zero for a shipment."""


class Audit(BaseModel):
    """What the books say in the end."""

    model_config = ConfigDict(frozen=True)

    calls: int
    effects: dict[Action, int]
    repeated_calls: int
    """Calls beyond the first of their key: the work that crashes and retries made."""
    doubled: tuple[str, ...]
    """`ACTION ORDER` for each order that had the same thing done to it more than once; empty if all went well."""
    balance_cents: int
    """What all cards together have paid."""


class Ledger:
    """The provider's books; safe for any number of threads and processes.

    `funds_cents` is what every card has to spend. `latency_s` is how long the answer takes *after* the effect is done:
    a worker that is killed meanwhile leaves an effect that nobody has recorded, which is what idempotency keys are for.
    """

    def __init__(self, path: Path, *, funds_cents: int = 100_000_000, latency_s: float = 0.0) -> None:
        self.path, self.funds_cents, self.latency_s = path, funds_cents, latency_s

    def charge(self, call: Call, order_id: str, card: str, amount_cents: int) -> Effect:
        """Take the amount from the card, once for each idempotency key.

        `PermanentError` for a declined card or one without the funds, and for a key that was used for something else.
        """
        return self._perform(call, Action.CHARGE, order_id, card, amount_cents)

    def refund(self, call: Call, charge: Effect) -> Effect:
        """Give back what `charge` took, once for each idempotency key."""
        return self._perform(call, Action.REFUND, charge.order_id, charge.card, -charge.amount_cents)

    def ship(self, call: Call, order_id: str) -> Effect:
        """Send the order's goods, once for each idempotency key."""
        return self._perform(call, Action.SHIP, order_id, card="", amount_cents=0)

    def audit(self) -> Audit:
        """Count calls and effects, and look for anything that was done twice."""
        with connected(self.path, SCHEMA) as connection:
            # one read transaction: the numbers belong to the same moment
            connection.execute("BEGIN")
            calls, keys = connection.execute("SELECT count(*), count(DISTINCT idempotency_key) FROM call").fetchone()
            counted: dict[str, int] = dict(connection.execute("SELECT action, count(*) FROM effect GROUP BY action"))
            # by order, not by key: a key is unique by construction, and a wrong one would go unseen
            doubled = connection.execute(
                "SELECT action || ' ' || order_id FROM effect GROUP BY action, order_id HAVING count(*) > 1 ORDER BY 1"
            ).fetchall()
            balance_cents = connection.execute("SELECT coalesce(sum(amount_cents), 0) FROM effect").fetchone()[0]
        return Audit(
            calls=calls,
            effects={action: counted.get(action, 0) for action in Action},
            repeated_calls=calls - keys,
            doubled=tuple(line for (line,) in doubled),
            balance_cents=balance_cents,
        )

    def _perform(self, call: Call, action: Action, order_id: str, card: str, amount_cents: int) -> Effect:
        with connected(self.path, SCHEMA) as connection:
            # a transaction of its own: a call that is refused, or killed before its effect, was a call too
            connection.execute(
                "INSERT INTO call (idempotency_key, action, order_id, instance_id, attempt, pid, called_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (call.idempotency_key, action, order_id, call.instance_id, call.attempt, os.getpid(), _now()),
            )
            # looking for the key and writing the effect are one transaction, or two calls at the same moment would
            # both find nothing
            with transaction(connection):
                effect = self._known(connection, call.idempotency_key)
                if effect is None:
                    effect = self._new(connection, call, action, order_id, card, amount_cents)
                elif (effect.action, effect.order_id, effect.card, effect.amount_cents) != (
                    action, order_id, card, amount_cents
                ):  # fmt: skip
                    raise PermanentError(
                        f"idempotency key {call.idempotency_key!r} was used to {effect.action} order "
                        f"{effect.order_id} already, with {effect.amount_cents} cents"
                    )
        time.sleep(self.latency_s)
        return effect

    def _known(self, connection: sqlite3.Connection, idempotency_key: str) -> Effect | None:
        row = connection.execute(
            "SELECT reference, action, order_id, card, amount_cents FROM effect WHERE idempotency_key = ?",
            (idempotency_key,),
        ).fetchone()
        if row is None:
            return None
        reference, action, order_id, card, amount_cents = row
        return Effect(
            reference=reference, action=Action(action), order_id=order_id, card=card, amount_cents=amount_cents
        )

    def _new(
        self, connection: sqlite3.Connection, call: Call, action: Action, order_id: str, card: str, amount_cents: int
    ) -> Effect:
        if action is Action.CHARGE:
            self._check_funds(connection, card, amount_cents)
        number = connection.execute("SELECT count(*) + 1 FROM effect").fetchone()[0]
        reference = f"{action}-{number:06d}"
        connection.execute(
            "INSERT INTO effect (idempotency_key, reference, action, order_id, card, amount_cents, pid, done_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (call.idempotency_key, reference, action, order_id, card, amount_cents, os.getpid(), _now()),
        )
        return Effect(reference=reference, action=action, order_id=order_id, card=card, amount_cents=amount_cents)

    def _check_funds(self, connection: sqlite3.Connection, card: str, amount_cents: int) -> None:
        if card == DECLINED_CARD:
            raise PermanentError(f"card {card} was declined")
        spent_cents = connection.execute(
            "SELECT coalesce(sum(amount_cents), 0) FROM effect WHERE card = ?", (card,)
        ).fetchone()[0]
        if spent_cents + amount_cents > self.funds_cents:
            raise PermanentError(
                f"insufficient funds: card {card} has {self.funds_cents - spent_cents} cents left, "
                f"and {amount_cents} were asked for"
            )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
