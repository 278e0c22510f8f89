"""The layers of the library: nothing imports what stands above it, and foreign packages come in at one place each.

What stands under TYPE_CHECKING does not count, what stands inside a function does: it is only imported later.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import memable

ROOT = Path(memable.__file__).parent

# Lowest first. A name is a module or a whole folder.
LAYERS = [
    "errors state retry moments missing extras trace_context",
    "annotations children_call damage exactness codec keys labels settings",  # settings checks what keys allow
    "lua endpoint calls blocking_reader connection pubsub embedded",
    "journal holding store server family",
    "current_step durable_call context workflow",
    "announcement entering presence fleet schedule forking inputs reading listening definitions listing watching",
    "invocation client",
    "arq_serializers runtime observability",
    "doctor engine",
    "cli __main__",
    "testing",
]
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer.split()}

# Foreign package: who may import it.
BORDERS = {
    "orjson": {"codec"},
    "pydantic_settings": {"settings"},
    "hiredis": {"endpoint"},
    # the lease thread has a synchronous client of its own; arq comes with redis-py's
    "redis": {"endpoint", "runtime.lease", "runtime.enduring", "runtime.arq_host"},
    "arq": {"runtime.arq_host"},
    "uvloop": {"runtime.arq_host"},
    "prometheus_client": {"observability.exposition"},
    "opentelemetry": {"observability.tracing"},
    "click": {"cli"},
    "rich": {"cli"},
    "worker": {"cli.demo"},  # an application of this repository, which the demo runs
    "pytest": {"testing.fixtures"},
    "tests": set[str](),
}


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported at run time."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            for alias in node.names:
                submodule = ROOT.parent / module.replace(".", "/") / alias.name
                is_module = submodule.is_dir() or submodule.with_suffix(".py").exists()
                yield f"{module}.{alias.name}" if is_module else module
        else:
            yield from imports(node)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


GRAPH = {
    name_of(path): set(imports(ast.parse(path.read_text())))
    for path in sorted(ROOT.rglob("*.py"))
    if path != ROOT / "__init__.py"  # the public names, above everything
}


def within(module: str, places: set[str]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


def test_every_module_has_a_layer() -> None:
    assert {module.split(".")[0] for module in GRAPH} == RANKS.keys()


@pytest.mark.parametrize("module", GRAPH)
def test_nothing_imports_what_stands_above_it(module: str) -> None:
    mine = RANKS[module.split(".", maxsplit=1)[0]]
    for imported in GRAPH[module]:
        assert imported != "memable", f"{module} imports the public names, which stand above everything"
        if imported.startswith("memable."):
            other = imported.split(".")[1]
            assert RANKS[other] <= mine, f"{module} imports {imported}, which stands above it"


def test_no_modules_import_one_another_in_a_circle() -> None:
    ours = {module: {each.removeprefix("memable.") for each in GRAPH[module]} & GRAPH.keys() for module in GRAPH}
    TopologicalSorter(ours).prepare()


@pytest.mark.parametrize("package", BORDERS)
def test_a_foreign_package_comes_in_at_its_border_only(package: str) -> None:
    users = {module for module, imported in GRAPH.items() if any(each.split(".")[0] == package for each in imported)}
    assert all(within(user, BORDERS[package]) for user in users), f"{package} is imported by {sorted(users)}"


def test_the_runtime_knows_nothing_of_its_hosts() -> None:
    for module, imported in GRAPH.items():
        if module.startswith("runtime.") and module != "runtime.arq_host":
            assert not within("memable.runtime.arq_host", imported), f"{module} knows of arq"
