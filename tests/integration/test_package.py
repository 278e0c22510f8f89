"""The wheel and the sdist have what they should, and the wheel works where nothing else is.

The environments of these tests have the wheel, and of this environment just the packages that it requires: none that we
have and users have not can be missed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.markdown import README, ROOT, assert_printed, blocks
from tests.quick_start import commands, is_installation, is_shown, play

# environments are made, and a whole page is played: minutes on a slow machine
pytestmark = pytest.mark.timeout(600)

EXTRAS = {"worker", "embedded", "metrics", "otel", "dev"}
# what is of no use without the repository: what CI and git read
NOT_IN_SDIST = re.compile(r"\.ci/|\.git")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel and the sdist are."""
    directory = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(directory)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=100)
    return directory


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (file,) = built.glob("*.whl")
    return file


def needed(requirements: Iterable[str], extras: Iterable[str] = ()) -> Iterator[Distribution]:
    """What of this environment these requirements need, and what that needs."""
    for requirement in map(Requirement, requirements):
        if requirement.marker and not any(requirement.marker.evaluate({"extra": each}) for each in ("", *extras)):
            continue
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:  # pragma: no cover - optional for what requires it
            continue
        yield found
        yield from needed(found.requires or (), requirement.extras)


def environment(directory: Path, wheel: Path, *extras: str) -> Path:
    """The directory of programs of an environment with the wheel, with these extras, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=100)
    install = [
        "-m",
        "pip",
        "--python",
        str(directory / "bin" / "python"),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([sys.executable, *install, "--disable-pip-version-check", wheel], check=True, timeout=100)
    variables = {"base": str(directory), "platbase": str(directory)}
    here, there = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("purelib", "venv", variables))
    metadata = metadata_of(wheel)
    for found in needed(metadata, extras):
        for name in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (there / name).exists() and (here / name).exists():
                (there / name).symlink_to(here / name)
    return directory / "bin"


def metadata_of(wheel: Path) -> list[str]:
    """What the wheel requires."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])


@pytest.fixture(scope="session")
def complete(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment for a laptop."""
    return environment(tmp_path_factory.mktemp("laptop") / "venv", wheel, "worker", "embedded")


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a web app's environment: without any extra."""
    return environment(tmp_path_factory.mktemp("web") / "venv", wheel)


def said(program: Path, *words: str, cwd: Path, code: int = 0, **variables: str) -> str:
    """What a program prints, on either stream, with nothing of this environment around it."""
    done = subprocess.run(
        [program, *words],
        cwd=cwd,
        env={"PATH": str(program.parent), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def files_below(directory: str) -> set[str]:
    return {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / directory).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


# ── what is in them ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_wheel_has_the_library_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == files_below("memable")
    assert {
        "memable/py.typed",
        "memable/lua/claim.lua",
        "memable/lua/lib/state.lua",
        "memable/cli/root.py",
    } <= names


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            name.partition(".dist-info/")[2]: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/" in name
        }
    metadata = Parser().parsestr(texts["METADATA"])
    assert metadata["License-Expression"] == "MIT"
    assert texts["licenses/LICENSE"].startswith("MIT License")
    assert set(metadata.get_all("Provides-Extra", [])) >= EXTRAS
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "memable = memable.cli:main" in texts["entry_points.txt"]


def test_the_sdist_has_every_file_of_the_repository(built: Path) -> None:
    (file,) = built.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert {
        "PKG-INFO",
        "docs/README.md",
        "deploy/redis.conf",
        "tests/conftest.py",
        "examples/saga.py",
        "mkdocs.yml",
    } <= names
    assert not [name for name in names if re.search(r"(^|/)(\.venv|build|dist|__pycache__)/", name)]
    # an unpacked sdist is no repository: then there is nothing to compare with
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    there = {name for name in tracked if (ROOT / name).exists() and not NOT_IN_SDIST.match(name)}
    assert not there - names, "something is left out of the sdist"


# ── the wheel alone ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_quick_start_is_as_its_page_says(complete: Path, tmp_path: Path) -> None:
    typed = [each for each in commands() if not is_installation(each)]
    # a path that is short enough for a socket in it
    play(tmp_path, typed, PATH=f"{complete}:{os.environ['PATH']}")


def test_the_example_of_the_readme_runs_from_anywhere(complete: Path, tmp_path: Path) -> None:
    (example := tmp_path / "first.py").write_text(blocks(README, "python")[0])
    promised = re.findall(r"^ *print\(.*\) +# (.*)$", example.read_text(), re.MULTILINE)
    assert_printed(said(complete / "python", "first.py", cwd=tmp_path), promised)


def test_a_web_app_needs_no_extra(bare: Path, tmp_path: Path, redis_url: str, namespace: str) -> None:
    (tmp_path / "web.py").write_text(f"""\
import asyncio, memable
app = memable.App()
@app.workflow("order")
async def order(ctx: memable.Context, amount: int) -> None: ...
async def main() -> None:
    async with memable.connect({redis_url!r}, app=app) as client:
        invocation = await client.invoke(order, 42, id="1")
        print(memable.__file__, invocation.created, (await invocation.metadata()).state)
asyncio.run(main())
""")
    where, *rest = said(bare / "python", "web.py", cwd=tmp_path, MEMABLE_NAMESPACE=namespace).split()
    assert where.startswith(str(bare.parent))
    assert rest == ["True", "queued"]


def test_the_command_says_in_one_line_which_extra_it_needs(bare: Path, tmp_path: Path) -> None:
    line = said(bare / "memable", "list", cwd=tmp_path, code=2)
    assert re.fullmatch(r"memable: this needs \w+, which is not installed: pip install 'memable\[worker\]'\n", line)


NEEDS = {
    "worker": "memable.worker_settings(memable.App())",
    "embedded": "import memable.embedded; memable.embedded.find_server()",
}


@pytest.mark.parametrize("extra", NEEDS)
def test_what_needs_an_extra_says_so_in_one_line(extra: str, bare: Path, tmp_path: Path) -> None:
    text = said(bare / "python", "-c", f"import memable; {NEEDS[extra]}", cwd=tmp_path, code=1)
    assert f"pip install 'memable[{extra}]'" in text.splitlines()[-1]


def test_the_extras_of_a_fleet_bring_what_is_imported_for_them(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", wheel, "worker", "metrics", "otel") / "python"
    modules = ["cli.root", "runtime.arq_host", "observability.exposition", "observability.tracing"]
    assert not said(python, "-c", "; ".join(f"import memable.{each}" for each in modules), cwd=tmp_path)


def test_what_is_shown_is_found_in_what_is_printed() -> None:
    printed = "noise\nstate      suspended: approval\nmore\ncharge:v1  completed  1\n"
    assert is_shown(["state … approval", "charge:v1 … 1"], printed)
    assert not is_shown(["charge:v1 … 1", "state … approval"], printed)
    assert not is_shown(["state completed"], printed)
