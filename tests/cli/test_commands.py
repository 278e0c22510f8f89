"""The `memable` command: what it prints, what it exits with, and the one line that it has for whatever is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

import memable
from memable import App, Client, Context
from memable.cli.fleet import Fleet
from memable.cli.root import _COMMANDS
from memable.cli.worker import redis_cli
from memable.connection import Endpoint
from memable.embedded import TemporaryServer, ensure_server, stop_server
from tests.cli.command_line import APP, INSTANCE_FIELDS, STEP_FIELDS, AsyncCli, Cli, Ran, memable_worker
from tests.proxy import Proxy
from tests.worker_process import TOO_LONG_S, WorkerProcess, until

# ── the everyday commands ────────────────────────────────────────────────────────────────────────────────────────


async def test_invoke_starts_an_instance_once_and_waits_for_its_result(worker: WorkerProcess, acli: AsyncCli) -> None:
    assert await acli("invoke", "greet", '"you"', "--id", "g", "--wait") == (0, 'greet/g completed\n"hello you"\n', "")
    assert await acli("invoke", "greet", '"you"', "--id", "g") == (0, "greet/g (was there already) completed\n", "")

    document = (await acli("invoke", "greet", '"you"', "--id", "g", "--wait", "--json")).document
    assert document.keys() == INSTANCE_FIELDS | {"created", "output"}
    assert (document["created"], document["status"], document["output"]) == (False, "completed", "hello you")

    (await acli("invoke", "greet", '"her"', "--id", "g")).is_refused("greet/g exists already, with another input")


@pytest.mark.parametrize(
    ("delay", "begins"), [("3600", 3600), ("90m", 5400), ("1.5h", 5400), ("2d", 2 * 86400), ("30s", 30)]
)
async def test_invoke_may_be_delayed(
    worker: WorkerProcess, client: Client, acli: AsyncCli, delay: str, begins: float
) -> None:
    document = (await acli("invoke", "greet", '"you"', "--id", "g", "--delay", delay, "--json")).document
    assert document["state"].startswith("queued: delayed until ")
    due_ms = await client._online().connection.command("HGET", client._find("greet", "g").instance, "due")
    known = await client.get_metadata("greet", "g")
    assert known is not None
    assert round(int(due_ms) / 1000 - known.created_at.timestamp()) == begins


async def test_invoke_may_be_delayed_to_a_moment(worker: WorkerProcess, acli: AsyncCli) -> None:
    ran = await acli("invoke", "greet", '"you"', "--id", "g", "--delay", "2999-01-31T12:00:05+01:00")
    assert ran == (0, "greet/g queued: delayed until 2999-01-31 11:00:05\n", "")
    ran = await acli("invoke", "greet", '"you"', "--id", "past", "--delay", "2001-01-31T12:00:05Z", "--wait")
    assert ran == (0, 'greet/past completed\n"hello you"\n', "")


async def test_instances_are_found_by_their_labels(worker: WorkerProcess, acli: AsyncCli) -> None:
    for number, tenant in enumerate(["acme", "zeta"]):
        labels = ("--label", f"tenant={tenant}", "--label", "site=a=b")
        assert (await acli("invoke", "greet", '"you"', "--id", str(number), "--wait", *labels)).code == 0
    found = (await acli("list", "--label", "tenant=acme", "--label", "site=a=b", "--json")).document
    assert [(each["instance_id"], each["labels"]) for each in found["items"]] == [
        ("0", {"tenant": "acme", "site": "a=b"})
    ]
    assert re.search(r"^labels +site=a=b, tenant=acme$", (await acli("show", "greet", "0")).out, re.MULTILINE)
    (await acli("list", "--label", "tenant")).is_refused("'tenant' is no NAME=VALUE")
    (await acli("invoke", "greet", '"x"', "--label", "a=1", "--label", "a=2")).is_refused("'a' is given twice")
    (await acli("list", "--label", "tenant=")).is_refused("invalid value of the label 'tenant'")


async def test_an_instance_that_fails_is_exit_code_1(worker: WorkerProcess, acli: AsyncCli) -> None:
    ran = await acli("invoke", "fail", "--id", "f", "--wait")
    assert ran.code == 1
    # whatever is in an author's error, it is one line, and steers nobody's terminal
    assert ran.out.startswith("fail/f failed: StepFailed: ")
    assert len(ran.out.splitlines()) == 1
    assert "\x1b" not in ran.out

    ran = await acli("invoke", "fail", "--id", "f", "--wait", "--json")
    assert ran.code == 1
    assert ran.document["status"] == "failed"

    resumed = await acli("resume", "fail", "f")
    assert resumed.code == 0
    assert resumed.out.startswith("fail/f ")
    # waited for: the second run counts, and ends as the first did
    again = await acli("invoke", "fail", "--id", "f", "--wait", "--json")
    assert (again.code, again.document["attempt"]) == (1, 2)


async def test_a_record_is_run_again_and_an_instance_deleted(
    worker: WorkerProcess, client: Client, acli: AsyncCli
) -> None:
    await (await client.invoke("fail", id="f")).wait()
    before = {each.key: each.started_at for each in await client.steps("fail", "f")}
    assert (await acli("resume", "fail", "f", "--rerun", "charge:v1")).code == 0
    await client.get("fail", "f").wait()
    after = {each.key: each.started_at for each in await client.steps("fail", "f")}
    assert after.keys() == before.keys()
    assert after["charge:v1"] != before["charge:v1"]
    (await acli("resume", "fail/f", "--rerun", "x")).is_refused(
        "instance fail/f has no record under 'x'; its keys: memable show fail/f"
    )

    assert await acli("delete", "fail", "f") == (0, "fail/f deleted\n", "")
    (await acli("delete", "fail", "f")).is_refused("there is no instance fail/f")
    await (await client.invoke("ask", id="a")).wait()
    (await acli("delete", "ask", "a")).is_refused("instance ask/a is suspended: wait for it to end, or cancel it")
    await (await client.invoke("greet", "you", id="g")).wait()
    deleted = {"workflow": "greet", "instance_id": "g", "deleted": True}
    assert (await acli("delete", "greet", "g", "--json")).document == deleted


async def test_a_cancel_ends_what_waits_and_says_how_what_has_ended_ended(
    worker: WorkerProcess, acli: AsyncCli
) -> None:
    await acli("invoke", "ask", "--id", "c", "--wait")
    assert await acli("cancel", "ask", "c", "--reason", "no \x1b more") == (0, "ask/c cancelled: no   more\n", "")
    document = (await acli("cancel", "ask", "c", "--json")).document
    assert document.keys() == INSTANCE_FIELDS
    assert (document["status"], document["state"]) == ("cancelled", "cancelled: no \x1b more")
    assert (await acli("invoke", "ask", "--id", "c", "--wait")).code == 1

    await acli("invoke", "greet", '"you"', "--id", "ended", "--wait")
    assert await acli("cancel", "greet", "ended") == (0, "greet/ended completed\n", "")


async def test_a_fork_begins_with_what_another_has_recorded(
    worker: WorkerProcess, client: Client, acli: AsyncCli
) -> None:
    await (await client.invoke("ask", id="a")).wait()
    ran = await acli("fork", "ask", "a", "--new-id", "b")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("ask/b ")
    again = (await acli("fork", "ask", "a", "--new-id", "b", "--json")).document
    assert again.keys() == INSTANCE_FIELDS | {"created"}
    assert (again["instance_id"], again["created"]) == ("b", False)
    (await acli("fork", "ask", "a", "--new-id", "b", "--before", "answer:v1")).is_refused("and is not this fork")
    (await acli("fork", "ask", "a", "--before", "x")).is_refused("instance ask/a has no record under 'x'")
    (await acli("fork", "ask", "c")).is_refused("there is no instance ask/c")


async def test_a_signal_completes_what_was_waited_for(worker: WorkerProcess, acli: AsyncCli) -> None:
    waiting = (await acli("invoke", "ask", "--id", "a", "--wait", "--json")).document
    assert (waiting["state"], waiting["waiting_on"]) == ("suspended: asking", ["answer:v1"])

    (await acli("signal", "ask", "a", "answer:v1", '"yes"')).is_refused("type mismatch: expected bool, found string")
    (await acli("signal", "ask", "a", "other:v1", "true")).is_refused(
        "signal 'other:v1' to ask/a rejected", "(with --buffer the signal is kept"
    )
    assert await acli("signal", "ask", "a", "later:v1", "true", "--buffer") == (0, "ask/a got later:v1\n", "")
    assert await acli("signal", "ask", "a", "answer:v1", "true", "--signal-id", "s") == (0, "ask/a got answer:v1\n", "")
    sent_again = await acli("signal", "ask", "a", "answer:v1", "true", "--signal-id", "s", "--json")
    assert sent_again.document == {"workflow": "ask", "instance_id": "a", "key": "answer:v1", "accepted": True}
    (await acli("signal", "ask", "a", "answer:v1", "true")).is_refused("superseded")


async def test_messages_come_to_a_mailbox_in_order(worker: WorkerProcess, client: Client, acli: AsyncCli) -> None:
    await acli("invoke", "chat", "--id", "a", "--wait")
    assert await acli("send", "chat", "a", "chat", '"hello"') == (0, "chat/a got a message in chat\n", "")
    for message in ("bye", "sent again"):
        sent = await acli("send", "chat", "a", "chat", json.dumps(message), "--message-id", "m", "--json")
        assert sent.document == {"workflow": "chat", "instance_id": "a", "mailbox": "chat", "accepted": True}
    assert await client.get("chat", "a").result(timeout=TOO_LONG_S) == ["hello", "bye"]
    (await acli("send", "chat", "a", "chat", "1")).is_refused("message for mailbox 'chat' to chat/a rejected")


async def test_show_is_a_timeline_of_the_steps(worker: WorkerProcess, client: Client, acli: AsyncCli) -> None:
    await (await client.invoke("fail", id="f")).wait()
    shown = await acli("show", "fail", "f")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert re.split(r"\s{2,}", lines[0]) == ["instance", "fail/f"]
    header = next(line for line in lines if line.startswith("AFTER"))
    assert header.split() == ["AFTER", "KEY", "KIND", "STATE", "ATTEMPTS", "DURATION", "WAIT", "TIME", "RESULT"]
    charge, ship = lines[lines.index(header) + 1 :]
    assert re.fullmatch(r'\+\S+ m?s +charge:v1 +step +completed +1 +\S+ m?s +━+ +"PAID"', charge)
    assert re.fullmatch(r"\+\S+ m?s +ship:v1 +step +failed +1 +\S+ m?s +━+ +ValueError: out of stock .*", ship)
    assert "\x1b" not in shown.out

    document = (await acli("show", "fail", "f", "--json")).document
    assert document.keys() == INSTANCE_FIELDS | {"output", "steps"}
    assert [step.keys() for step in document["steps"]] == [STEP_FIELDS, STEP_FIELDS]

    await (await client.invoke("ask", id="a")).wait()
    assert re.search(r"answer:v1 +signal +suspended +\S+ m?s … +┄+\n", (await acli("show", "ask/a")).out)


async def test_list_goes_page_by_page(client: Client, worker: WorkerProcess, acli: AsyncCli) -> None:
    for number in range(3):
        await (await client.invoke("greet", "you", id=f"g{number}")).wait()
    first = (await acli("list", "greet", "--limit", "2", "--json")).document
    assert first.keys() == {"items", "cursor"}
    assert [item["instance_id"] for item in first["items"]] == ["g2", "g1"]
    assert first["items"][0].keys() == INSTANCE_FIELDS
    second = (await acli("list", "greet", "--cursor", first["cursor"], "--json")).document
    assert ([item["instance_id"] for item in second["items"]], second["cursor"]) == (["g0"], None)

    shown = await acli("list", "--status", "completed", "--limit", "1")
    assert shown.out.splitlines()[0].split() == ["INSTANCE", "CREATED", "RUNS", "STATE"]
    assert shown.out.splitlines()[1].startswith("greet/g2 ")
    assert shown.out.splitlines()[2].startswith("more: --cursor ")
    assert (await acli("list", "nobody")).out == "no instances\n"


async def test_list_says_whose_instances_it_cannot_know(client: Client, acli: AsyncCli) -> None:
    app = App()

    @app.workflow("unheard")
    async def unheard(ctx: Context) -> None: ...

    await client.invoke(unheard, id="u")  # before there is a worker
    assert "announced" in (await acli("list")).out
    assert "unheard/u" in (await acli("list", "unheard")).out


@pytest.mark.parametrize(
    "words", ["watch --once --interval nan", f"schedules --limit {9**20}", f"list --limit {9**20}"]
)
def test_numbers_that_are_none_are_wrong_usage(cli: Cli, words: str) -> None:
    ran = cli(*words.split())
    assert (ran.code, ran.out) == (2, "")


async def test_the_options_go_before_the_environment(
    worker: WorkerProcess, acli: AsyncCli, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMABLE_REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("MEMABLE_NAMESPACE", "elsewhere")
    options = ("--url", redis_url, "--namespace", namespace)
    assert (await acli("invoke", "greet", '"you"', "--wait", "--json", *options)).document["output"] == "hello you"


async def test_an_input_may_come_from_stdin(worker: WorkerProcess, redis_url: str, namespace: str) -> None:
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "memable", "invoke", "greet", "-", "--wait", "--id", "g"],
        input='"you"',
        env={**os.environ, "MEMABLE_REDIS_URL": redis_url, "MEMABLE_NAMESPACE": namespace},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, 'greet/g completed\n"hello you"\n', "")


# ── what is wrong is said in one line ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense"], "No such command 'nonsense' (see memable --help)"),
        (["show"], "Missing argument 'WORKFLOW/ID' (see memable show --help)"),
        (["show", "greet"], "an instance is named WORKFLOW/ID, such as order/42 (see memable show --help)"),
        (["show", "greet/a/b"], "invalid instance id 'a/b'"),
        (["list", "--limit", "0"], "Invalid value for '--limit'"),
        (
            ["list", "--status", "done"],
            "'done' is not one of 'queued', 'running', 'suspended', 'completed', 'failed', 'cancelled'",
        ),
        (["list", "--cursor", "nowhere"], "'nowhere' is no cursor: give what the page before has said, or leave"),
        (["schedules", "--cursor", "nowhere"], "'nowhere' is no cursor"),
        (["watch", "greet/none"], "there is no instance greet/none"),
        (["watch", "--interval", "0"], "Invalid value for '--interval'"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["list", "--colour"], "No such option"),
        (["invoke", "greet", "you"], "'you' is no JSON (a text is written with its quotes: '\"you\"')"),
        (["invoke", "greet", "NaN"], "'NaN' is no JSON"),
        (["invoke", "nobody"], "no worker has announced it; start one that has it: memable worker MODULE:APP"),
        (["invoke", "a/b"], "invalid workflow 'a/b'"),
        (["invoke", "greet", "--id", ""], "invalid instance id ''"),
        (
            ["invoke", "greet", "--delay", "soon"],
            "'soon' is neither a delay, as 90 (seconds), 15m, 2h or 1d",
        ),
        (["invoke", "greet", "--delay", "2999-01-31T12:00"], "is a time without its zone: 2999-01-31T12:00Z is in UTC"),
        (["show", "greet", "none"], "there is no instance greet/none"),
        (["resume", "greet", "none"], "there is no instance greet/none"),
        (["cancel", "greet", "none"], "there is no instance greet/none"),
        (["signal", "greet", "none", "go"], "signal 'go' to greet/none rejected"),
        (["signal", "greet", "none", "_go"], "invalid suspend point '_go'"),
        (["list", "--namespace", "no space"], "setting namespace is 'no space'"),
        (["list", "--url", "http://localhost"], "the Redis URL is wrong: it must begin with redis://"),
        (["list", "--url", "redis://localhost:port"], "the Redis URL is wrong: its host or port"),
        (["worker", APP, "--processes", "0"], "Invalid value for '--processes'"),
        (["worker", APP, "--concurrency", "some"], "Invalid value for '--concurrency'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(cli: Cli, arguments: list[str], text: str) -> None:
    cli(*arguments).is_refused(text)


@pytest.mark.parametrize(
    ("source", "place", "texts"),
    [
        ("", "{}", ["is not MODULE:APP, such as shop.workflows:app"]),
        ("", "{}:", ["is not MODULE:APP"]),
        ("", "nowhere_{}:app", ["there is no module 'nowhere_"]),
        ("", "{}.inner:app", ["there is no module '", ".inner'"]),
        ("import nowhere", "{}:app", ["cannot be imported: ModuleNotFoundError: No module named 'nowhere'"]),
        ("def f():\n    1 / 0\nf()", "{}:app", ["cannot be imported: ZeroDivisionError: division by zero (", "line 2"]),
        ("x = = 1", "{}:app", ["cannot be imported: SyntaxError: invalid syntax"]),
        ("raise ValueError('two\\nlines')", "{}:app", ["cannot be imported: ValueError: two lines ("]),
        ("raise SystemExit(3)", "{}:app", ["cannot be imported: SystemExit: 3"]),
        ("import memable\nshop = memable.App()", "{}:app", ["has no attribute 'app'; it has ", ":shop"]),
        ("app = 'an app'", "{}:app", ["is of type 'str' and not a memable.App"]),
        ("import memable\napp = memable.App", "{}:app", ["is the class 'App' and not a memable.App"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
@pytest.mark.parametrize("command", ["worker", "dev"])
def test_an_app_that_cannot_be_had(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, source: str, place: str, texts: list[str]
) -> None:
    name = f"app_{abs(hash((command, source, place)))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    cli(command, place.format(name)).is_refused(*texts)


@pytest.mark.parametrize("command", [["list"], ["worker", APP]], ids=["list", "worker"])
def test_a_setting_that_is_not_allowed(cli: Cli, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setenv("MEMABLE_LEASE", "soon")
    cli(*command).is_refused("MEMABLE_LEASE is 'soon'; allowed: seconds, at least 1")


class OlderRedis(Proxy):
    """A server that says that it is Redis 6.2."""

    async def _pump_replies(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter, dialogue: object) -> None:
        while data := await server.read(1 << 20):
            writer.write(re.sub(rb"redis_version:\d\.\d", b"redis_version:6.2", data))


WAYS = pytest.mark.parametrize(
    "way", [["list"], ["worker", APP], ["worker", APP, "--processes", "2"]], ids=["list", "worker", "processes"]
)


def subprocess_cli(*arguments: str) -> Ran:
    command = [sys.executable, "-m", "memable", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TOO_LONG_S, check=False)
    # what arq says as it starts is no error
    err = "".join(line for line in ran.stderr.splitlines(True) if not re.match(r"\d\d:\d\d:\d\d: ", line))
    return Ran(ran.returncode, ran.stdout, err)


@WAYS
async def test_a_redis_older_than_7_0(redis_url: str, monkeypatch: pytest.MonkeyPatch, way: list[str]) -> None:
    async with OlderRedis(redis_url) as older:
        monkeypatch.setenv("MEMABLE_REDIS_URL", older.url)
        (await asyncio.to_thread(subprocess_cli, *way)).is_refused("is Redis 6.2", "needs Redis 7.0 or Valkey 8")


@WAYS
def test_a_url_that_is_none(monkeypatch: pytest.MonkeyPatch, way: list[str]) -> None:
    monkeypatch.setenv("MEMABLE_REDIS_URL", "http://me:secret@localhost")
    ran = subprocess_cli(*way)
    ran.is_refused("the Redis URL is wrong: it must begin with redis://, rediss:// or unix://")
    assert "secret" not in ran.err


@WAYS
def test_a_server_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: list[str]) -> None:
    monkeypatch.setenv("MEMABLE_REDIS_URL", f"unix://{tmp_path}/nobody.sock")
    subprocess_cli(*way).is_refused("cannot reach Redis at unix://", "check the URL, and that the server runs")


def test_who_has_not_said_where_redis_is_is_told_so(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/nobody.sock"
    monkeypatch.setenv("MEMABLE_REDIS_URL", nowhere)
    assert "is not set" not in cli("list").err
    monkeypatch.delenv("MEMABLE_REDIS_URL")
    monkeypatch.setattr("memable.cli.options.connect", lambda url, **rest: memable.connect(url or nowhere, **rest))
    cli("list").is_refused("check the URL, and that the server runs; MEMABLE_REDIS_URL is not set")
    assert "is not set" not in cli("list", "--url", nowhere).err


@WAYS
def test_a_namespace_of_another_layout(redis_url: str, namespace: str, way: list[str]) -> None:
    with Endpoint.from_url(redis_url).sync_client() as admin:
        admin.hset(f"{namespace}:meta", mapping={"layout": "99", "partitions": "1"})
    subprocess_cli(*way).is_refused(repr(namespace), "layout")


@WAYS
def test_a_namespace_of_another_number_of_partitions(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, way: list[str]
) -> None:
    monkeypatch.setenv("MEMABLE_PARTITIONS", "4")
    assert subprocess_cli("list").code == 0
    monkeypatch.setenv("MEMABLE_PARTITIONS", "2")
    subprocess_cli(*way).is_refused(f"namespace {namespace!r} has 4 partitions, not 2")


@pytest.mark.parametrize("missing", ["click", "rich", "arq"])
def test_without_the_extra_it_says_what_to_install(missing: str, redis_url: str) -> None:
    arguments = ["memable", "worker", APP] if missing == "arq" else ["memable", "list"]
    code = f"import sys; sys.modules[{missing!r}] = None; sys.argv = {arguments}; import memable.cli as c; c.main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    Ran(ran.returncode, ran.stdout, ran.stderr).is_refused(f"needs {missing}", "pip install 'memable[worker]'")


def test_without_a_command_it_lists_them(cli: Cli) -> None:
    ran = cli()
    assert (ran.code, ran.out) == (2, "")
    for name in _COMMANDS:
        assert f"\n  {name} " in ran.err
    assert cli("--version") == (0, "memable 0.1.0\n", "")
    assert cli("worker", "--help").out.startswith("Usage: memable worker [OPTIONS] MODULE:APP")


# ── worker processes ─────────────────────────────────────────────────────────────────────────────────────────────


def pids_in(process: WorkerProcess) -> list[int]:
    return [int(pid) for pid in re.findall(r"worker process \d+ is pid (\d+)", process.log)]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # killed, and not yet reaped by whoever inherited it
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


async def test_several_processes_end_together(tmp_path: Path, redis_url: str, namespace: str, client: Client) -> None:
    async with memable_worker(tmp_path, redis_url, namespace, "--processes", "2", "--concurrency", "3") as fleet:
        await fleet.logged("INFO memable.runtime: worker", times=2)
        assert await (await client.invoke("greet", "you")).result() == "hello you"
        assert await fleet.terminate() == 0
        assert len(pids_in(fleet)) == 2
        assert all(is_gone(pid) for pid in pids_in(fleet))
        assert fleet.log.count("has stopped") == 2


async def test_a_process_that_dies_is_replaced(tmp_path: Path, redis_url: str, namespace: str, client: Client) -> None:
    async with memable_worker(tmp_path, redis_url, namespace, "--processes", "2") as fleet:
        await fleet.logged("INFO memable.runtime: worker", times=2)
        for pid in pids_in(fleet):
            os.kill(pid, signal.SIGKILL)
        await fleet.logged("was killed by SIGKILL; another starts in 0.5 s", times=2)
        assert await (await client.invoke("greet", "you")).result() == "hello you"
        await fleet.logged("INFO memable.runtime: worker", times=4)
        assert await fleet.terminate() == 0
        assert all(is_gone(pid) for pid in pids_in(fleet))


async def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path, redis_url: str, namespace: str) -> None:
    async with memable_worker(tmp_path, redis_url, namespace, "--processes", "2") as fleet:
        await fleet.logged("INFO memable.runtime: worker", times=2)
        fleet.process.kill()
        await until(lambda: all(is_gone(pid) for pid in pids_in(fleet)), "the end of the orphans")
        assert fleet.log.count("has stopped") == 2


async def test_a_process_that_cannot_start_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    assert await Fleet(["nowhere_at_all:app"], 2, is_burst=False).run() == 2
    assert "memable: there is no module 'nowhere_at_all'" in capfd.readouterr().err


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_burst_ends_when_all_is_done(
    tmp_path: Path, redis_url: str, namespace: str, client: Client, processes: str
) -> None:
    async with memable_worker(tmp_path, redis_url, namespace, "--burst") as announcer:
        assert await announcer.ended() == 0
    invocations = [await client.invoke("greet", str(number)) for number in range(20)]
    later = await client.invoke("greet", "later", delay=3600)
    async with memable_worker(tmp_path, redis_url, namespace, "--burst", "--processes", processes) as burst:
        assert await burst.ended() == 0
    for invocation in [*invocations, later]:
        known = await invocation.metadata()
        assert known is not None
        assert known.status == ("queued" if invocation is later else "completed")


async def test_dev_brings_its_own_server_and_takes_it_away(tmp_path: Path, data_dir: Path) -> None:
    command = ("-m", "memable", "dev", APP, "--data-dir", str(data_dir))
    async with WorkerProcess(tmp_path, "", *command) as dev:
        url = re.search(r"Redis: +(\S+)", dev.log)
        shell = re.search(r"look in: +redis-cli -s (\S+)", dev.log)
        assert url is not None
        assert shell is not None
        with redis.Redis(unix_socket_path=shell[1]) as looking:
            assert looking.ping()
        async with memable.connect(url[1], namespace="memable") as client:
            assert await (await client.invoke("greet", "you", id="g")).result() == "hello you"
        dev.process.send_signal(signal.SIGINT)
        assert await dev.ended() == 0
        assert "Traceback" not in dev.log
        assert "runs on" not in dev.log
    with pytest.raises(redis.ConnectionError), redis.Redis(unix_socket_path=shell[1]) as looking:
        looking.ping()


async def test_dev_starts_its_own_server_again_where_its_url_was_exported(tmp_path: Path, data_dir: Path) -> None:
    url = ensure_server(data_dir)
    stop_server(data_dir)
    async with WorkerProcess(tmp_path, url, "-m", "memable", "dev", APP, "--data-dir", str(data_dir)) as dev:
        async with memable.connect(url, namespace="memable") as client:
            assert await (await client.invoke("greet", "you", id="g")).result() == "hello you"
        assert await dev.terminate() == 0
    # as ever, the last one turns off the light
    with pytest.raises(memable.StorageError, match="cannot reach"):
        await memable.connect(url)


async def test_dev_says_so_when_it_leaves_its_server_to_others(tmp_path: Path, data_dir: Path) -> None:
    dev = WorkerProcess(tmp_path, "", "-m", "memable", "dev", APP, "--data-dir", str(data_dir))
    async with dev, memable.connect(ensure_server(data_dir), namespace="memable"):
        assert await dev.terminate() == 0
        assert re.search(r"Redis runs on, since others are connected; .*redis-cli -s \S+ SHUTDOWN", dev.log)


async def test_dev_uses_the_server_that_is_named(tmp_path: Path, server: TemporaryServer) -> None:
    data_dir = tmp_path / "none"
    async with WorkerProcess(tmp_path, server.url, "-m", "memable", "dev", APP, "--data-dir", str(data_dir)) as dev:
        assert f"Redis:     {server.url}" in dev.log
        assert await dev.terminate() == 0
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("unix:///tmp/a%20b/r.sock", "redis-cli -s '/tmp/a b/r.sock'"),
        ("redis://localhost", "redis-cli -h localhost -p 6379"),
        ("rediss://me:secret@host:7000/3", "redis-cli -h host -p 7000 -n 3 --user me --askpass --tls"),
    ],
)
def test_the_line_to_copy_for_redis_cli(url: str, command: str) -> None:
    assert redis_cli(url) == command
