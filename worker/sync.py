"""The `sync` workflow: the IANA zone table of `tzdata`, converted row by row into a SQLite file.

It shows how to write a pipeline that may be killed anywhere: a snapshot of the source in the first record, a step with
a key of its own for each piece of work, writes that may be repeated, and a check of the end state at the end.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from memable import Context, PermanentError
from worker.database import connected, transaction
from worker.zones import Rejected, SourceRow, Zone, convert_row, differences, digest_of, read_source

T = TypeVar("T")

SCHEMA = """
CREATE TABLE IF NOT EXISTS zone (
    name TEXT PRIMARY KEY, countries TEXT NOT NULL, latitude REAL NOT NULL, longitude REAL NOT NULL, comment TEXT
)
"""
UPSERT = """
INSERT INTO zone (name, countries, latitude, longitude, comment) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    countries = excluded.countries, latitude = excluded.latitude, longitude = excluded.longitude,
    comment = excluded.comment
"""
WRITE_TIMEOUT_S = 20.0


class SyncRequest(BaseModel):
    """What to sync, and how fast."""

    model_config = ConfigDict(frozen=True)

    target: Path | None = None
    """The SQLite file; default: the worker's `WORKER_TARGET`."""
    batch_size: int = Field(default=16, ge=1, le=1000)
    """Rows that are converted at the same time and written in one transaction."""
    pace_s: float = Field(default=0.0, ge=0, le=10)
    """How long each batch dawdles between its write and its record, so that there is time to kill a worker there."""


class SyncReport(BaseModel):
    """What a sync did; every row of the source is counted in `rows` or listed in `rejected`."""

    model_config = ConfigDict(frozen=True)

    target: Path
    source_version: str
    source_digest: str
    rows: int
    digest: str
    """Of the rows in the target, as read back by the last step."""
    rejected: tuple[Rejected, ...]


class Comparison(BaseModel):
    """A target beside its source."""

    model_config = ConfigDict(frozen=True)

    source_rows: int
    """Rows of the source that can be converted."""
    target_rows: int
    equal: bool
    differences: tuple[str, ...]
    """One line for each zone that is missing, differs, or is not in the source."""
    rejected: tuple[Rejected, ...] = ()
    """Rows of the source that cannot be converted; they are expected to be absent and make no difference."""


async def sync_zones(ctx: Context, request: SyncRequest) -> SyncReport:
    """Bring the target to the state of the zone table, and prove it.

    Every key ends in a version: a change of *what a step means* gets a new one, and instances under way do that step
    again, while a refactoring keeps the key and the records with it.

    - `target:v1`: settings are read once and recorded. Otherwise a deployment with another `WORKER_TARGET` half-way
      would leave an instance with its rows in two files.
    - `source:v1`: the whole table, 36 kB as JSON, since it fits in a record. Workers with another `tzdata`
      installed then go on with the rows that the instance began with. (A source of another size would be recorded as a
      list of pages with their digests.)
    - `convert[ZONE]:v1`: by the row's name, not by its place in a list: rows may be reordered or filtered by later
      code, and each keeps its own record. See `convert_key`.
    - `upsert[FIRST-LAST]:v1`: by the lines that it writes, not by the batch's number: with another way to cut batches,
      "batch 3" would have a record and other rows, which nobody would then write. See `upsert_key`.
      A `convert…:v2` that makes something else of a row needs an `upsert…:v2` beside it, or what it makes is not
      written where `v1` has a record (`verify` would say so).
    - `prune:v1`, `verify:v1`: once in an instance, after all batches.
    """
    target = await ctx.step("target:v1", choose_target, request.target, ctx.resources["settings"].target)
    source = await ctx.step("source:v1", read_source)

    zones: list[Zone] = []
    rejected = list(source.rejected)
    for batch in in_batches(source.rows, request.batch_size):
        # retry=None: a pure function that failed once fails again
        converted = await asyncio.gather(
            *(ctx.step(convert_key(row), convert_row, row, source.country_codes, retry=None) for row in batch)
        )
        valid = [each for each in converted if isinstance(each, Zone)]
        rejected += [each for each in converted if isinstance(each, Rejected)]
        # one batch after the other: SQLite has one writer at a time, more would only wait for each other
        await ctx.step(upsert_key(batch), upsert, target, valid, request.pace_s, timeout=WRITE_TIMEOUT_S)
        zones += valid
        ctx.set_status(f"{len(zones)} of {len(source.rows)} zones")

    for each in rejected:
        ctx.logger.warning("line %d of the zone table is rejected: %s", each.line, each.reason)
    names = [zone.name for zone in zones]
    await ctx.step("prune:v1", prune, target, names, timeout=WRITE_TIMEOUT_S)
    digest = await ctx.step("verify:v1", verify, target, zones, timeout=WRITE_TIMEOUT_S)
    return SyncReport(
        target=target,
        source_version=source.version,
        source_digest=source.digest,
        rows=len(zones),
        digest=digest,
        rejected=tuple(rejected),
    )


