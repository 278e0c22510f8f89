"""Every example in a docstring of the library runs, and says what it shows."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import pkgutil
from typing import Any

import pytest

import memable

# what a reader of an example has imported
GLOBALS: dict[str, Any] = {name: getattr(memable, name) for name in memable.__all__} | {"asyncio": asyncio}

MODULES = [
    each.name
    for each in pkgutil.walk_packages(memable.__path__, "memable.")
    if not each.name.endswith("__main__")  # these are programs
]

EXAMPLES = [
    example
    for module in map(importlib.import_module, ["memable", *MODULES])
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=GLOBALS)
    if example.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_the_examples_of(example: doctest.DocTest) -> None:
    said = list[str]()
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert not said, "".join(said)


def test_what_authors_use_most_has_examples() -> None:
    names = {each.name for each in EXAMPLES}
    assert {
        "memable.engine.Engine",
        "memable.workflow.App",
        "memable.workflow.SuspendPoint",
        "memable.retry.RetryPolicy",
        "memable.current_step.current_step",
        "memable.client.Client.subscribe",
    } <= names
