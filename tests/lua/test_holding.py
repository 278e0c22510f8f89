"""claim, renew, release, recover, drop_consumer: who has an instance, and how it changes hands."""

from __future__ import annotations

import json

import pytest

from memable.errors import StorageError
from memable.holding import Held, LeaseLost
from memable.lua import Answer
from memable.state import Status
from memable.store import new_token
from tests.lua.stage import DONE, LONG_MS, STEP, YES, Stage, approval, timer

LEASE_MS = 3_600_000
"""Longer than any test: only entries that were made idle are."""


# ── claim ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_claim_brings_all_that_a_run_needs(stage: Stage) -> None:
    keys = await stage.invoke()
    (held,) = await stage.deliver(keys)
    claim = await stage.store.claim(held, "w1")
    assert stage.answered() is Answer.DONE
    fields = await stage.fields(keys)
    assert (claim.life, claim.input, claim.progress) == (fields["life"], b'{"id":"42"}', "")
    assert (claim.attempt, claim.recoveries, claim.steps) == (1, 0, {})
    assert claim.started_ms == int(fields["started_ms"])
    assert (fields["worker"], fields["lease"]) == ("w1", held.lease)
    assert fields["control"] == keys.partition.control("w1")


async def test_the_next_run_finds_the_records_and_the_first_start(stage: Stage) -> None:
    keys = await stage.invoke()
    (held,) = await stage.deliver(keys)
    first = await stage.store.claim(held, "w1")
    await stage.store.record(held, "charge", STEP, 1)
    await stage.recover(held)
    (held,) = await stage.deliver(keys, "w2")
    claim = await stage.store.claim(held, "w2")
    assert (claim.attempt, claim.recoveries, claim.started_ms) == (2, 1, first.started_ms)
    assert list(claim.steps) == [b"charge"]


async def test_a_claim_made_again_gets_the_same_and_counts_nothing_twice(stage: Stage) -> None:
    await stage.run()
    first = await stage.last_call.reply
    before = await stage.check()
    again = await stage.again()
    assert (again[:9], again[10:]) == (first[:9], first[10:])  # all but the time
    assert await stage.check() == before


async def test_a_delivery_that_is_claimed_already_is_refused(stage: Stage) -> None:
    held = await stage.run()
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await stage.store.claim(Held(held.keys, held.entry, new_token()), "w2")
    assert stage.answered() is Answer.LEASE_LOST
    assert await stage.check() == before


async def test_a_delivery_of_the_past_is_acknowledged_and_removed(stage: Stage) -> None:
    keys = await stage.invoke()
    (stale,) = await stage.deliver(keys)
    assert await stage.recover(stale) is Answer.DONE
    # a failover can bring back what was acknowledged
    await stage.command("XGROUP", "SETID", keys.stream, "workers", 0)
    entry = await stage.command("XADD", keys.stream, "*", "i", "42")
    deliveries = await stage.deliver(keys, "w2")
    assert deliveries[-1].entry == entry.decode()
    with pytest.raises(LeaseLost):
        await stage.store.claim(deliveries[-1], "w2")
    assert stage.answered() is Answer.STALE
    await stage.store.claim(deliveries[0], "w2")
    assert await stage.status(keys) is Status.RUNNING


async def test_a_delivery_of_an_instance_that_is_gone_is_removed(stage: Stage) -> None:
    keys = await stage.invoke()
    (held,) = await stage.deliver(keys)
    await stage.command("DEL", keys.instance)
    await stage.command("ZREM", keys.index(Status.QUEUED), keys.instance_id)
    with pytest.raises(LeaseLost):
        await stage.store.claim(held, "w1")
    assert stage.answered() is Answer.STALE
    assert await stage.command("XLEN", keys.stream) == 0


# ── renew ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_renewing_makes_an_entry_look_alive(stage: Stage) -> None:
    held = await stage.run()
    await stage.make_idle(held, 2 * LEASE_MS)
    assert await stage.renew("w1", held) == [0]
    pending = await stage.pending(held)
    assert pending is not None
    assert pending[1] < LEASE_MS
    assert pending[2] == 1, "renewing is no delivery"
    assert await stage.recover(held, lease_ms=LEASE_MS) is Answer.NOT_REACHED


async def test_a_worker_that_was_stopped_for_long_steals_nothing_back(stage: Stage) -> None:
    held = await stage.run()
    other = await stage.claimed_by_another(held.keys)
    await stage.make_idle(other, 2 * LEASE_MS)
    before, pending = await stage.check(), await stage.pending(other)
    assert await stage.renew("w1", held) == [Answer.LEASE_LOST]
    # not even if it has learnt the new entry
    assert await stage.renew("w1", Held(held.keys, other.entry, held.lease)) == [Answer.LEASE_LOST]
    assert await stage.check() == before
    now = await stage.pending(other)
    assert pending is not None
    assert now is not None
    assert now[0] == "w2"
    assert now[1] >= pending[1]


