"""The namespace that is looked at. Reads that several checks share are made once a look; none changes anything."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote, urlsplit

from memable import fleet
from memable.codec import Codec
from memable.connection import Endpoint, ScriptConnection, ServerRefused
from memable.damage import legible
from memable.definitions import Definitions
from memable.fleet import Fleet
from memable.journal import pairs
from memable.keys import LAYOUT, TYPES, InstanceKeys, Keys, Partition, split_instance_name
from memable.reading import Reader
from memable.server import facts_of
from memable.settings import Settings
from memable.store import Store

T = TypeVar("T")

GIVE_UP_S: Final = 10.0
PAGE: Final = 100
_SCANNED_AT_ONCE: Final = 1000
_SCANNED_AN_INSTANCE: Final = 5
"""How many keys are scanned for each instance that may be looked at."""

SETTINGS: Final = (
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "min-replicas-to-write",
)
"""What is asked of redis.conf."""

_NO_COMMAND = re.compile(r"unknown (sub)?command|unknown or disabled", re.IGNORECASE)
_REFUSED_COMMAND = re.compile(r"run the '([^']+)'")


def is_closed(refused: ServerRefused) -> bool:
    """Whether it is the user's rights that are missing, or the command: it is renamed, or closed by a provider."""
    return refused.is_forbidden or _NO_COMMAND.search(refused.text) is not None


def missing_right(refused: ServerRefused) -> str | None:
    """The command that the user may not give, as ACL rules write it, where the server names it."""
    found = _REFUSED_COMMAND.search(refused.text)
    return found[1] if found else None


@dataclass(slots=True)
class Coverage:
    """How much of something was looked at."""

    seen: int = 0
    total: int = 0

    @property
    def is_partial(self) -> bool:
        """Whether something was left out."""
        return self.seen < self.total


@dataclass(slots=True)
class Scan:
    """Names of keys of the namespace, by kind, with the part behind the kind."""

    found: dict[str, list[tuple[Partition, str]]] = field(default_factory=lambda: defaultdict(list))

    def instances(self, kind: str) -> list[InstanceKeys]:
        """The instances that a key of this kind was found of."""
        return [partition.of(*split_instance_name(rest)) for partition, rest in self.found.get(kind, ()) if "/" in rest]


