"""A setting that is wrong is one line that says which, what it is, and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

import memable
from memable import Settings, SettingsError, load_settings
from memable.codec import DEFAULT_MAX_PAYLOAD_BYTES


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MEMABLE_{name.upper()}", raising=False)


def test_the_defaults_are_those_of_the_contract() -> None:
    assert load_settings().model_dump() == {
        "redis_url": "redis://localhost:6379",
        "namespace": "memable",
        "partitions": None,
        "concurrency": 100,
        "lease": 3.0,
        "shutdown_grace": 30.0,
        "retention": None,
        "max_payload": DEFAULT_MAX_PAYLOAD_BYTES,
        "max_records": 10_000,
        "max_recoveries": 5,
        "park_grace": 1.0,
        "log_format": "text",
        "metrics_port": None,
        "metrics_host": "127.0.0.1",
    }


def test_the_environment_is_read_and_a_keyword_goes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMABLE_LEASE", "10")
    monkeypatch.setenv("MEMABLE_RETENTION", "0.5")
    monkeypatch.setenv("MEMABLE_PARTITIONS", "")
    monkeypatch.setenv("MEMABLE_REDIS_SERVER", "is no setting")
    settings = load_settings(lease=4, namespace=None)
    assert (settings.lease, settings.retention, settings.partitions, settings.namespace) == (4, 0.5, None, "memable")


WRONG = [
    ("PARTITIONS", "0", "a whole number from 1"),
    ("PARTITIONS", "1.5", "a whole number from 1"),
    ("CONCURRENCY", "0", "a whole number from 1"),
    ("LEASE", "0.9", "seconds, at least 1,"),
    ("LEASE", "soon", "seconds, at least 1,"),
    ("LEASE", "nan", "seconds, at least 1,"),
    ("SHUTDOWN_GRACE", "-1", "seconds, at least 0,"),
    ("SHUTDOWN_GRACE", "inf", "seconds, at least 0,"),
    ("RETENTION", "0", "seconds, more than 0,"),
    ("MAX_PAYLOAD", "1kB", "a whole number of bytes from 1,"),
    ("MAX_RECORDS", "0", "a whole number from 1,"),
    ("MAX_RECOVERIES", "0", "a whole number from 1,"),
    ("PARK_GRACE", "-0.1", "seconds, at least 0,"),
    ("LOG_FORMAT", "xml", "text or json,"),
    ("METRICS_PORT", "65536", "a port from 1 to 65535, or 0 for any,"),
    ("NAMESPACE", "a b", "1 to 100 letters, digits and any of _ . : -"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG)
def test_a_wrong_value_is_one_line(name: str, value: str, allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"MEMABLE_{name}", value)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert isinstance(raised.value, memable.MemableError)
    text = str(raised.value)
    assert text.startswith(f"MEMABLE_{name} is '{value}'; allowed: {allowed}")
    assert "\n" not in text


def test_several_wrong_values_are_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMABLE_LEASE", "0")
    with pytest.raises(
        SettingsError, match=r"setting concurrency is 'x'; allowed: .*; MEMABLE_LEASE is '0'; allowed: "
    ):
        load_settings(concurrency="x")


def test_a_setting_that_does_not_exist_is_told() -> None:
    with pytest.raises(SettingsError, match="there is no setting 'leese': choose from redis_url, namespace, "):
        load_settings(leese=3)


def test_a_url_is_never_shown() -> None:
    url: Any = ["redis://user:secret@host"]
    with pytest.raises(SettingsError, match="setting redis_url is a value that is not shown") as raised:
        load_settings(redis_url=url)
    settings = load_settings(redis_url="redis://user:secret@host")
    for text in (str(raised.value), repr(settings), str(settings)):
        assert "secret" not in text


async def test_connecting_tells_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMABLE_LEASE", "0")
    with pytest.raises(SettingsError, match="MEMABLE_LEASE is '0'"):
        await memable.connect()
    with pytest.raises(SettingsError, match="setting namespace is 'a b'"):
        await memable.connect(settings=Settings(lease=1), namespace="a b")