async def test_each_of_many_is_told_its_own_news(stage: Stage) -> None:
    told, quiet, parked, gone = [await stage.run(each) for each in ("told", "quiet", "parked", "gone")]
    await stage.store.open(told, [approval("a"), approval("b")], [])
    await stage.store.signal(told.keys, "a", "s1", YES)
    await stage.store.signal(told.keys, "b", "s2", YES)
    await stage.store.park(parked, [approval()], [], "")
    await stage.delete(gone.keys)
    before = await stage.check()
    lost = Answer.LEASE_LOST
    assert await stage.renew("w1", told, quiet, parked, gone) == [2, 0, lost, lost]
    assert await stage.again() == [2, 0, lost, lost]
    assert await stage.check() == before


async def test_a_batch_of_renewals_fits_into_one_call(stage: Stage) -> None:
    """As many as the keeper of leases sends at once."""
    held = await stage.run()
    assert await stage.renew("w1", *[held] * 500) == [0] * 500


async def test_renewing_never_brings_back_an_entry_that_is_not_pending(stage: Stage) -> None:
    held = await stage.run()
    await stage.command("XACK", held.keys.stream, "workers", held.entry)
    await stage.renew("w1", held)
    assert await stage.pending(held) is None
    await stage.delete(held.keys)


async def test_a_lease_lasts_from_its_claim_also_if_the_delivery_had_waited_for_longer(stage: Stage) -> None:
    # in a worker that was stopped between the two, or was given work in the moment in which it was stopped
    keys = await stage.invoke()
    (held,) = await stage.deliver(keys)
    await stage.make_idle(held, 2 * LEASE_MS)
    await stage.store.claim(held, "w1")
    assert await stage.recover(held, lease_ms=LEASE_MS) is Answer.NOT_REACHED


# ── release ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_handed_back_can_be_taken_at_once(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval()], [])
    await stage.store.release(held)
    assert stage.answered() is Answer.DONE
    fields = await stage.fields(held.keys)
    assert fields["status"] == "queued"
    assert fields["entry"] != held.entry
    assert "recoveries" not in fields
    await stage.take(held.keys, "w2")


async def test_a_run_that_never_began_is_not_counted(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.release(held, has_begun=False)
    assert (await stage.fields(held.keys))["attempt"] == "0"
    await stage.again()
    assert (await stage.fields(held.keys))["attempt"] == "0"
    held = await stage.take(held.keys)
    await stage.store.release(held)
    assert (await stage.fields(held.keys))["attempt"] == "1"


async def test_nobody_hands_back_what_another_holds(stage: Stage) -> None:
    held = await stage.run()
    await stage.claimed_by_another(held.keys)
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await stage.store.release(held)
    assert stage.answered() is Answer.LEASE_LOST
    assert await stage.check() == before


# ── recover ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_taken_by_a_call_that_comes_too_late(stage: Stage) -> None:
    held = await stage.run()
    await stage.make_idle(held, LEASE_MS)
    before = await stage.check()
    assert await stage.recover(held, lease_ms=LEASE_MS, latest_ms=1000, alone=False) is Answer.NOT_REACHED
    assert await stage.check() == before


async def test_nothing_is_taken_from_a_worker_that_renews(stage: Stage) -> None:
    held = await stage.run()
    before = await stage.check()
    assert await stage.recover(held, lease_ms=LEASE_MS, alone=False) is Answer.NOT_REACHED
    assert await stage.check() == before


async def test_what_was_not_renewed_for_a_lease_is_queued_again(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval(), timer(after_ms=1e9)], [])
    await stage.make_idle(held, LEASE_MS)
    assert await stage.recover(held, lease_ms=LEASE_MS) is Answer.DONE
    fields = await stage.fields(held.keys)
    assert fields["status"] == "queued"
    assert fields["recoveries"] == "1"
    assert fields["waiting"] == "approval\ncooling-off"
    assert "rested_by" not in fields
    # a signal finds the point also while nobody runs it
    await stage.store.signal(held.keys, "approval", "s1", YES)
    assert await stage.status(held.keys) is Status.QUEUED


async def test_an_entry_that_nobody_claimed_is_queued_again_and_no_run_counts_as_lost(stage: Stage) -> None:
    keys = await stage.invoke()
    (held,) = await stage.deliver(keys)
    assert await stage.recover(held, lease_ms=LEASE_MS) is Answer.NOT_REACHED
    for _ in range(3):
        before = await stage.fields(keys)
        assert await stage.recover(held, max_recoveries=0) is Answer.DONE
        fields = await stage.fields(keys)
        assert fields["entry"] != before["entry"]
        assert fields["version"] == before["version"]
        assert "recoveries" not in fields
        (held,) = await stage.deliver(keys)


