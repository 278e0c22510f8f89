"""What `import memable` gives, and what it must not load."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest

import memable
from memable import errors, state
from memable.entering import check_server
from memable.extras import EXTRA_OF


def test_every_public_name_is_there() -> None:
    for name in memable.__all__:
        assert getattr(memable, name) is not None
    assert list(memable.__all__) == sorted(set(memable.__all__))
    assert set(memable.__all__) <= set(dir(memable))


@pytest.mark.parametrize("module", [errors, state])
def test_every_error_and_every_record_is_public(module: object) -> None:
    classes = [name for name, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]  # type: ignore[attr-defined]
    assert set(classes) <= set(memable.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'memable' has no attribute 'nothing'"):
        memable.nothing  # noqa: B018


@pytest.mark.parametrize("used", ["memable.App", "memable.connect, memable.Client, memable.Invocation"])
def test_what_a_web_app_uses_loads_nothing_of_a_worker(used: str) -> None:
    code = f"""
import sys, memable
{used}
heavy = {{"arq", "click", "rich", "pydantic_settings", "uvloop", "memable.settings", "memable.engine"}}
print(sorted(heavy & set(sys.modules)), [name for name in sys.modules if name.startswith("memable.runtime")])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "[] []\n"


def test_declaring_workflows_needs_no_connection() -> None:
    code = "import sys; from memable import App, Context, SuspendPoint; print('redis' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "False\n"


@pytest.mark.parametrize("version", ["7.0.0", "7.2.4", "8.6.1", "10.0.0", "255.255.255", "odd"])
def test_a_server_that_will_do_is_taken(version: str) -> None:
    check_server(f"# Server\r\nredis_version:{version}\r\nvalkey_version:9.1.2\r\n", "redis://host:6379")


@pytest.mark.parametrize("version", ["6.2.14", "5.0.7", "6.3.4"])
def test_an_old_server_is_refused_in_one_line(version: str) -> None:
    with pytest.raises(
        memable.StorageError,
        match=f"^the server at redis://host:6379 is Redis {version}, and memable needs Redis 7.0 or",
    ):
        check_server(f"# Server\r\nredis_version:{version}\r\n", "redis://host:6379")


def test_what_brings_a_foreign_package_is_said_rightly() -> None:
    provided = packages_distributions()
    for package, extra in EXTRA_OF.items():
        requirements = [each for each in requires("memable") or () if each.endswith(f"extra == '{extra}'")]
        brought = {re.split(r"[^\w-]", each)[0] for each in requirements}
        assert brought & {each.lower().replace("_", "-") for each in provided[package]}, package
