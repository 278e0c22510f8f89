"""How fast memable is, beside the floor (what Redis allows) and five job queues: `make bench`, `make profile`.

One program a measure; each prints JSON lines, and says in GOALS what is to be reached:

    python -m benchmarks.throughput     instances/s and steps/s of one worker process, beside the floor
    python -m benchmarks.sequential     one instance of 1,000 steps, one after another, beside the bare round trip
    python -m benchmarks.interpreter    what a step takes of the interpreter alone, without server and kernel
    python -m benchmarks.latency        from invoke to result, with one idle worker
    python -m benchmarks.invoking       invoke_many of one client
    python -m benchmarks.commands       Redis commands of a one-step instance
    python -m benchmarks.scripts        what the scripts of a one-step instance take inside Redis
    python -m benchmarks.timers         how late 1,000 timers are that are due in one second
    python -m benchmarks.resuming       worker CPU to replay 1,000 records
    python -m benchmarks.memory         memory of a suspended instance in Redis
    python -m benchmarks.idling         Redis calls of idle workers, with no instance and with 100,000 suspended
    python -m benchmarks.scaling        two worker processes against one
    python -m benchmarks.fan_out        10,000 children of one instance, on two worker processes
    python -m benchmarks.client_cpu     client CPU of a script call
    python -m benchmarks.awaiting       Redis commands of 1,000 concurrent inv.result()
    python -m benchmarks.queues         the same jobs in arq, streaQ, SAQ, docket and taskiq (peers/)

`python -m benchmarks` runs them all, prints one table, and keeps the lines in build/benchmarks/results.jsonl; from them
report.py and plot.py make docs/performance.md and its plot. bench.py has what the measures share, app.py the workflows
that they run, floor.py what they are compared with. CPU clocks of other processes are Linux's.
"""
