"""Worker processes of one namespace, what they have told, and what Redis says that they hold."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memable import Client
from memable.connection import ScriptConnection
from memable.keys import Keys, Partition
from tests.lua import invariants
from tests.lua.invariants import Scene
from tests.worker_process import TOO_LONG_S, WorkerProcess, until


class Crew:
    """Processes of `tests.apps.labour`, and a client of theirs."""

    def __init__(
        self, directory: Path, url: str, namespace: str, *, client: Client, connection: ScriptConnection
    ) -> None:
        self.client, self.connection = client, connection
        self.directory, self._url, self._namespace = directory, url, namespace

    def worker(self, *command: str, **settings: object) -> WorkerProcess:
        """A process to start; `lease=1` is MEMABLE_LEASE=1, and NAMES in capitals stay what they are."""
        named = {name if name.isupper() else f"MEMABLE_{name.upper()}": str(value) for name, value in settings.items()}
        command = command or ("-m", "arq", "tests.apps.labour.WorkerSettings")
        return WorkerProcess(self.directory, self._url, *command, MEMABLE_NAMESPACE=self._namespace, **named)

    # ── what was told ────────────────────────────────────────────────────────────────────────────────────────────

    def ledger(self) -> list[tuple[str, int]]:
        """Name and process of every call, in order."""
        ledger = self.directory / "ledger"
        lines = ledger.read_text().split("\n")[:-1] if ledger.exists() else []
        return [(name, int(pid)) for name, pid in (line.split(" ") for line in lines)]

    def calls(self, name: str) -> list[int]:
        """The processes that have called what is told as `name`."""
        return [pid for told, pid in self.ledger() if told == name]

    async def called(self, process: WorkerProcess, *names: str) -> None:
        """Return when `process` has called each of `names`."""
        wanted = {(name, process.pid) for name in names}
        await until(lambda: wanted <= set(self.ledger()), f"{names} in process {process.pid}")

    # ── what is done to them ─────────────────────────────────────────────────────────────────────────────────────

    def let_go_on(self, *processes: WorkerProcess) -> None:
        for process in processes:
            (self.directory / f"{process.pid}.go").touch()

    def stop(self, process: WorkerProcess) -> None:
        process.process.send_signal(signal.SIGSTOP)

    def wake(self, process: WorkerProcess) -> None:
        process.process.send_signal(signal.SIGCONT)

    # ── what Redis says ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def partition(self) -> Partition:
        (partition,) = Keys(self._namespace, partitions=1).partitions
        return partition

    async def scene(self, workflow: str) -> Scene:
        """All that is known of the instances of `workflow`; equal to another if nothing has changed but idle times."""
        scene = await invariants.look(self.connection, self._namespace)

        def concerns(name: str) -> bool:
            kind = name.removeprefix(self.partition.prefix)
            return kind.partition(":")[2].split("/")[0] == workflow

        return Scene(
            hashes={name: fields for name, fields in scene.hashes.items() if concerns(name)},
            zsets={name: members for name, members in scene.zsets.items() if concerns(name)},
            streams={name: stream for name, stream in scene.streams.items() if concerns(name)},
            expires_ms={name: at for name, at in scene.expires_ms.items() if concerns(name)},
        )

    async def holders(self, workflow: str) -> Counter[int]:
        """How many entries are pending for each process."""
        scene = await self.scene(workflow)
        pending = scene.streams[self.partition.stream(workflow)].pending
        return Counter(pid_of(worker) for worker in pending.values())

    async def fields(self, workflow: str, field: str) -> list[str | None]:
        """`field` of every instance of `workflow` that is there."""
        scene, start = await self.scene(workflow), f"{self.partition.prefix}instance:"
        return [fields.get(field) for name, fields in scene.hashes.items() if name.startswith(start)]


def pid_of(worker: str) -> int:
    """The process of a worker, as its name says: HOST-PID-TOKEN."""
    return int(worker.split("-")[-2])


async def results(invocations: Iterable[Any]) -> list[Any]:
    """What each instance hands back, whoever has run it."""
    return await asyncio.gather(*(invocation.result(timeout=TOO_LONG_S) for invocation in invocations))
