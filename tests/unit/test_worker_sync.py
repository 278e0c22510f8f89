"""The writes of `worker`'s sync: repeated, at the same moment, and cut off by SIGKILL, they end in the same rows."""

import multiprocessing
import re
import sqlite3
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from memable.errors import PermanentError
from worker.sync import (
    SyncRequest,
    choose_target,
    compare,
    convert_key,
    in_batches,
    prune,
    read_target,
    upsert,
    upsert_key,
    verify,
)
from worker.zones import SourceRow, Zone, convert_row, digest_of, read_source


@pytest.fixture(scope="module")
def zones() -> list[Zone]:
    source = read_source()
    return [each for row in source.rows if isinstance(each := convert_row(row, source.country_codes), Zone)]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "a folder that is not there yet" / "zones.sqlite3"


def row(name: str, line: int = 1) -> SourceRow:
    return SourceRow(line=line, name=name, countries="AD", coordinates="+4230+00131", comment=None)


def test_an_upsert_repeated_leaves_what_one_leaves_and_says_the_same(target: Path, zones: list[Zone]) -> None:
    first = upsert(target, zones)
    rows = read_target(target)
    second = upsert(target, zones)

    assert first == second == len(zones)
    assert read_target(target) == rows == sorted(zones, key=lambda zone: zone.name)


def test_an_upsert_sets_a_row_that_has_changed(target: Path, zones: list[Zone]) -> None:
    upsert(target, [zones[0].model_copy(update={"comment": "old", "latitude": 0.0, "countries": ("XX",)})])
    upsert(target, zones[:1])
    assert read_target(target) == zones[:1]


def test_an_upsert_writes_all_of_its_rows_or_none(target: Path, zones: list[Zone]) -> None:
    bad = zones[1].model_copy(update={"latitude": None})
    with pytest.raises(sqlite3.IntegrityError):
        upsert(target, [zones[0], bad])
    assert read_target(target) == []


def test_two_processes_that_write_the_same_batches_at_the_same_time_end_in_equal_rows(
    target: Path, zones: list[Zone]
) -> None:
    # as after a takeover from a worker that is not dead but late: both are at the same batches, in opposite order
    batches = list(in_batches(zones, 16))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        written = [
            pool.submit(upsert, target, batch)
            for pair in zip(batches, reversed(batches), strict=True)
            for batch in pair
        ]
        assert sum(each.result() for each in written) == 2 * len(zones)
    assert compare(target).equal


def test_a_writer_killed_in_its_transaction_leaves_nothing_and_holds_nobody_up(target: Path, zones: list[Zone]) -> None:
    upsert(target, zones[:1])
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from worker.database import connected, transaction\n"
        "from worker.sync import SCHEMA\n"
        "with connected(Path(sys.argv[1]), SCHEMA) as connection, transaction(connection):\n"
        "    connection.execute('DELETE FROM zone')\n"
        "    print('deleted', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"deleted\n"
        victim.kill()

    assert read_target(target) == zones[:1]
    upsert(target, zones)
    assert compare(target).equal


def test_prune_removes_what_the_source_no_longer_has_and_nothing_more(target: Path, zones: list[Zone]) -> None:
    upsert(target, [*zones, zones[0].model_copy(update={"name": "Europe/Atlantis"})])
    names = [zone.name for zone in zones]
    assert prune(target, names) == prune(target, names) == len(zones)
    assert compare(target).equal


def test_verify_hands_back_the_digest_of_a_target_that_is_right(target: Path, zones: list[Zone]) -> None:
    upsert(target, zones)
    assert verify(target, list(reversed(zones))) == digest_of(zones)


def test_verify_never_retries_a_target_that_is_wrong_and_says_what_is(target: Path, zones: list[Zone]) -> None:
    upsert(target, zones[1:])
    with pytest.raises(PermanentError, match=f"1 differ: {zones[0].name}: missing"):
        verify(target, zones)


def test_a_target_that_is_not_there_is_empty_and_looking_does_not_make_it(target: Path) -> None:
    comparison = compare(target)
    assert not target.exists()
    assert (comparison.target_rows, comparison.equal) == (0, False)
    assert len(comparison.differences) == comparison.source_rows > 300


def test_a_file_without_the_table_is_empty_too(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert read_target(tmp_path / "empty") == []


def test_compare_names_each_difference(target: Path, zones: list[Zone]) -> None:
    upsert(target, [*zones[2:], zones[0].model_copy(update={"latitude": 1.0})])
    comparison = compare(target)
    assert (comparison.source_rows, comparison.target_rows, comparison.equal) == (len(zones), len(zones) - 1, False)
    assert sorted(line.split(":")[0] for line in comparison.differences) == sorted(zone.name for zone in zones[:2])


def test_every_real_row_has_a_key_of_its_own_that_can_be_one() -> None:
    rows = read_source().rows
    keys = {convert_key(each) for each in rows}
    keys |= {upsert_key(batch) for batch in in_batches(rows, 16)}
    assert len(keys) == len(rows) + len(list(in_batches(rows, 16)))
    for key in keys:
        assert re.fullmatch(r"[^/~\x00-\x1f_][^/~\x00-\x1f]{0,199}", key), key


def test_two_names_never_share_a_key() -> None:
    names = ["a/b", "a:b", "a%3Ab", "a~b", "a b", "a\nb", "aéb", "a_b", "a-b"]
    keys = [convert_key(row(name)) for name in names]
    assert len(set(keys)) == len(names)
    assert keys[0] == "convert[a:b]:v1"
    assert not set("/~\n").intersection("".join(keys))


def test_a_batch_is_named_by_the_lines_it_writes() -> None:
    rows = [row(f"zone{line}", line) for line in (3, 4, 8, 9, 11)]
    assert [upsert_key(batch) for batch in in_batches(rows, 2)] == [
        "upsert[3-4]:v1",
        "upsert[8-9]:v1",
        "upsert[11-11]:v1",
    ]


def test_a_target_is_absolute_and_the_request_comes_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_target(None, Path("default")) == tmp_path / "default"
    assert choose_target(Path("asked"), Path("default")) == tmp_path / "asked"


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"pace_s": -1}, {"pace_s": float("nan")}, {"batch_size": "many"}])
def test_a_request_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SyncRequest.model_validate(bad)
