"""The `memable` command. What it needs beyond the base install (click, rich, arq) is loaded when it runs."""

from __future__ import annotations

import sys
from typing import Final, NoReturn

_OF_THE_EXTRA: Final = frozenset({"arq", "click", "rich"})


def main() -> NoReturn:
    """The console script: run the command line of this process, and exit with its code."""
    try:
        from memable.cli.root import run

        code = run()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_EXTRA:
            raise
        sys.stderr.write(f"memable: this needs {error.name}, which is not installed: pip install 'memable[worker]'\n")
        code = 2
    sys.exit(code)
