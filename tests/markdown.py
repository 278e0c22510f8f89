"""What the documentation shows, to be run: the fenced blocks of a page, and what its examples say that they print."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from opentelemetry import trace
from opentelemetry.util._once import Once

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of `language`, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


async def run_example(
    code: str, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Await the example's `main`: it prints what the comment behind each `print` says, up to a `…` there."""
    # an example may set the process's provider of tracers, which cannot be taken back otherwise
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    module = ModuleType("shown_example")
    # a module of that name: annotations are looked up where a function was defined
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, where, "exec"), module.__dict__)  # our own page
    await module.main()
    promised = re.findall(r"^ *print\(.*\) +# (.*)$", code, re.MULTILINE)
    assert promised, "what is not said cannot be wrong"
    assert_printed(capsys.readouterr().out, promised)


def assert_printed(output: str, promised: list[str]) -> None:
    """The lines of `output` are those that were promised; of one with a `…`, what stands before it."""
    printed = output.splitlines()
    assert len(printed) == len(promised), printed
    for line, promise in zip(printed, promised, strict=True):
        start, cut, _ = promise.partition("…")
        assert line.startswith(start) if cut else line == promise
