"""For tests of workflows: an engine that travels in time, steps replaced, and a check that deaths are survived.

`TestEngine` is an `Engine` with a private server. `run` carries one instance to its end, `check_replays` does so again
and again and lets the process die at each step. With pytest there is a fixture, too: see `memable.testing.fixtures`.
"""

from __future__ import annotations

from memable.testing.calls import Called
from memable.testing.engine import TestEngine
from memable.testing.playing import check_replays, run

__all__ = ["Called", "TestEngine", "check_replays", "run"]
