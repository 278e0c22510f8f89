"""The worker process of the benchmarks: `arq noop_worker.WorkerSettings`."""

from noop import app

import memable

WorkerSettings = memable.worker_settings(app)
