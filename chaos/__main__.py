"""`python -m chaos [--seconds 600] [--seed N] [--mix all] [--every 8] [--json]`: a cluster under faults, and a verdict.

Exit code 0: nothing was lost and nothing was wrong; 1: something was, and the logs of all processes are kept; 77:
it cannot be run here, and says why.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos.cluster import Plan
from chaos.faults import FAULTS, MIXES
from chaos.namespaces import SKIPPED, inside, prepare, run_inside, why_not
from chaos.report import text_of
from chaos.run import play
from chaos.verdict import Verdict, judge

INTERRUPTED = 130


def main() -> int:
    options = _options()
    if not inside():
        reason = why_not()
        if reason:
            print(f"skipped: {reason}", file=sys.stderr)
            return SKIPPED
        if options.seed is None:
            sys.orig_argv += ["--seed", str(secrets.randbelow(1_000_000))]
        return run_inside()
    # A shell ignores interrupts for what it starts in the background, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    prepare()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        seed=options.seed,
        masters=options.masters,
        nodes=options.nodes,
        clients=options.clients,
        leader_ttl_ms=options.leader_ttl_ms,
        copies=options.copies or min(options.nodes, 2 if options.mix == "soak" else 1),
    )
    mix = dict.fromkeys(options.only, 1) or MIXES[options.mix]
    print(
        f"seed {plan.seed}: starting etcd, {plan.masters} masters, {plan.nodes} nodes and {plan.clients} clients, for "
        f"{options.seconds:g} s of faults. Ctrl-C ends the run and prints what it has",
        file=sys.stderr,
        flush=True,
    )
    try:
        run = play(folder, plan, mix, options.seconds, options.every, random.Random(options.seed))
    except KeyboardInterrupt:
        print(
            f"interrupted before the first fault: there is nothing to judge; the logs are in {folder}", file=sys.stderr
        )
        return INTERRUPTED
    verdict = judge(run)
    _tell(verdict, options, folder)
    if verdict.is_good and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if verdict.is_good else 1


def _tell(verdict: Verdict, options: argparse.Namespace, folder: Path) -> None:
    replay = [sys.executable, *sys.orig_argv[1:]]
    if options.json:
        facts = {"seed": options.seed, "replay": shlex.join(replay), **dataclasses.asdict(verdict)}
        print(json.dumps(facts, indent=2))
    else:
        print(text_of(verdict))
    if not verdict.is_good:
        print(
            f"FAILED with seed {options.seed}; the logs are in {folder}; again: {shlex.join(replay)}", file=sys.stderr
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description="A cluster of real processes under faults.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults strike")
    parser.add_argument("--seed", type=int, help="which faults strike whom, and what clients do; drawn if not given")
    parser.add_argument("--mix", choices=sorted(MIXES), default="all")
    parser.add_argument("--only", action="append", choices=sorted(FAULTS), default=[], help="these faults alone")
    parser.add_argument("--every", type=float, default=8.0, help="seconds from one fault to the next")
    parser.add_argument("--leader-ttl-ms", type=int, default=1_500)
    parser.add_argument("--masters", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--copies", type=int, help="the fewest replicas of an object: 2 in the mix soak, 1 otherwise")
    parser.add_argument("--folder", type=Path, help="where logs and histories go; a temporary one if not given")
    parser.add_argument("--keep", action="store_true", help="keep them though nothing was wrong")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
