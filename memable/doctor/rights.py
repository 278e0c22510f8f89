"""What users of the server must be allowed to do, and which of them are not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final

from memable import lua
from memable.connection import ServerRefused
from memable.doctor.findings import Finding, Severity, ok
from memable.doctor.patient import Patient, is_closed
from memable.keys import GROUP, Keys
from memable.state import Status

Words = tuple[str, ...]

_NAMED: Final = 8
"""How many missing rights are named in a line."""


class Role(StrEnum):
    """Whom a user is for."""

    CLIENT = "client"
    WORKER = "worker"


SCRIPTS_OF_CLIENTS: Final = ("cancel", "copy", "delete", "enter", "invoke", "page", "resume", "send", "signal")
"""The scripts that clients call; workers call all."""

_COMMAND = re.compile(r"redis\.call\('(\w+)'(?:, '([A-Z]+)')?")
_CONTAINERS = ("XGROUP", "XINFO")


def commands_in(scripts: Iterable[str]) -> set[str]:
    """The commands that scripts give, which their caller must be allowed to give, too."""
    found = (match for name in scripts for match in _COMMAND.findall(lua.load(name).source))
    return {f"{command} {sub}" if command in _CONTAINERS else command for command, sub in found}


_BESIDE_SCRIPTS: Final = {
    Role.CLIENT: "EVALSHA EVAL EXISTS HGET HGETALL HKEYS HMGET ZCARD SUBSCRIBE",
    Role.WORKER: "EVALSHA EVAL EXISTS GET HGET HGETALL HKEYS HMGET HSET SET DEL SUBSCRIBE TIME XACK XDEL XLEN XRANGE "
    "XPENDING XREADGROUP ZADD ZCARD ZRANGE ZREM",
}
_WITH_A_WORD: Final = {Role.CLIENT: (), Role.WORKER: ("XGROUP CREATE", "XINFO CONSUMERS")}


def commands_of(role: Role) -> list[str]:
    """All commands that a client, or a worker, gives."""
    scripts = SCRIPTS_OF_CLIENTS if role is Role.CLIENT else lua.names()
    return sorted({*commands_in(scripts), *_BESIDE_SCRIPTS[role].split(), *_WITH_A_WORD[role]})


def examples(keys: Keys) -> dict[str, Words]:
    """Each of the commands as it might be given."""
    partition = keys.partitions[0]
    one = partition.of("order", "42")
    index, stream, sha = one.index(Status.QUEUED), one.stream, "0" * 40
    return {
        "DEL": ("DEL", one.steps),
        "EVAL": ("EVAL", "return 1", "1", one.instance),
        "EVALSHA": ("EVALSHA", sha, "1", one.instance),
        "EXISTS": ("EXISTS", one.instance),
        "GET": ("GET", partition.leader),
        "HDEL": ("HDEL", one.instance, "field"),
        "HEXISTS": ("HEXISTS", one.steps, "field"),
        "HGET": ("HGET", one.instance, "field"),
        "HGETALL": ("HGETALL", one.steps),
        "HINCRBY": ("HINCRBY", one.instance, "field", "1"),
        "HKEYS": ("HKEYS", one.family),
        "HMGET": ("HMGET", one.instance, "field"),
        "HSET": ("HSET", one.instance, "field", "value"),
        "HSETNX": ("HSETNX", Keys.meta(keys.namespace), "field", "value"),
        "PERSIST": ("PERSIST", one.inbox),
        "PEXPIREAT": ("PEXPIREAT", one.steps, "1"),
        "PTTL": ("PTTL", one.instance),
        "PUBLISH": ("PUBLISH", one.events, "message"),
        "RENAME": ("RENAME", one.family, partition.orphans("life")),
        "SET": ("SET", partition.leader, "value"),
        "SUBSCRIBE": ("SUBSCRIBE", one.events),
        "TIME": ("TIME",),
        "XACK": ("XACK", stream, GROUP, "1-1"),
        "XADD": ("XADD", stream, "*", "field", "value"),
        "XCLAIM": ("XCLAIM", stream, GROUP, "worker", "0", "1-1"),
        "XDEL": ("XDEL", stream, "1-1"),
        "XGROUP CREATE": ("XGROUP", "CREATE", stream, GROUP, "0"),
        "XGROUP DELCONSUMER": ("XGROUP", "DELCONSUMER", stream, GROUP, "worker"),
        "XINFO CONSUMERS": ("XINFO", "CONSUMERS", stream, GROUP),
        "XINFO GROUPS": ("XINFO", "GROUPS", stream),
        "XLEN": ("XLEN", stream),
        "XPENDING": ("XPENDING", stream, GROUP),
        "XRANGE": ("XRANGE", stream, "-", "+"),
        "XREADGROUP": ("XREADGROUP", "GROUP", GROUP, "worker", "STREAMS", stream, ">"),
        "ZADD": ("ZADD", one.timers, "1", "member"),
        "ZCARD": ("ZCARD", index),
        "ZRANGE": ("ZRANGE", index, "0", "0"),
        "ZREM": ("ZREM", one.expiry, "member"),
        "ZREMRANGEBYSCORE": ("ZREMRANGEBYSCORE", keys.workers, "0", "0"),
        "ZSCORE": ("ZSCORE", one.timers, "member"),
    }


async def rights(patient: Patient) -> list[Finding]:
    """May the users of the server do what clients and workers do?

    Looked at are the doctor's own user and, where it may ask (`CLIENT LIST`, `ACL DRYRUN`), those of the workers and
    clients that are connected. deploy/acl has users whose rights are tested.
    """
    me = patient.user
    found = [finding async for finding in _others(patient, me)]
    try:
        may = dict(zip(_all(), await _permitted(patient, _all()), strict=True))
    except ServerRefused as error:
        if not is_closed(error):
            raise
        if not await _may_write(patient):
            return [*found, Finding(Severity.NOTE, f"user {me!r} may only look, and run no scripts")]
        return [*found, _finding(patient, me, Role.CLIENT, ["EVAL", "EVALSHA"])]
    lacks = {role: [each for each in commands_of(role) if not may[each]] for role in Role}
    if not lacks[Role.WORKER]:
        return found or ok(f"user {me!r} may do all that workers do")
    if not may["HSET"]:
        return [*found, Finding(Severity.NOTE, f"user {me!r} may only look")]
    if not lacks[Role.CLIENT]:
        return found or ok(f"user {me!r} may do all that clients do")
    return [*found, _finding(patient, me, Role.CLIENT, lacks[Role.CLIENT])]


def _all() -> list[str]:
    return sorted({each for role in Role for each in commands_of(role)})


def _finding(patient: Patient, user: str, role: Role, missing: Sequence[str]) -> Finding:
    named = [each.lower().replace(" ", "|") for each in missing]
    shown = ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")
    namespace = patient.keys.namespace
    return Finding(
        Severity.PROBLEM,
        f"user {user!r} lacks rights of a {role}: {shown}",
        means="what it must not do is refused (NOPERM), in scripts, too",
        todo=f"redis-cli ACL SETUSER {user} '~{namespace}:*' '&{namespace}:*' {' '.join(f'+{each}' for each in named)}",
    )


async def _permitted(patient: Patient, commands: Sequence[str]) -> list[bool]:
    """Whether the doctor's own user may give each of them."""
    known, script = examples(patient.keys), _permitted_script()
    bound = script.bind(commands=["\n".join(known[each]) for each in commands])
    return [bool(each) for each in await patient.connection.call(script, bound)]


