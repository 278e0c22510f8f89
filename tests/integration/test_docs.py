"""What the pages of docs/ show is run, what they name exists, and their numbers are those of the code."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import memable
from chaos.checker import judge
from chaos.course import Plan
from chaos.evidence import Evidence, Left
from chaos.history import History
from memable import App, Context, MemableError, StorageError
from memable.observability import tracing
from memable.observability.__main__ import main as print_metrics
from memable.observability.metrics import NAMES
from memable.runtime.lease import RENEWALS_PER_LEASE
from memable.settings import PREFIX, Settings
from tests.configured_server import server_with
from tests.markdown import DOCS, README, ROOT, blocks, run_example

OBSERVABILITY = ROOT / "docs" / "observability.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
TROUBLES = ROOT / "docs" / "troubleshooting.md"
# whose text is somebody else's
SAY_NOTHING = {"SettingsError", "RetryableError", "PermanentError"}
REDIS_CONF = ROOT / "deploy" / "redis.conf"


def named(page: Path) -> str:
    return page.name


def shown(language: str) -> list[Any]:
    """Each block of `language` in each page, as a parameter; files are run by tests of their own."""
    return [
        pytest.param(code, f"docs/{page.name}", id=f"{page.name}-{number}")
        for page in DOCS
        for number, code in enumerate(blocks(page, language), 1)
        if not re.match(r"# \w+\.py\n", code)
    ]


# ── a server with a configuration file ───────────────────────────────────────────────────────────────────────────────


def directives(configuration: str) -> list[tuple[str, str]]:
    lines = [shlex.split(line, comments=True) for line in configuration.splitlines()]
    return [(name, value) for name, value in filter(None, lines)]


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a path that is short enough for a socket in it."""
    return tmp_path_factory.mktemp("r")


