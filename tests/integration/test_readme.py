"""What the README shows is run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

README = Path(__file__).parents[2] / "README.md"


async def test_the_first_example_prints_what_its_comments_say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[0]
    module = ModuleType("readme_example")
    # a module of that name: annotations are looked up where a function was defined
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(README), "exec"), module.__dict__)  # our own README
    await module.main()
    printed = capsys.readouterr().out.splitlines()
    promised = [comment.strip() for comment in re.findall(r"print\(.*?\)\)\s+# (.*)", code)]
    assert len(printed) == len(promised) == 2
    for line, promise in zip(printed, promised, strict=True):
        assert line.startswith(promise.rstrip("…"))
