"""`memable demo`: the main job before the reader's eyes, with a worker killed half-way, and the proof at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

_PARTS: Final = ("__init__.py", "app.py", "approval.py", "ledger.py", "sync.py")
_KEPT: Final = frozenset({"MEMABLE_REDIS_SERVER"})


@click.command(short_help="See a worker killed half-way, and nothing lost.")
@click.option("--orders", type=click.IntRange(min=4, max=1000), default=50, hidden=True)
@click.option("--limit", type=click.FloatRange(min=1), default=120.0, hidden=True)  # seconds for all of it
def demo(*, orders: int, limit: float) -> int:
    """Run a sync and 50 orders on two workers, kill one of them half-way, and count what was lost: nothing.

    It starts a Redis of its own, in a temporary directory, and leaves nothing behind.
    """
    root = find_checkout()
    if find_spec("tzdata") is None:
        raise click.ClickException("the demo syncs the zone table of tzdata: pip install 'memable[demo]'")
    # found before anything else of that name
    sys.path.insert(0, str(root))
    # the demo is the same wherever it runs
    for name in [name for name in os.environ if name.startswith(("MEMABLE_", "WORKER_")) and name not in _KEPT]:
        del os.environ[name]
    try:
        return asyncio.run(_run(root, orders, limit))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


def find_checkout() -> Path:
    """Where the bundled workflows are: beside the package, or here; they are deployed, not installed."""
    for root in (Path(__file__).resolve().parents[3], Path.cwd()):
        if all((root / "worker" / part).is_file() for part in _PARTS):
            return root
    raise click.ClickException(
        "the demo's workflows are in the folder worker/ of memable's repository, which is not installed with the "
        "package: run 'make demo' in a checkout"
    )


async def _run(root: Path, orders: int, limit_s: float) -> int:
    from memable.cli.demo.audit import judge
    from memable.cli.demo.play import Play
    from memable.cli.demo.screen import Screen
    from memable.cli.printing import console

    task = asyncio.current_task()
    assert task is not None  # asyncio.run has made one
    # as Ctrl-C: what was started is ended, and what was written is removed
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    screen = Screen(console())
    with screen:
        evidence = await Play(screen, root, orders=orders, limit_s=limit_s).perform()
    verdict = judge(evidence)
    screen.show(verdict)
    return verdict.exit_code
