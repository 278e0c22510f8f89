"""Checks of the server: nothing here concerns the namespace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from memable import lua
from memable.connection import ServerRefused
from memable.doctor.findings import Finding, Severity, ok
from memable.doctor.patient import Patient, is_closed
from memable.entering import check_server
from memable.errors import StorageError

LISTPACKS: Final = {"hash-max-listpack-entries": 128, "hash-max-listpack-value": 512}
"""What deploy/redis.conf sets."""

_FULL: Final = 0.95
_NEARLY_FULL: Final = 0.8
_SKEW_S: Final = 1.0
_SKEW_OF_WORKERS_S: Final = 10.0
"""Told with a beat, which may be on its way for long from a busy machine."""


async def version(patient: Patient) -> list[Finding]:
    """Is the server one that memable works with: Redis 7.0, Valkey 8, or later?

    An older one lacks commands that the scripts use, and workers and clients refuse to connect to it. Upgrade it.
    """
    info = await patient.info("server")
    name = f"Redis {info.get('redis_version', 'of an unknown version')}"
    if "valkey_version" in info:
        name = f"Valkey {info['valkey_version']}"
    try:
        check_server("\n".join(":".join(pair) for pair in info.items()), patient.endpoint.safe_url)
    except StorageError as error:
        return [Finding(Severity.PROBLEM, str(error), means="workers and clients refuse to use it", todo="upgrade it")]
    return ok(name)


async def persistence(patient: Patient) -> list[Finding]:
    """Does the server keep what it has acknowledged, on disk, and at once?

    Without the append-only file a crash of the server loses all instances, or all since the last snapshot. With
    `appendfsync everysec` a power loss takes the last second: guarantees.md says what that means for instances.
    """
    info = await patient.info("persistence")
    return list(_of_persistence(info, await _config(patient))) or ok(
        "append-only file, on disk before it is acknowledged"
    )


def _of_persistence(info: dict[str, str], config: dict[str, str]) -> Iterator[Finding]:
    if info.get("aof_enabled") != "1":
        yield Finding(
            Severity.PROBLEM,
            "there is no append-only file (appendonly no)",
            means="a crash of the server loses what was acknowledged since its last snapshot"
            if config.get("save", "?")
            else "a crash of the server loses every instance",
            todo="redis-cli CONFIG SET appendonly yes; and in redis.conf: appendonly yes, appendfsync always",
        )
        return
    if info.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            Severity.PROBLEM,
            "the last write to the append-only file failed",
            means="the server refuses writes until it can write to its disk again",
            todo="make room on its disk; its log says what is wrong",
        )
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield Finding(
            Severity.WARNING,
            "the append-only file could not be rewritten",
            means="it grows for ever, and a restart takes as long as it is",
            todo="make room on the server's disk, then: redis-cli BGREWRITEAOF",
        )
    match config.get("appendfsync"):
        case "everysec":
            yield Finding(
                Severity.NOTE,
                "appendfsync is everysec",
                means="a power loss takes the last second or more of what was acknowledged; it is faster",
                todo="redis-cli CONFIG SET appendfsync always; and in redis.conf: appendfsync always",
            )
        case "no":
            yield Finding(
                Severity.WARNING,
                "appendfsync is no",
                means="a power loss takes what the kernel has not written yet, some 30 s of what was acknowledged",
                todo="redis-cli CONFIG SET appendfsync always; and in redis.conf: appendfsync always",
            )
        case "always" if config.get("no-appendfsync-on-rewrite") == "yes":
            yield Finding(
                Severity.WARNING,
                "no-appendfsync-on-rewrite is yes",
                means="it undoes appendfsync always for as long as the file is rewritten",
                todo="redis-cli CONFIG SET no-appendfsync-on-rewrite no; and the same line in redis.conf",
            )
        case None:
            yield Finding(
                Severity.NOTE,
                "whether it is on disk before it is acknowledged cannot be seen: CONFIG GET is closed to this user",
                todo="in redis.conf: appendfsync always",
            )
        case _:
            pass


async def eviction(patient: Patient) -> list[Finding]:
    """Does a full server refuse writes, instead of throwing keys away?

    What is evicted is lost: an instance, its records, or a whole stream. With `noeviction` workers wait until there is
    room again, and clients get a `StorageError`.
    """
    memory, stats = await patient.info("memory"), await patient.info("stats")
    policy, limit = memory.get("maxmemory_policy", "noeviction"), int(memory.get("maxmemory", 0))
    evicted = int(stats.get("evicted_keys", 0))
    found = list[Finding]()
    if policy != "noeviction":
        means = (
            "when it is full it throws away instances that have ended, before their retention is over"
            if policy.startswith("volatile")
            else "when it is full it throws away any key: instances, records and streams"
        )
        is_loss = limit > 0 and not policy.startswith("volatile")
        found.append(
            Finding(
                Severity.PROBLEM if is_loss else Severity.WARNING,
                f"maxmemory-policy is {policy}",
                means=means if limit else f"{means}. It has no limit yet: nothing happens before maxmemory is set",
                todo="redis-cli CONFIG SET maxmemory-policy noeviction; and in redis.conf: maxmemory-policy noeviction",
            )
        )
    if evicted:
        found.append(
            Finding(
                Severity.PROBLEM if found else Severity.NOTE,
                "keys were evicted since the server was started",
                means=f"{evicted} of them, perhaps of this namespace: the checks below say what is missing",
                todo="redis-cli INFO stats",
            )
        )
    return found or ok("noeviction")


async def memory(patient: Patient) -> list[Finding]:
    """Is there room for more?

    A server that reaches `maxmemory` refuses writes: nothing goes on. One without a limit is killed by the kernel when
    the machine has no memory left.
    """
    info = await patient.info("memory")
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        return [
            Finding(
                Severity.NOTE,
                "maxmemory is not set",
                means=f"the server uses {_size(used)}, and may grow until the kernel kills it",
                todo="in redis.conf: maxmemory, at half of the machine's memory, to leave room for rewriting the file",
            )
        ]
    if used < _NEARLY_FULL * limit:
        return ok(f"{_size(used)} of {_size(limit)} in use")
    return [
        Finding(
            Severity.PROBLEM if used > _FULL * limit else Severity.WARNING,
            "the server is nearly full",
            means=f"{_size(used)} of {_size(limit)} are in use; when it is full, nothing goes on",
            todo="a larger maxmemory, a shorter MEMABLE_RETENTION, or `memable delete` of what is not needed",
        )
    ]


def _size(of_bytes: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if of_bytes < 1024:
            return f"{of_bytes} {unit}"
        of_bytes //= 1024
    return f"{of_bytes} TiB"


async def replicas(patient: Patient) -> list[Finding]:
    """Is this the primary, do its replicas follow, and does it wait for them?

    A replica takes no writes. After a failover to one that lags behind, what was acknowledged last is gone.
    """
    info = await patient.info("replication")
    if info.get("role") in ("slave", "replica"):
        return [
            Finding(
                Severity.PROBLEM,
                "this server is a replica",
                means="it refuses every write",
                todo=f"MEMABLE_REDIS_URL with the address of its primary, {info.get('master_host')}:"
                f"{info.get('master_port')}",
            )
        ]
    count = int(info.get("connected_slaves", 0))
    wanted = int((await _config(patient)).get("min-replicas-to-write", 0))
    if wanted and int(info.get("min_slaves_good_slaves", count)) < wanted:
        return [
            Finding(
                Severity.PROBLEM,
                f"min-replicas-to-write is {wanted}, and too few replicas follow",
                means="the server refuses every write (NOREPLICAS)",
                todo="start the replicas; or redis-cli CONFIG SET min-replicas-to-write 0",
            )
        ]
    lagging = {
        facts.get("ip", name): facts.get("state", "")
        for name, facts in ((name, _facts(line)) for name, line in info.items() if name.startswith("slave"))
        if facts.get("state") != "online"
    }
    if lagging:
        return [Finding(Severity.WARNING, "replicas do not follow", lagging, todo="their logs say why")]
    if count and not wanted:
        return [
            Finding(
                Severity.NOTE,
                "the server acknowledges what no replica has yet",
                means="after a failover the last writes may be gone",
                todo="redis-cli CONFIG SET min-replicas-to-write 1; and in redis.conf, with min-replicas-max-lag 2",
            )
        ]
    return ok(f"{count} replicas" if count else "no replicas")


def _facts(line: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in line.split(",") if "=" in pair)


async def encodings(patient: Patient) -> list[Finding]:
    """Are small hashes kept in one piece of memory, as deploy/redis.conf has it?

    Else instances and their records take half as much memory again; nothing else is different.
    """
    config = await patient.config()
    small = {name: size for name, size in LISTPACKS.items() if int(config.get(name, size)) < size}
    if not small:
        return ok(", ".join(f"{name} {config.get(name)}" for name in LISTPACKS))
    return [
        Finding(
            Severity.NOTE,
            f"{name} is {config[name]}",
            means="instances and their records take more memory than they need to",
            todo=f"redis-cli CONFIG SET {name} {size}; and in redis.conf: {name} {size}",
        )
        for name, size in small.items()
    ]


async def cluster(patient: Patient) -> list[Finding]:
    """Is it one server, and no Redis Cluster?

    memable talks to one server, and does not follow a cluster's redirections.
    """
    info = await patient.info("cluster")
    if info.get("cluster_enabled") != "1":
        return ok("one server")
    return [
        Finding(
            Severity.PROBLEM,
            "the server is a node of a Redis Cluster",
            means="keys that are on other nodes cannot be reached",
            todo="MEMABLE_REDIS_URL with the address of a server that is no node of a cluster",
        )
    ]


async def scripts(patient: Patient) -> list[Finding]:
    """Does the server take memable's scripts?

    Every change of state is a Lua script: a server without Lua, or with a user who may not run scripts, can do nothing.
    """
    refused = dict[str, str]()
    for name in lua.names():
        try:
            await patient.ask("SCRIPT", "LOAD", lua.load(name).source)
        except ServerRefused as error:
            if is_closed(error):
                # no right that anybody needs: the rights themselves are another check
                return [Finding(Severity.OK, "not loaded: this user has no right to SCRIPT LOAD, and needs none")]
            refused[name] = error.text
    if not refused:
        return ok(f"all {len(lua.names())} are understood")
    return [
        Finding(
            Severity.PROBLEM,
            "scripts are refused",
            refused,
            means="what they do cannot be done on this server",
            todo="use Redis 7.0, Valkey 8, or later, with its Lua engine",
        )
    ]


async def clock(patient: Patient) -> list[Finding]:
    """Do the server's clock, this machine's and the workers' agree, and has the server's not been set back?

    Redis's clock decides when timers fire. `sleep_until`, a `delay` that is a time, and cron jobs go by the clock of
    whoever asks.
    """
    before_s = time.time()
    now_s = await patient.now_s()
    behind_s = (before_s + time.time()) / 2 - now_s
    found = list[Finding]()
    if abs(behind_s) > _SKEW_S + (time.time() - before_s):
        found.append(
            Finding(
                Severity.WARNING,
                "the clocks of this machine and of the server differ",
                means=f"the server's is {abs(behind_s):.1f} s {'behind' if behind_s > 0 else 'ahead'}: times that are "
                f"given as such come as much too {'late' if behind_s > 0 else 'early'}",
                todo="synchronise both (chronyd, systemd-timesyncd)",
            )
        )
    wrong = {
        each.name: f"{abs(each.ahead_s):.0f} s {'ahead' if each.ahead_s > 0 else 'behind'}"
        for each in (await patient.fleet()).workers
        if each.ahead_s is not None and abs(each.ahead_s) > _SKEW_OF_WORKERS_S
    }
    if wrong:
        found.append(
            Finding(
                Severity.WARNING,
                "the clocks of workers differ from the server's",
                wrong,
                means="times that their workflows give as such, and their cron jobs, come as much too early or late",
                todo="synchronise them (chronyd, systemd-timesyncd)",
            )
        )
    ahead = dict[str, str]()
    for workflow in await patient.workflows():
        for partition in patient.keys.partitions:
            stream = partition.stream(workflow)
            last = await patient.ask_or([], "XREVRANGE", stream, "+", "-", "COUNT", 1)
            if last and (early_s := int(last[0][0].partition(b"-")[0]) / 1000 - now_s) > _SKEW_S:
                ahead[stream] = f"{early_s:.0f} s"
    if ahead:
        found.append(
            Finding(
                Severity.WARNING,
                "streams have entries from the future",
                ahead,
                means="the server's clock was set back: what waits for a time waits as much longer",
                todo="synchronise the server's clock, by steps forward only",
            )
        )
    return found or ok(f"within {max(0.001, abs(behind_s)):.3f} s of this machine's")


async def _config(patient: Patient) -> dict[str, str]:
    """Nothing, where it is closed to the doctor's user."""
    try:
        return await patient.config()
    except ServerRefused as error:
        if not is_closed(error):
            raise
        return {}
