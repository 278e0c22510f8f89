"""Faults against a real server and real workers, and a checker that counts what they broke: `make chaos SECONDS=120`.

    course.py     one performance: server, workers, traffic, storm; hands over the evidence
    app.py        the workflows that run meanwhile
    traffic.py    the client: invokes, signals, resumes, each repeated until it is acknowledged
    storm.py      the faults, chosen by a seed; some instances bring their own
    fleet.py      the worker processes, each replaced when it is gone
    ledger.py     what the steps did, outside of Redis
    history.py    every write that Redis has seen, read from its AOF
    logs.py       what the workers wrote into their logs, and what of it is no fault
    evidence.py   all of that in one record
    checker.py    evidence -> verdict, a pure function
    stalls.py     of that: how long faults held instances and timers up
    breakage.py   takes the fence away, to see the checker catch it

A seed fixes which faults come in which order and which instances run; what they meet is up to the machine.
"""
