"""Virtual environments under build/ for what is not memable's: each queue (their requirements clash), and two tools.

Made when first asked for, with pip from wherever it is set up to look. None of it is among the development
requirements: matplotlib and what it needs would make them a third heavier, and only who measures needs it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIRECTORY = ROOT / "build" / "benchmarks"

PACKAGES = {
    "arq": ("arq==0.28.0", "uvloop==0.23.0"),
    "streaQ": ("streaq==7.2.0", "uvloop==0.23.0"),
    # SAQ imports typing_extensions without requiring it
    "SAQ": ("saq[redis,hiredis]==0.26.4", "typing-extensions==4.16.0", "uvloop==0.23.0"),
    "docket": ("pydocket==0.27.0", "uvloop==0.23.0"),
    "taskiq": ("taskiq==0.13.0", "taskiq-redis==1.2.4", "uvloop==0.23.0"),
    "plot": ("matplotlib==3.11.2",),
    "profile": ("py-spy==0.4.3",),
}


class NotInstalled(Exception):
    """It cannot be had here, and why."""


def program(name: str, program: str = "python") -> str:
    """The path of a program of the environment `name`, which is made if need be; `NotInstalled`."""
    directory = DIRECTORY / name
    packages = PACKAGES[name]
    ready = directory / "ready"
    if not ready.exists() or ready.read_text("utf-8").split() != list(packages):
        _run("-m", "venv", "--clear", str(directory))
        python = str(directory / "bin" / "python")
        _run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages, python=python)
        # written last: an installation that broke off is begun anew
        ready.write_text("\n".join(packages), "utf-8")
    return str(directory / "bin" / program)


def _run(*words: str, python: str = sys.executable) -> None:
    done = subprocess.run([python, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled((done.stderr.strip().splitlines() or ["no message"])[-1])


def versions(name: str) -> str:
    """What of it is installed that matters: the queue, its client of Redis and its loop."""
    done = subprocess.run(
        [program(name), "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = {each.partition("==")[0].partition("[")[0] for each in PACKAGES[name]} | {"redis", "hiredis", "coredis"}
    found = (line.partition("==") for line in done.stdout.split())
    return ", ".join(f"{package} {version}" for package, _, version in found if package.lower() in wanted)
