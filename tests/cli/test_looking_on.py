"""`memable watch`, `events`, `workers`, `stats`, `schedules` and `completion`: what an operator looks at."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any, Self

import pytest
from click.shell_completion import ShellComplete
from rich.console import Console

from memable import Client
from memable.cli.printing import add_row, one_line, table
from memable.cli.root import cli as memable_group
from tests.cli.command_line import AsyncCli, Cli, Ran
from tests.worker_process import WorkerProcess, until

WORKER_FIELDS = {
    "worker", "host", "pid", "version", "workflows", "slots", "in_use", "since", "silent_s", "leads",
}  # fmt: skip
LOAD_FIELDS = {"workflow", "workers", "waiting", "oldest_waiting_s", "taken", "postponed", "counts"}
EVENT_FIELDS = {"at", "workflow", "instance_id", "version", "status", "state", "key", "output", "error"}


async def has_led(client: Client) -> bool:
    """Whether a worker has said who it is, and leads: both some moments after it has started."""
    store = client._online().store
    names = await store.connection.command("ZRANGE", store.keys.workers, 0, -1)
    said = [await store.connection.command("EXISTS", store.keys.worker(name.decode())) for name in names]
    return any(said) and bool(await store.connection.command("EXISTS", store.keys.partitions[0].leader))


async def test_the_fleet_is_seen_by_three_commands(worker: WorkerProcess, client: Client, acli: AsyncCli) -> None:
    await until(lambda: has_led(client), "a worker that leads")
    await (await client.invoke("fail", id="f")).wait()
    await (await client.invoke("ask", id="a")).wait()
    await client.invoke("greet", "you", delay=3600)

    (one,) = (await acli("workers", "--json")).document
    assert one.keys() == WORKER_FIELDS
    assert (one["pid"], one["slots"], one["in_use"], one["leads"]) == (worker.pid, 100, 0, [0])
    assert set(one["workflows"]) == {"ask", "batch", "chat", "fail", "greet", "pick"}
    shown = (await acli("workers")).out.splitlines()
    assert shown[0].split()[:4] == ["WORKER", "HOST", "PID", "SLOTS"]
    assert re.match(rf"{re.escape(one['worker'])} .* {worker.pid} +░+ +0/100 .* ago .* yes +ask, batch", shown[1])

    document = (await acli("stats", "--json")).document
    assert document.keys() == {"namespace", "server", "workflows"}
    assert document["server"]["name"] in ("Redis", "Valkey")
    loads = {each["workflow"]: each for each in document["workflows"]}
    assert loads["fail"].keys() == LOAD_FIELDS | {"failed_last_hour", "sample_bytes"}
    assert (loads["fail"]["counts"]["failed"], loads["fail"]["failed_last_hour"]) == (1, 1)
    assert loads["fail"]["sample_bytes"] > 100
    assert (loads["ask"]["counts"]["suspended"], loads["ask"]["workers"]) == (1, 1)
    assert (loads["greet"]["postponed"], loads["greet"]["waiting"]) == (1, 0)
    assert [each["workflow"] for each in (await acli("stats", "ask", "--json")).document["workflows"]] == ["ask"]
    assert "namespace test-" in (await acli("stats")).out

    frame = (await acli("watch", "--once", "--json")).document
    assert frame.keys() == {"at", "namespace", "leaders", "workers", "workflows", "failures"}
    assert frame["leaders"] == [one["worker"]]
    (failure,) = frame["failures"]
    assert (failure["workflow"], failure["instance_id"]) == ("fail", "f")
    shown_once = await acli("watch", "--once")
    assert shown_once.code == 0
    assert re.search(r"1 worker +0 of 100 slots", shown_once.out)
    assert re.search(r"^fail/f +\d.* StepFailed: ", shown_once.out, re.MULTILINE)


async def test_work_that_nobody_serves_is_seen(worker: WorkerProcess, client: Client, acli: AsyncCli) -> None:
    assert await worker.terminate() == 0
    await client.invoke("greet", "you")
    (load,) = (await acli("stats", "greet", "--json")).document["workflows"]
    assert (load["workers"], load["waiting"]) == (0, 1)
    assert load["oldest_waiting_s"] >= 0
    assert "no worker lives" in (await acli("watch", "greet", "--once")).out
    assert (await acli("workers")).out == "no workers\n"
    (entry,) = (await acli("watch", "--once", "--json", "greet")).document["workflows"]
    assert (entry["waiting"], entry["completed_per_s"]) == (1, None)


async def test_schedules_are_in_order_of_time_page_by_page(
    worker: WorkerProcess, client: Client, acli: AsyncCli
) -> None:
    for hours in (3, 1, 2):
        await client.invoke("greet", "you", id=f"in-{hours}", delay=3600 * hours)
    first = (await acli("schedules", "--limit", "2", "--json")).document
    assert [(each["what"], each["instance_id"], each["key"]) for each in first["items"]] == [
        ("delay", "in-1", None),
        ("delay", "in-2", None),
    ]
    assert 0 < first["items"][0]["in_s"] <= 3600
    second = (await acli("schedules", "--cursor", first["cursor"], "--json")).document
    assert ([each["instance_id"] for each in second["items"]], second["cursor"]) == (["in-3"], None)
    shown = (await acli("schedules", "--limit", "1")).out.splitlines()
    assert shown[0].split() == ["DUE", "LEFT", "WHAT", "INSTANCE", "KEY"]
    assert re.search(r" in \d+ min.* +delay +greet/in-1$", shown[1])
    assert shown[2].startswith("more: --cursor ")


async def test_children_are_counted_where_they_were_called(
    worker: WorkerProcess, client: Client, acli: AsyncCli
) -> None:
    await (await client.invoke("batch", ["a", "none", "b"], id="b")).result(timeout=60)
    assert "3 of 3 pick ended, 1 failed" in (await acli("show", "batch/b")).out
    (call,) = (await acli("show", "batch/b", "--json")).document["steps"]
    assert call["children"] == {
        "workflow": "pick", "total": 3, "created": 3, "ended": 3, "failed": 1, "first_failed": 1,
    }  # fmt: skip
    (child,) = [each.instance_id for each in (await client.list_instances("pick", status="failed")).items]
    assert re.search(r"^child of +batch/b$", (await acli("show", f"pick/{child}")).out, re.MULTILINE)
    without = (await acli("list", "--no-children", "--json")).document
    assert [each["workflow"] for each in without["items"]] == ["batch"]
    await (await client.invoke("batch", ["a"], id="one")).result(timeout=60)
    assert "1 of 1 pick ended" in (await acli("show", "batch/one")).out


# ── as it happens ────────────────────────────────────────────────────────────────────────────────────────────────────


class Going:
    """The command in a process of its own, which is killed at the end, whatever has become of it."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "memable", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    async def ended(self) -> Ran:
        out, err = await asyncio.to_thread(self._process.communicate, timeout=60)
        return Ran(self._process.returncode, out, err)


