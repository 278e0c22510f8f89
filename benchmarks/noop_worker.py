"""The worker process of the benchmarks: `arq benchmarks.noop_worker.WorkerSettings`, from the root."""

import memable
from benchmarks.noop import app

WorkerSettings = memable.worker_settings(app)