# ── what is shown ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("code", "where"), shown("python"))
async def test_an_example_prints_what_its_comments_say(
    code: str, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_example(code, where, capsys, monkeypatch)


@pytest.mark.parametrize(("code", "where"), shown("conf"))
def test_a_server_takes_the_settings_that_are_shown(code: str, where: str, directory: Path) -> None:
    (configuration := directory / "shown.conf").write_text(code)
    with server_with(configuration, directory) as client:
        assert {name: client.config_get(name)[name] for name, _ in directives(code)} == dict(directives(code))


@pytest.mark.parametrize(("code", "where"), shown("sh"))
def test_a_command_does_what_its_comment_says(code: str, where: str, directory: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    with server_with(REDIS_CONF, directory) as client:
        for line in code.splitlines():
            program, *words = shlex.split(line, comments=True)
            match program:
                case "redis-cli":
                    *_, answer = client.execute_command(*words)
                    assert answer.decode() == line.partition("# ")[2]
                case "make":
                    would_do = subprocess.check_output([program, "-n", *words], cwd=ROOT, text=True)
                    for name, _, value in (word.rpartition("=") for word in words):
                        assert value in would_do
                        assert not name or f"$({name})" in makefile
                case _:
                    pytest.fail(f"nobody runs {line!r}")


# ── what is named ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", [README, *DOCS], ids=named)
def test_the_files_and_sections_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\((?!https?:)(.+?)\)", text):
        file, _, section = target.partition("#")
        other = page.parent / file if file else page
        assert other.exists(), target
        if section:
            assert section in sections(other), target
    for file in re.findall(r"`((?:tests|memable|chaos|worker|deploy|docs)/[^ `*]+)`", text):
        assert (ROOT / file).exists(), file


def test_the_index_names_every_page_and_every_example() -> None:
    index = ROOT / "docs" / "README.md"
    named = set(re.findall(r"^\| \[.+?\]\((.+?)\)", index.read_text("utf-8"), re.MULTILINE))
    examples = {f"../examples/{file.name}" for file in (ROOT / "examples").glob("*.py")}
    examples |= {f"../{file.relative_to(ROOT)}" for file in (ROOT / "examples").glob("*/README.md")}
    assert named == {page.name for page in DOCS if page != index} | examples


def sections(page: Path) -> list[str]:
    """What a link to a heading of the page ends with."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def rows(page: Path) -> list[list[str]]:
    """The cells of each line of each table."""
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_rows_of_the_chaos_table_that_are_explained_are_there() -> None:
    text = GUARANTEES.read_text("utf-8").partition("## See for yourself")[2]
    explained = {name for line in text.splitlines() if line.startswith("| `") for name in re.findall(r"`(.+?)`", line)}
    nothing = Evidence(3, [], [], [], [], History(), Left(), ended_s=0, settled=True)
    assert {"lost", "doubled records", "timers early"} <= explained <= {name.strip() for name in judge(nothing).table}
    plan = Plan(seconds=1, seed=1)
    assert f"{plan.workers} worker processes" in text
    assert f"{plan.per_second:g} instances a second" in text


def test_each_error_says_what_the_page_about_troubles_has() -> None:
    found = {cells[0].strip("`"): cells[1] for cells in rows(TROUBLES) if re.fullmatch(r"`[A-Z]\w+`", cells[0])}
    public = [getattr(memable, name) for name in memable.__all__]
    assert set(found) == {each.__name__ for each in public if isinstance(each, type) and issubclass(each, MemableError)}
    source = "".join(file.read_text("utf-8") for file in (ROOT / "memable").rglob("*.py"))
    # as it is written, whatever lines it is broken into
    source = re.sub(r"""["']\s*f?["']""", "", source)
    for name, text in found.items():
        for piece in re.split(r"[…;]", text):
            assert piece.strip(" :.,()") in source or name in SAY_NOTHING, (name, piece)


def test_code_of_others_that_is_shown_can_be_compiled() -> None:
    foreign = [code for page in DOCS for code in blocks(page, "py")]
    assert foreign
    for code in foreign:
        compile(code, "docs", "exec")


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_settings_have_the_defaults_that_are_said() -> None:
    said = {cells[0].strip("`"): cells[1] for cells in rows(GUARANTEES) if cells[0].startswith(f"`{PREFIX}")}
    defaults: dict[str, Any] = {name: field.default for name, field in Settings.model_fields.items()}
    numbers = {name: value for name, value in defaults.items() if isinstance(value, int | float)}
    assert said == {PREFIX + name.upper(): in_words(name, value) for name, value in numbers.items()}


def in_words(name: str, value: Any) -> str:
    if name == "max_payload":
        return f"{value:,} bytes"
    return f"{value:g} s" if isinstance(value, float) else str(value)


def test_the_numbers_that_are_no_settings_are_those_of_the_code() -> None:
    found = [cells for cells in rows(GUARANTEES) if re.fullmatch(r"`(memable|chaos)(\.\w+)+`", cells[-1])]
    assert len(found) > 5
    for _, said, where in found:
        module, _, name = where.strip("`").rpartition(".")
        value = getattr(importlib.import_module(module), name)
        number = value.days if isinstance(value, timedelta) else value
        assert said.split()[0] == f"{number:g}", where


def test_no_duration_in_the_text_is_without_a_table_that_has_it() -> None:
    lease_s, default = Settings.model_fields["lease"].default, Settings.model_fields["max_recoveries"].default
    taken_over_s = lease_s * (1 + 1 / RENEWALS_PER_LEASE)
    text = re.sub(r"^```.*?^```$", "", GUARANTEES.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    in_tables = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    duration = r"\b\d[\d.,]* (?:ms|s|days)\b"
    known = {*re.findall(duration, in_tables), f"{taken_over_s:g} s"}
    assert set(re.findall(duration, text)) <= known
    # what is promised of a killed worker holds with some room
    assert taken_over_s < 5
    assert f"{taken_over_s:g} s by default" in text
    assert f"default lease of {lease_s:g} s" in text
    assert f"after {default} losses in a row" in text


# ── deploy/redis.conf ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_takes_every_setting_of_the_file(directory: Path) -> None:
    given = directives(REDIS_CONF.read_text("utf-8"))
    with server_with(REDIS_CONF, directory) as client:
        assert {name: client.config_get(name)[name] for name, _ in given} == dict(given)


def test_the_page_shows_settings_of_the_file() -> None:
    file = REDIS_CONF.read_text("utf-8")
    offered = [*directives(file), *directives("\n".join(re.findall(r"^# ([a-z-]+ \d+)$", file, re.MULTILINE)))]
    for code in blocks(GUARANTEES, "conf"):
        assert set(directives(code)) <= set(offered)


async def test_what_was_acknowledged_outlives_the_kill_of_a_server_with_these_settings(directory: Path) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None: ...

    url = f"unix://{directory / 's'}"
    with server_with(REDIS_CONF, directory):
        async with memable.connect(url, app=app) as client:
            for number in range(20):
                await client.invoke(order, id=str(number))
    # as a power loss can leave it
    (file,) = (directory / "appendonlydir").glob("*.incr.aof")
    with file.open("ab") as tail:
        tail.write(b"*3\r\n$3\r\nSET\r\n$1\r\n")
    with server_with(REDIS_CONF, directory):
        async with memable.connect(url, app=app) as client:
            page = await client.list_instances(order)
    assert len(page.items) == 20


async def test_a_backup_is_restored_as_the_page_says(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None: ...

    with server_with(REDIS_CONF, directory) as admin:
        async with memable.connect(f"unix://{directory / 's'}", app=app) as client:
            await client.invoke(order, id="1")
        admin.save()  # as `redis-cli --rdb` has it
    restored = tmp_path_factory.mktemp("r")
    shutil.copy(directory / "dump.rdb", restored)
    with server_with(REDIS_CONF, restored, "--appendonly", "no") as admin:
        admin.config_set("appendonly", "yes")
        info = {"aof_rewrite_in_progress": 1}
        while info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]:
            info = admin.info("persistence")
    with server_with(REDIS_CONF, restored):
        async with memable.connect(f"unix://{restored / 's'}", app=app) as client:
            assert not (await client.invoke(order, id="1")).created


async def test_a_full_server_with_these_settings_refuses_and_keeps_what_it_has(directory: Path) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None: ...

    with server_with(REDIS_CONF, directory) as admin:
        async with memable.connect(f"unix://{directory / 's'}", app=app) as client:
            await client.invoke(order, id="1")
            keys = admin.dbsize()
            admin.config_set("maxmemory", 1)
            with pytest.raises(StorageError):
                await client.invoke(order, id="2")
            assert admin.dbsize() == keys
            admin.config_set("maxmemory", 0)
            assert not (await client.invoke(order, id="1")).created
            assert (await client.invoke(order, id="2")).created


# ── docs/observability.md ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_of_metrics_is_the_one_that_the_code_has(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics()
    table = capsys.readouterr().out
    text = OBSERVABILITY.read_text("utf-8")
    assert table in text, "python -m memable.observability prints it"
    samples = {name.removesuffix(end) for name in re.findall(r"\bmemable_\w+", text) for end in ("_bucket", "")}
    assert {name for name in samples if not name.endswith("_bucket")} == NAMES


def test_the_attributes_of_spans_are_those_that_are_said() -> None:
    said = set(re.findall(r"`(memable\.\w+)`", OBSERVABILITY.read_text("utf-8").partition("| attribute |")[2]))
    assert said == set(re.findall(r'(?<!getLogger\()"(memable\.\w+)"', Path(tracing.__file__).read_text("utf-8")))