@cache
def _permitted_script() -> lua.Script:
    """It has no place among the scripts that change something: it asks the server about the user."""
    return lua.assemble("permitted", files("memable.doctor").joinpath("permitted.lua").read_text("utf-8"))


async def _may_write(patient: Patient) -> bool:
    """Asked by removing a field from a hash that is not there."""
    try:
        await patient.ask("HDEL", patient.keys.of("doctor", "nobody").inbox, "nothing")
    except ServerRefused as error:
        return not error.is_forbidden
    return True


async def _others(patient: Patient, me: str) -> AsyncIterator[Finding]:
    """Of other users, as far as the doctor's may ask for them."""
    try:
        lines = (await patient.ask("CLIENT", "LIST")).decode().splitlines()
        for user, role in sorted(_users(lines, me)):
            known, commands = examples(patient.keys), commands_of(role)
            answers = await asyncio.gather(*(patient.ask("ACL", "DRYRUN", user, *known[each]) for each in commands))
            missing = [each for each, said in zip(commands, answers, strict=True) if said != b"OK"]
            if missing:
                yield _finding(patient, user, role, missing)
    except ServerRefused as error:
        if not is_closed(error):
            raise


def _users(lines: Iterable[str], me: str) -> set[tuple[str, Role]]:
    """The users of memable's connections, and whom each is for."""
    roles = dict[str, Role]()
    for facts in (dict(_facts(line)) for line in lines):
        user, name = facts.get("user", me), facts.get("name", "")
        if user != me and name.startswith("memable"):
            is_worker = name.startswith("memable-worker") or roles.get(user) is Role.WORKER
            roles[user] = Role.WORKER if is_worker else Role.CLIENT
    return set(roles.items())


def _facts(line: str) -> Iterator[tuple[str, str]]:
    for pair in line.split(" "):
        name, is_pair, value = pair.partition("=")
        if is_pair:
            yield name, value