class Patient:
    """What checks are given. `forget` begins another look."""

    def __init__(self, endpoint: Endpoint, connection: ScriptConnection, store: Store, meta: Meta, limit: int) -> None:
        self.endpoint, self.connection, self.store, self.meta, self.limit = endpoint, connection, store, meta, limit
        self.reader = Reader(store)
        self._definitions = Definitions(Codec(), None, lambda: self.reader)
        self._memo: dict[str, asyncio.Future[Any]] = {}
        self.coverage: dict[str, Coverage] = {}
        """What was looked at, and how much of it."""

    @property
    def keys(self) -> Keys:
        return self.store.keys

    def forget(self) -> None:
        """What was read is read again."""
        self._memo.clear()

    async def once(self, what: str, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` gives, for all who ask for it in this look."""
        if what not in self._memo:
            self._memo[what] = asyncio.ensure_future(read())
        return cast("T", await self._memo[what])

    async def ask(self, *words: str | bytes | float) -> Any:
        """The reply."""
        return await self.connection.command(*words)

    async def ask_or(self, default: Any, *words: str | bytes | float) -> Any:
        """The reply; `default`, if the key is of another type, which is for another check to say."""
        try:
            return await self.ask(*words)
        except ServerRefused as error:
            if error.code not in ("WRONGTYPE", "NOGROUP"):
                raise
            return default

    async def entries(self, stream: str, most: int) -> AsyncIterator[list[tuple[bytes, list[bytes]]]]:
        """The first entries of a stream, page by page."""
        after = "-"
        while most > 0 and (page := await self.ask_or([], "XRANGE", stream, after, "+", "COUNT", min(PAGE, most))):
            yield page
            most -= len(page)
            after = f"({page[-1][0].decode()}"

    def covers(self, what: str, seen: int, total: int) -> None:
        """Note how much of something was looked at."""
        known = self.coverage.setdefault(what, Coverage())
        known.seen, known.total = seen, total

    # ── the server ───────────────────────────────────────────────────────────────────────────────────────────────

    async def info(self, section: str) -> dict[str, str]:
        """A section of INFO."""

        async def read() -> dict[str, str]:
            return facts_of((await self.ask("INFO", section)).decode())

        return await self.once(f"info {section}", read)

    async def config(self) -> dict[str, str]:
        """What redis.conf says of `SETTINGS`."""

        async def read() -> dict[str, str]:
            said = pairs(await self.ask("CONFIG", "GET", *SETTINGS))
            return {name.decode(): value.decode() for name, value in said.items()}

        return await self.once("config", read)

    @property
    def user(self) -> str:
        """As whom the doctor has logged in."""
        return unquote(urlsplit(self.endpoint.url).username or "default")

    async def now_s(self) -> float:
        """Redis's clock."""
        return await fleet.server_time_s(self.store)

    # ── the namespace ────────────────────────────────────────────────────────────────────────────────────────────

    async def fleet(self) -> Fleet:
        """Who lives, who leads, what waits."""

        async def read() -> Fleet:
            names = await self.workflows()
            wrong = await self.known_wrong_types()
            sound = [
                name for name in names if wrong.keys().isdisjoint(each.stream(name) for each in self.keys.partitions)
            ]
            return await fleet.fleet(self.store, sound)

        return await self.once("fleet", read)

    async def retention_ms(self, workflow: str) -> int:
        """For how long an instance that ends now is kept."""
        return await self._definitions.retention_ms(workflow)

    async def workflows(self) -> list[str]:
        """All that were announced, and those that have keys and were not."""

        async def read() -> list[str]:
            announced, scan = await fleet.workflow_names(self.store), await self.scan_if_allowed()
            kinds = ("stream", "index", "instance")
            found = {rest.partition("/")[0] for kind in kinds for _, rest in scan.found.get(kind, ())}
            return sorted({*announced, *found} - {""})

        return await self.once("workflows", read)

    async def scan(self) -> Scan:
        """Keys of the namespace, as many as the limit allows, in no order."""
        return await self.once("scan", self._scan)

    async def scan_if_allowed(self) -> Scan:
        """The same; nothing, if the doctor's user may not scan."""
        try:
            return await self.scan()
        except ServerRefused as error:
            if not is_closed(error):
                raise
            return Scan()

    async def _scan(self) -> Scan:
        scan, cursor, visited = Scan(), b"0", 0
        most = self.limit * _SCANNED_AN_INSTANCE
        seen = set[bytes]()
        while True:
            cursor, names = await self.ask(
                "SCAN", cursor, "MATCH", f"{self.keys.namespace}:*", "COUNT", _SCANNED_AT_ONCE
            )
            visited += _SCANNED_AT_ONCE
            seen.update(names)
            if cursor == b"0" or visited >= most:
                break
        for name in sorted(seen):
            found = self.keys.find(name.decode(errors="replace"))
            if found is not None:
                partition, kind, rest = found
                scan.found[kind].append((partition, rest))
        size = await self.ask("DBSIZE")
        self.covers("keys", size if cursor == b"0" else min(visited, size), size)
        return scan

    async def wrong_types(self) -> dict[str, str]:
        """Keys that are not of the type that they must have, and the type that they have."""
        return await self.once("types", self._wrong_types)

    async def known_wrong_types(self) -> Mapping[str, str]:
        """The same; nothing, if the doctor's user may not look for them."""
        try:
            return await self.wrong_types()
        except ServerRefused as error:
            if not is_closed(error):
                raise
            return {}

    async def _wrong_types(self) -> dict[str, str]:
        keys, scan = self.keys, await self.scan()
        expected = {keys.workflows: "hash", keys.workers: "zset", Keys.meta(keys.namespace): "hash"}
        for kind, places in scan.found.items():
            # of the many that an instance has one each, no more than instances are looked at
            for partition, rest in places[: self.limit]:
                if kind in TYPES:
                    expected[f"{partition.prefix}{kind}:{rest}" if rest else f"{partition.prefix}{kind}"] = TYPES[kind]
        names = list(expected)
        wrong = dict[str, str]()
        for first in range(0, len(names), _SCANNED_AT_ONCE):
            some = names[first : first + _SCANNED_AT_ONCE]
            kinds = await asyncio.gather(*(self.ask("TYPE", name) for name in some))
            wrong |= {
                name: kind.decode()
                for name, kind in zip(some, kinds, strict=True)
                if kind.decode() not in ("none", expected[name])
            }
        return wrong


@dataclass(frozen=True, slots=True)
class Meta:
    """What the namespace says of itself."""

    layout: str | None
    partitions: str | None
    refused: ServerRefused | None = None
    """Why it could not be read."""

    @property
    def is_legible(self) -> bool:
        """Whether this memable can read the namespace; one that nobody has used yet, too."""
        if self.layout is None and self.partitions is None:
            return True
        return self.layout == LAYOUT and self.count > 0

    @property
    def count(self) -> int:
        return int(self.partitions) if self.partitions and self.partitions.isdecimal() else 0


@asynccontextmanager
async def visiting(settings: Settings, limit: int) -> AsyncIterator[Patient]:
    """Connect, without entering the namespace as clients and workers do: that would write."""
    endpoint = Endpoint.from_url(settings.redis_url, client_name="memable-doctor")
    connection = ScriptConnection(endpoint, give_up_after_s=GIVE_UP_S)
    await connection.start()
    try:
        meta = await _meta(connection, settings.namespace)
        keys = Keys(settings.namespace, partitions=max(1, meta.count if meta.is_legible else 1))
        yield Patient(endpoint, connection, Store(connection, keys), meta, limit)
    finally:
        await connection.close()


async def _meta(connection: ScriptConnection, namespace: str) -> Meta:
    try:
        said = await connection.command("HMGET", Keys.meta(namespace), "layout", "partitions")
    except ServerRefused as error:
        return Meta(None, None, error)
    layout, partitions = (None if each is None else legible(each) for each in said)
    return Meta(layout, partitions)
