"""The `memable` command. What it needs beyond the base install (click, rich, arq) is loaded when it runs."""

from __future__ import annotations

import sys
from typing import NoReturn

from memable.extras import what_to_install


def main() -> NoReturn:
    """The console script: run the command line of this process, and exit with its code."""
    try:
        from memable.cli.root import run

        code = run()
    except ModuleNotFoundError as error:
        if (line := what_to_install(error)) is None:
            raise
        sys.stderr.write(f"memable: {line}\n")
        code = 2
    sys.exit(code)
