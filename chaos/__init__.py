"""Faults against a real server and real workers, and a checker that counts what they broke: `make chaos SECONDS=120`.

    course.py     one performance: server, workers, traffic, storm; hands over the evidence
    app.py        the workflows that run meanwhile, by theme: plain.py, waits.py, kin.py, endless.py; acting.py for all
    traffic.py    the client: invokes, cancels, and for each workflow what roles.py says, by the means of client.py
    storm.py      the faults, chosen by a seed; some instances bring their own
    fleet.py      the worker processes, each replaced when it is gone
    ledger.py     what the steps did, outside of Redis
    history.py    every write that Redis has seen, read from its AOF
    logs.py       what the workers wrote into their logs, and what of it is no fault
    evidence.py   all of that in one record
    names.py      what an instance is called in each of its lives
    checker.py    evidence -> verdict, a pure function
    facts.py      of that: what follows from the evidence, and several rules need
    kept.py       … what must be there once, and what must be over
    calls.py      … steps that were called without a right
    waited.py     … signals, messages, choices, deadlines
    stalls.py     … how long faults held instances and timers up
    breakage.py   takes the fence away, to see the checker catch it

A seed fixes which faults come in which order and which instances run; what they meet is up to the machine.
"""
