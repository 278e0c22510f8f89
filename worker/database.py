"""One way to open a SQLite file, for effects that several worker processes make at once.

SQLite stands for the database of your own application here. Whatever that is, three things decide whether a step that
writes to it can be repeated safely, and each is a line below: writers wait for each other, a write is all or nothing,
and a write is on disk *before* its step is recorded in Redis.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another one; shorter than the timeout of every step that writes."""


@contextmanager
def connected(path: Path, schema: str) -> Generator[sqlite3.Connection, None, None]:
    """A connection to `path`, which has the tables of `schema`; closed at the end.

    A connection belongs to the thread that opened it, and a sync step may run in any thread of the pool: so each call
    opens its own. `schema` is `CREATE … IF NOT EXISTS` statements separated by `;`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # isolation_level=None: transactions begin where `transaction` says so, never behind the author's back
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        _use_wal(connection)
        # FULL, since with NORMAL a power cut could take back a commit whose step Redis has recorded as done
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            with transaction(connection):
                for statement in filter(str.strip, schema.split(";")):
                    connection.execute(statement)
                connection.execute("PRAGMA user_version = 1")
        yield connection
    finally:
        connection.close()


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None, None, None]:
    """All of the block's writes, or none of them."""
    # IMMEDIATE: a transaction that reads first and writes later is refused at once, whatever the busy timeout says,
    # if somebody else wrote between the two
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # a failed COMMIT may have ended the transaction itself, and a second error would hide the first
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging, in which readers never wait for a writer.

    The switch needs the file for itself and does not heed the busy timeout, so two processes that open a new file at
    the same moment would see one of them fail.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
