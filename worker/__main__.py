"""`python -m worker` is `arq worker.WorkerSettings`, with the same options (`--burst`, `--check`, …)."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["worker.WorkerSettings"]
    runpy.run_module("arq", run_name="__main__", alter_sys=True)