def convert_key(row: SourceRow) -> str:
    """The key of a row's conversion: one for each zone name, and readable in `redis-cli`.

    `/` cannot stand in a key, so it becomes `:`, which no zone name has; anything else unusual is written as `%XX`, so
    that two names never share a key.

    >>> convert_key(SourceRow(line=9, name="America/Port-au-Prince", countries="", coordinates="", comment=None))
    'convert[America:Port-au-Prince]:v1'
    """
    return f"convert[{re.sub(r'[^A-Za-z0-9_+.-]', _escape, row.name)}]:v1"


def upsert_key(batch: Sequence[SourceRow]) -> str:
    """The key of a batch's write: the lines of the recorded snapshot that it covers."""
    return f"upsert[{batch[0].line}-{batch[-1].line}]:v1"


def in_batches(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`rows` in order, cut into pieces of at most `size`."""
    return (rows[start : start + size] for start in range(0, len(rows), size))


def choose_target(requested: Path | None, default: Path) -> Path:
    """The target as an absolute path, since the worker that goes on may have another working directory."""
    return (requested or default).resolve()


def upsert(target: Path, zones: Sequence[Zone], pace_s: float = 0.0) -> int:
    """Write the zones, all or none, and return how many of the target's rows are theirs.

    Called twice, as after a crash between this write and its record, it leaves what one call leaves: each row is found
    by its name and set, never added to. The result is what holds afterwards, not what this call changed: the second
    call changes nothing and must return the same.
    """
    rows = [(zone.name, ",".join(zone.countries), zone.latitude, zone.longitude, zone.comment) for zone in zones]
    with connected(target, SCHEMA) as connection, transaction(connection):
        connection.executemany(UPSERT, rows)
    # after the commit: whoever is killed here has done the effect and not recorded it, the worst moment there is
    time.sleep(pace_s)
    return len(rows)


def prune(target: Path, names: Sequence[str]) -> int:
    """Remove the zones that an earlier table had and this one has not; returns how many rows are left.

    Says what is to stay, never what is to go: repeated, it finds nothing to do.
    """
    with connected(target, SCHEMA) as connection, transaction(connection):
        present = {name for (name,) in connection.execute("SELECT name FROM zone")}
        stale = present.difference(names)
        connection.executemany("DELETE FROM zone WHERE name = ?", [(name,) for name in sorted(stale)])
    return len(present) - len(stale)


def verify(target: Path, expected: Sequence[Zone]) -> str:
    """The digest of the target's rows; `PermanentError` if they are not exactly the expected ones.

    Permanent, since a second look finds the same: somebody else writes to this target, or a write was lost.
    """
    found = read_target(target)
    digest = digest_of(found)
    if len(found) != len(expected) or digest != digest_of(expected):
        lines = differences(expected, found)
        raise PermanentError(
            f"{target} has {len(found)} rows where the source has {len(expected)}, and {len(lines)} differ: "
            + "; ".join(lines[:3])
        )
    return digest


def read_target(target: Path) -> list[Zone]:
    """The zones in the target, in order of names; none if there is no such file or table. Never creates anything."""
    if not target.is_file():
        return []
    connection = sqlite3.connect(f"{target.resolve().as_uri()}?mode=ro", uri=True)
    try:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'zone'").fetchone() is None:
            return []
        rows = connection.execute("SELECT name, countries, latitude, longitude, comment FROM zone ORDER BY name")
        return [
            Zone(
                name=name,
                countries=tuple(countries.split(",")),
                latitude=latitude,
                longitude=longitude,
                comment=comment,
            )
            for name, countries, latitude, longitude, comment in rows
        ]
    finally:
        connection.close()


def compare(target: Path) -> Comparison:
    """The target beside the zone table of the installed `tzdata`, converted afresh: no record is trusted."""
    source = read_source()
    converted = [convert_row(row, source.country_codes) for row in source.rows]
    expected = [each for each in converted if isinstance(each, Zone)]
    found = read_target(target)
    lines = differences(expected, found)
    return Comparison(
        source_rows=len(expected),
        target_rows=len(found),
        equal=not lines,
        differences=lines,
        rejected=(*source.rejected, *(each for each in converted if isinstance(each, Rejected))),
    )


def _escape(match: re.Match[str]) -> str:
    return ":" if match[0] == "/" else "".join(f"%{byte:02X}" for byte in match[0].encode())
