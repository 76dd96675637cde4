"""`python -m ecosystem [--only TEXT]... [--list] [--json FILE]`: run the suites, print one table.

Exit code 0: every test of every suite that could run passed. The folder with all output is kept when something failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from ecosystem.environments import CannotBeBuilt, python_of
from ecosystem.suites import SUITES, Outcome, Suite

ENGINES = ("mooncake", "lmcache", "sglang", "vllm")


def main() -> int:
    options = _options()
    for engine in ENGINES:
        importlib.import_module(f"ecosystem.{engine}")
    chosen = [one for one in SUITES if not options.only or any(text in one.name for text in options.only)]
    if options.list:
        print("\n".join(one.name for one in chosen))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="holdfast-ecosystem-"))
    outcomes: dict[str, Outcome] = {}
    for number, one in enumerate(chosen):
        began = time.monotonic()
        print(f"[{number + 1}/{len(chosen)}] {one.name} ...", file=sys.stderr, flush=True)
        outcome = outcomes[one.name] = _run(one, folder / str(number))
        took = time.monotonic() - began
        print(f"    {_counts(outcome)} in {took:.0f} s", file=sys.stderr, flush=True)
    print(table(outcomes))
    if options.json:
        options.json.write_text(
            json.dumps({name: dataclasses.asdict(each) for name, each in outcomes.items()}, indent=1)
        )
    good = bool(outcomes) and not any(outcome.failed for outcome in outcomes.values())
    if good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"all output is in {folder}", file=sys.stderr)
    return 0 if good else 1


def _run(one: Suite, folder: Path) -> Outcome:
    folder.mkdir(parents=True)
    try:
        return one.check(python_of(one.engine), folder)
    except CannotBeBuilt as error:
        return Outcome(failed=[str(error)])
    except Exception as error:  # noqa: BLE001 - It is told in the table.
        # A suite that breaks costs itself; the others are still worth running.
        (folder / "traceback").write_text(traceback.format_exc())
        return Outcome(failed=[f"{type(error).__name__}: {error}"])


def table(outcomes: dict[str, Outcome]) -> str:
    """A Markdown table: one row per suite, reasons shortened to their first line."""
    lines = ["| suite | passed | failed | skipped | |", "| --- | --- | --- | --- | --- |"]
    for name, outcome in outcomes.items():
        remarks = [f"failed: {_first_line(why)}" for why in outcome.failed[:3]]
        remarks += [f"skipped: {_first_line(why)}" for why in outcome.skipped[:3]]
        counts = f"{outcome.passed} | {len(outcome.failed)} | {len(outcome.skipped)}"
        lines.append(f"| {name} | {counts} | {'; '.join([*outcome.notes, *remarks])} |")
    return "\n".join(lines)


def _counts(outcome: Outcome) -> str:
    return f"{outcome.passed} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} skipped"


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:160].replace("|", "/")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ecosystem", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="suites whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the suites and end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there, with all reasons")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