async def asks(client: Client) -> None:
    """An instance that waits; nobody has subscribed to it for that, who would be taken for the command."""
    await client.invoke("ask", id="a")

    async def is_suspended() -> bool:
        known = await client.get_metadata("ask", "a")
        return known is not None and known.status == "suspended"

    await until(is_suspended, "an instance that waits")


async def test_an_instance_is_watched_to_its_end(worker: WorkerProcess, client: Client) -> None:
    await asks(client)
    with Going("watch", "ask/a") as watching, Going("watch", "ask", "a", "--json") as in_json:

        async def are_watched() -> bool:
            channel = client._find("ask", "a").events
            return bool((await client._online().connection.command("PUBSUB", "NUMSUB", channel))[1] == 2)

        await until(are_watched, "two who watch")
        await client.signal("ask", "a", "answer:v1", True)
        ran, documents = await watching.ended(), await in_json.ended()
    assert (ran.code, ran.err) == (0, "")
    lines = [line.split(" ", 1)[1].strip() for line in ran.out.splitlines()]
    assert "answer:v1 signal suspended" in lines
    assert [line for line in lines if re.fullmatch(r"answer:v1 signal completed \S+ m?s true", line)]
    assert lines[-1] == "ask/a completed"
    assert documents.code == 0
    seen = [json.loads(line) for line in documents.out.splitlines()]
    assert (seen[0]["state"], seen[-1]["state"], seen[-1]["output"]) == ("suspended: asking", "completed", True)


async def test_watching_what_has_failed_is_exit_code_1(worker: WorkerProcess, client: Client, acli: AsyncCli) -> None:
    await (await client.invoke("fail", id="f")).wait()
    ran = await acli("watch", "fail/f")
    assert ran.code == 1
    assert [line.split()[1:4] for line in ran.out.splitlines()[:2]] == [
        ["charge:v1", "step", "completed"],
        ["ship:v1", "step", "failed"],
    ]
    once = await acli("watch", "fail/f", "--once")
    assert (once.code, once.out) == (1, (await acli("show", "fail/f")).out)


@pytest.mark.parametrize("of", [[], ["ask"], ["ask/a"]], ids=["all", "a workflow", "an instance"])
async def test_events_are_told_as_they_happen(worker: WorkerProcess, client: Client, of: list[str]) -> None:
    await asks(client)
    command = client._online().connection.command
    with Going("events", *of, "--limit", "2", "--json") as going:

        async def is_heard() -> bool:
            if of == ["ask/a"]:
                return bool((await command("PUBSUB", "NUMSUB", client._find("ask", "a").events))[1])
            return bool(await command("PUBSUB", "NUMPAT"))

        await until(is_heard, "somebody who listens")
        if of:
            await (await client.invoke("greet", "nobody listens")).wait()
        await client.signal("ask", "a", "answer:v1", True)
        ran = await going.ended()
    assert ran.code == 0
    assert len(ran.err.splitlines()) == 1
    events: list[dict[str, Any]] = [json.loads(line) for line in ran.out.splitlines()]
    assert [each.keys() for each in events] == [EVENT_FIELDS] * 2
    assert [(each["workflow"], each["instance_id"], each["status"]) for each in events] == [
        ("ask", "a", "queued"),
        ("ask", "a", "running"),
    ]


