"""`python -m chaos --seconds 120 --seed 7`: one performance, its table, and exit code 1 if anything is wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from chaos.checker import Verdict, judge, show
from chaos.course import Plan, perform
from chaos.stalls import BEYOND_LEASE_S
from chaos.storm import BURST, STOPPED_LEASES, WEIGHTS

_KINDS: Final = {kind.name.lower().replace("_", "-"): kind for kind in WEIGHTS}


def main() -> int:
    """What the command line says."""
    options = _parser().parse_args()
    plan = Plan(
        seconds=options.seconds,
        seed=random.randrange(1_000_000) if options.seed is None else options.seed,
        per_second=options.rate,
        workers=options.workers,
        lease_s=options.lease,
        settle_s=options.settle,
        kinds=[_KINDS[name] for name in options.faults.split(",")] if options.faults else tuple(WEIGHTS),
        burst=options.burst,
        stopped_leases=(options.stopped, options.stopped) if options.stopped else STOPPED_LEASES,
        partitions=options.partitions,
        poison=options.poison,
        blockers=options.blockers,
        environment={} if options.breakage is None else {"CHAOS_BREAK": options.breakage},
    )
    if not options.json:
        print(f"{plan.seconds:g} s of faults, seed {plan.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="memable-chaos-"))
    try:
        seen = asyncio.run(_perform(plan, directory))
    except asyncio.CancelledError:
        shutil.rmtree(directory)
        return 128 + signal.SIGTERM
    verdict = judge(seen, beyond_lease_s=options.beyond_lease)
    print(json.dumps(_as_json(plan, verdict)) if options.json else show(verdict))
    if verdict.complaints:
        print(f"ledger, faults, logs and AOF: {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory)
    return verdict.exit_code


async def _perform(plan: Plan, directory: Path) -> Any:
    task = asyncio.current_task()
    assert task is not None  # asyncio.run has made one
    # as Ctrl-C: what was started is ended
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await perform(plan, directory)


def _as_json(plan: Plan, verdict: Verdict) -> dict[str, Any]:
    table = {name.strip(): value for name, value in verdict.table.items()}
    return {"seconds": plan.seconds, "seed": plan.seed, "table": table, "violations": list(verdict.complaints)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Faults, and a count of what they broke.")
    parser.add_argument("--seconds", type=float, default=120.0, help="for how long faults come (default: %(default)g)")
    parser.add_argument("--seed", type=int, help="which faults and instances come (default: any)")
    parser.add_argument("--rate", type=float, default=20.0, help="instances a second (default: %(default)g)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: %(default)d)")
    parser.add_argument("--lease", type=float, default=3.0, help="MEMABLE_LEASE of the workers (default: %(default)g)")
    parser.add_argument("--settle", type=float, default=60.0, help="seconds for all to end after the last fault")
    parser.add_argument("--faults", metavar="KIND,…", help=f"only these kinds: {', '.join(_KINDS)}")
    parser.add_argument(
        "--burst", type=int, default=BURST, metavar="N", help="faults between calms (default: %(default)d)"
    )
    parser.add_argument("--stopped", type=float, metavar="LEASES", help="stop workers for so long (default: about 1.6)")
    parser.add_argument("--partitions", type=int, default=1, help="of the namespace (default: %(default)d)")
    parser.add_argument("--poison", type=int, default=2, metavar="N", help="instances that kill their workers")
    parser.add_argument("--blockers", type=int, default=0, metavar="N", help="instances that block event loops")
    parser.add_argument(
        "--beyond-lease",
        type=float,
        default=BEYOND_LEASE_S,
        metavar="S",
        help="for how long beyond a lease a fault may stall what it hit (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--breakage", choices=["fence"], help="take the fence away, to see the checker catch it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
