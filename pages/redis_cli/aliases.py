"""What is another in every run (tokens, times, names of workers) and is the same in the guide."""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from pages.redis_cli.terminal import Terminal

OPENING = datetime(2026, 1, 5, 10, tzinfo=UTC)
"""When the guide's story is told. A Monday."""

_STEP = timedelta(minutes=30)
"""All deadlines of the story are multiples of it: what is nearer is now."""

WORKER = "web-1-4711-k3x9Qa"
_TOKEN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{16}(?![A-Za-z0-9])")
_WITH_TOKENS = frozenset({"life", "lease", "rested_by", "invoked_by", "resumed_by", "cancelled_by"})
_ENTRY = re.compile(r"\b\d{13}-\d+\b")
_MICROSECONDS, _MILLISECONDS = re.compile(r"\b\d{16}\b"), re.compile(r"\b\d{13}\b")
_CLOCK = re.compile(r"(?<=[a-z] )(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d")
_SAID_OF_A_WORKER = {
    "host": '"web-1"',
    "pid": "4711",
    "version": '"0.1.0"',
    "up_s": "3600",
    "in_use": "2",
    "clock_s": "1767607203.25",
}


class Aliases:
    """Both names of everything: the real one, and that of the guide."""

    def __init__(self) -> None:
        self._alias: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._entries: dict[str, list[str]] = {}
        self._began = datetime.now(UTC)

    async def read(self, terminal: Terminal, namespace: str) -> None:
        """Learn what is in the namespace now, in an order that is the same in every run."""
        for worker in await terminal.command("ZRANGE", f"{namespace}:workers", "0", "-1"):
            self._alias[worker.decode()] = WORKER
        instances = list[tuple[int, str, dict[str, str]]]()
        for key in await terminal.command("KEYS", f"{namespace}:*:instance:*"):
            reply = [each.decode() for each in await terminal.command("HGETALL", key.decode())]
            fields = dict(zip(reply[::2], reply[1::2], strict=True))
            instances.append((int(fields["created_us"]), key.decode(), fields))
        for created_us, key, fields in sorted(instances, key=lambda each: each[:2]):
            number = self._numbers.setdefault(key, len(self._numbers))
            self._alias.setdefault(str(created_us), str(_us(OPENING) + number * 1_000_007))
            for name, value in fields.items():
                if name == "entry":
                    self._name_entry(key.rpartition("/")[0], value)
                elif name in _WITH_TOKENS:
                    for token in _TOKEN.findall(value):
                        self._alias.setdefault(token, _token(f"{number} {name}"))

    def _name_entry(self, workflow: str, entry: str) -> None:
        """By its place in its own stream: an entry of another one may have the same id."""
        entries = self._entries.setdefault(workflow, [])
        if entry not in entries:
            entries.append(entry)
            self._alias.setdefault(entry, f"{_us(OPENING) // 1000 + len(entries) * 1000}-0")

    def real(self, text: str) -> str:
        """A command of the guide as the server understands it."""
        for real, alias in self._alias.items():
            text = text.replace(alias, real)
        return text

    def shown(self, text: str, words: list[str]) -> str:
        """What the server said to this command, as it stands in the guide."""
        for real, alias in sorted(self._alias.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(real, alias)
        text = _ENTRY.sub(lambda match: match[0] if match[0] in self._known else f"{_us(OPENING) // 1000}-0", text)
        text = _MICROSECONDS.sub(self._microseconds, text)
        text = _MILLISECONDS.sub(self._milliseconds, text)
        text = _CLOCK.sub(self._clock, text)
        text = re.sub(r'"took_ms":[\d.]+', '"took_ms":1.250', text)
        text = re.sub(r"(?<=\bretry )(\d{13} \d+) \d+", r"\1 1", text)  # for how long the calls went on
        # who has just come gives way to a worker that is there for longer
        text = text.replace(f"{WORKER} new", WORKER)
        match words[0]:
            case "XPENDING" if len(words) > 3:  # entry, who has it, for how many ms, delivered how often
                return re.sub(r"\t\d+\t", "\t412\t", text)
            case "GET":  # what a worker says of itself
                return re.sub(r'"(host|pid|version|up_s|in_use|clock_s)":("[^"]*"|[\d.]+)', _of_a_worker, text)
            case "TIME":
                return f"{int(OPENING.timestamp())}\t0"
            case "TTL":
                return re.sub(r"\d+", self._seconds, text)
            case _:
                return text

    @property
    def _known(self) -> set[str]:
        return set(self._alias.values())

    def _microseconds(self, match: re.Match[str]) -> str:
        return match[0] if match[0] in self._known else str(_us(OPENING))

    def _milliseconds(self, match: re.Match[str]) -> str:
        return str(_us(self._moved(datetime.fromtimestamp(int(match[0]) / 1000, UTC))) // 1000)

    def _clock(self, match: re.Match[str]) -> str:
        day, _, time = match[0].rpartition(" ")
        moment = datetime.fromisoformat(f"{day or f'{self._began:%Y-%m-%d}'} {time}+00:00")
        return f"{self._moved(moment):%H:%M:%S}"

    def _seconds(self, match: re.Match[str]) -> str:
        return str(int((self._moved(datetime.now(UTC) + timedelta(seconds=int(match[0]))) - OPENING).total_seconds()))

    def _moved(self, moment: datetime) -> datetime:
        """A moment of this run at the guide's day; those of the opening are it."""
        if abs(moment - OPENING) < timedelta(days=1):
            return moment
        return OPENING + round((moment - self._began) / _STEP) * _STEP


def _us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def _token(name: str) -> str:
    """Looks as those of memable do."""
    return b64encode(sha256(name.encode()).digest(), altchars=b"xy").decode()[:16]


def _of_a_worker(match: re.Match[Any]) -> str:
    return f'"{match[1]}":{_SAID_OF_A_WORKER[match[1]]}'