async def test_an_entry_that_was_never_delivered_is_left_alone(stage: Stage) -> None:
    keys = await stage.invoke()
    await stage.make_group(keys.stream)
    entry = (await stage.fields(keys))["entry"]
    before = await stage.check()
    assert await stage.recover(Held(keys, entry, "")) is Answer.NOT_REACHED
    assert await stage.check() == before


async def test_progress_starts_the_count_anew(stage: Stage) -> None:
    held = await stage.run()
    for _ in range(3):
        for expected in ("1", "2"):
            assert await stage.recover(held, max_recoveries=3) is Answer.DONE
            assert (await stage.fields(held.keys))["recoveries"] == expected
            held = await stage.take(held.keys)
        await stage.store.record(held, new_token(), STEP, 1)
        assert "recoveries" not in await stage.fields(held.keys)


async def test_a_run_that_had_neighbours_is_never_failed_for_the_loss_of_its_worker(stage: Stage) -> None:
    held = await stage.run()
    for _ in range(5):
        assert await stage.recover(held, max_recoveries=1, alone=False) is Answer.DONE
        held = await stage.take(held.keys)
    assert (await stage.fields(held.keys))["recoveries"] == "5"
    await stage.store.isolate(held, alone=True)
    assert (await stage.fields(held.keys))["alone"] == "1"
    await stage.store.isolate(held, alone=False)
    assert await stage.recover(held, max_recoveries=1, alone=False) is Answer.DONE
    held = await stage.take(held.keys)
    await stage.store.isolate(held, alone=True)
    assert await stage.recover(held, max_recoveries=1) is Answer.TERMINAL


async def test_coming_to_rest_is_progress_too(stage: Stage) -> None:
    held = await stage.run()
    assert await stage.recover(held) is Answer.DONE
    held = await stage.take(held.keys)
    await stage.store.park(held, [approval()], [], "")
    assert "recoveries" not in await stage.fields(held.keys)


async def test_nobody_says_of_what_another_holds_that_it_is_alone(stage: Stage) -> None:
    held = await stage.run()
    await stage.claimed_by_another(held.keys)
    with pytest.raises(LeaseLost):
        await stage.store.isolate(held, alone=True)
    assert "alone" not in await stage.fields(held.keys)


async def test_too_many_losses_without_progress_fail_the_instance(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.open(held, [approval(), timer(after_ms=1e9)], [])
    for _ in range(2):
        assert await stage.recover(held, max_recoveries=3) is Answer.DONE
        held = await stage.take(held.keys)
    assert await stage.recover(held, max_recoveries=3) is Answer.TERMINAL
    scene = await stage.check()
    fields = scene.hashes[held.keys.instance]
    assert (fields["status"], fields["message"]) == ("failed", "ValueError: no")
    assert json.loads(fields["error"])["type"] == "ValueError"
    assert held.keys.steps not in scene.hashes, "its points are withdrawn"
    assert held.keys.timers not in scene.zsets


@pytest.mark.parametrize("exists", [True, False])
async def test_an_entry_of_the_past_is_removed(stage: Stage, exists: bool) -> None:
    held = await stage.run()
    await stage.store.release(held)
    if not exists:
        await stage.delete(held.keys)
    entry = (await stage.command("XADD", held.keys.stream, "*", "i", "42")).decode()
    await stage.deliver(held.keys, "w2")
    assert await stage.recover(Held(held.keys, entry, "")) is Answer.STALE
    await stage.check()


async def test_a_run_that_parks_just_before_is_not_recovered(stage: Stage) -> None:
    held = await stage.parked()
    before = await stage.check()
    assert await stage.recover(held) is Answer.NOT_REACHED
    assert await stage.check() == before


# ── drop_consumer ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_is_removed_once_it_holds_nothing(stage: Stage) -> None:
    held = await stage.run()
    stream = held.keys.stream
    assert not await stage.store.drop_consumer(stream, "w1")
    assert stage.answered() is Answer.ALREADY
    assert await stage.pending(held) is not None
    await stage.store.finish(held, DONE, LONG_MS)
    assert await stage.store.drop_consumer(stream, "w1")
    assert stage.answered() is Answer.DONE
    assert await stage.command("XINFO", "CONSUMERS", stream, "workers") == []
    assert await stage.store.drop_consumer(stream, "w1")
    assert await stage.store.drop_consumer(stage.keys.partitions[0].stream("unknown"), "w1")


async def test_a_stream_without_its_group_has_no_consumer_to_remove(stage: Stage) -> None:
    keys = await stage.invoke()
    with pytest.raises(StorageError, match="NOGROUP"):
        await stage.store.drop_consumer(keys.stream, "w1")
