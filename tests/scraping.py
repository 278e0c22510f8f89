"""Reading a worker's endpoint: what it answers, and its metrics as numbers."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from memable import Engine
from tests.worker_process import TOO_LONG_S


class Answer(NamedTuple):
    status: int
    text: str


def get(url: str) -> Answer:
    """Blocks: for a thread."""
    try:
        with urllib.request.urlopen(url, timeout=TOO_LONG_S) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode())


async def ask(url: str) -> Answer:
    return await asyncio.to_thread(get, url)


def url_of(engine: Engine) -> str:
    url = engine._runtime.endpoint_url
    assert url is not None
    return url


class Scrape:
    """All samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __getitem__(self, name: str) -> float:
        return self.of(name)

    def of(self, name: str, **labels: str) -> float:
        return self._values[name, frozenset(labels.items())]

    def by(self, name: str, label: str, **labels: str) -> Mapping[str, float]:
        """Values other than zero of the samples that have `labels`, by another label."""
        found: dict[str, float] = {}
        for (each, pairs), value in self._values.items():
            if each == name and value and labels.items() <= (rest := dict(pairs)).items():
                found[rest[label]] = value
        return found


async def scrape(engine: Engine) -> Scrape:
    status, text = await ask(f"{url_of(engine)}/metrics")
    assert status == 200, text
    return Scrape(text)