def in_a_terminal(kind: str, until_then: bytes, by: signal.Signals) -> tuple[int, bytes]:
    """`memable watch` until it has said so much and gets the signal: its exit code, and what it wrote."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = kind
        os.execv(sys.executable, [sys.executable, "-m", "memable", "watch"])
    out = b""
    try:
        while until_then not in out:
            out += os.read(terminal, 65536)
        os.kill(pid, by)
        while True:
            out += os.read(terminal, 65536)
    except OSError:  # how Linux says that the other side is closed
        pass
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it has ended by then, unless the test has failed
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out


@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_screen_and_leaves_the_terminal_as_it_was(by: signal.Signals, code: int) -> None:
    ended, out = in_a_terminal("xterm", b"no worker lives", by)
    assert ended == code, out
    # the alternate screen, and the cursor
    assert out.count(b"\x1b[?1049h") == out.count(b"\x1b[?1049l") == 1
    assert out.rindex(b"\x1b[?25h") > out.rindex(b"\x1b[?25l")
    assert b"Traceback" not in out


def test_a_terminal_that_can_draw_nothing_gets_lines() -> None:
    ended, out = in_a_terminal("dumb", b"no worker lives", signal.SIGINT)
    assert ended == 130, out
    assert b"\x1b" not in out


@pytest.mark.parametrize("width", [40, 60, 80])
def test_in_a_narrow_terminal_no_column_is_lost(width: int) -> None:
    made = table("INSTANCE", "CREATED", "RUNS", "STATE")
    add_row(made, (f"order/{'1' * 90}", "2026-11-30 15:00:00", 1234, f"failed: {'x' * 90}"))
    out = Console(width=width, file=io.StringIO())
    out.print(made)
    assert isinstance(out.file, io.StringIO)
    header, row = out.file.getvalue().splitlines()
    assert len(row.rstrip()) == width
    assert "RUNS" in header.split()
    assert "1234" in row.split()
    assert [each[:5] for each in re.split(r"\s{2,}", row)][0::3] == ["order", "faile"]


def test_nothing_that_is_shown_turns_the_direction_of_a_line() -> None:
    assert one_line("a\u202eb\u2066c\u2028d\x9be") == "a b c d e"


def test_whoever_reads_the_output_may_go(cli: Cli) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "memable", "list"]
    ran = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (ran.returncode, ran.stderr) == (0, "")


def written_to(where: str) -> Ran:
    command = f"{shlex.quote(sys.executable)} -m memable list {where}"
    ran = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    return Ran(ran.returncode, "", ran.stderr)


def test_an_output_that_cannot_be_written_is_told_in_a_line(cli: Cli) -> None:
    written_to("> /dev/full").is_refused("cannot be written", "No space left")


def test_an_output_that_is_closed_is_read_by_nobody(cli: Cli) -> None:
    assert written_to(">&-") == (0, "", "")


# ── completion ───────────────────────────────────────────────────────────────────────────────────────────────────────


def subprocess_cli(*arguments: str, **environment: str) -> Ran:
    command = [sys.executable, "-m", "memable", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_that_a_shell_reads(cli: Cli, shell: str) -> None:
    ran = cli("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert f"_MEMABLE_COMPLETE={shell}_complete" in ran.out


async def test_workflows_and_instances_are_completed(
    worker: WorkerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memable.cli.completion._PATIENCE_S", 30.0)
    await (await client.invoke("greet", "you", id="g-1")).wait()
    await (await client.invoke("ask", id="a-1")).wait()
    shell = ShellComplete(memable_group, {}, "memable", "_MEMABLE_COMPLETE")

    async def offered(*words: str) -> list[str]:
        found = await asyncio.to_thread(shell.get_completions, list(words[:-1]), words[-1])
        return [each.value for each in found]

    assert await offered("invoke", "gr") == ["greet"]
    assert await offered("show", "greet/") == ["greet/g-1"]
    assert await offered("signal", "ask", "a") == ["a-1"]


def test_without_redis_nothing_is_completed_but_commands() -> None:
    def offered(words: str) -> str:
        environment = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_MEMABLE_COMPLETE": "bash_complete"}
        ran = subprocess_cli(**environment, MEMABLE_REDIS_URL="redis://127.0.0.1:1")
        assert (ran.code, ran.err) == (0, "")
        return ran.out

    assert offered("memable show gr").strip() == ""
    assert offered("memable sched") == "plain,schedules\n"
