"""The simulator's command line: play many seeds, replay one with its story, make a failing one short."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from holdfast.instant import now_seconds
from holdfast.simulation.runs.exhaustive import SHORT_SCRIPTS, exhausted
from holdfast.simulation.runs.run import Run, run, told
from holdfast.simulation.runs.seeds import cores, play_scripts, play_seeds, prepare
from holdfast.simulation.runs.shrink import MOST_RUNS, Shrinking
from holdfast.simulation.runs.story_files import literal, test_file
from holdfast.simulation.scripts.draw import draw
from holdfast.simulation.scripts.scenes import SCENES
from holdfast.simulation.scripts.stories import shown
from holdfast.simulation.scripts.tenants import TENANTS

FAILED = 1
INTERRUPTED = 130
PROGRESS_SECONDS = 10.0


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    code: int = given.do(given)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.simulation", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    playing = verbs.add_parser("run", help="play many seeds, up to the first that breaks a promise")
    playing.add_argument("--seeds", type=int, default=300, help="how many (300)")
    playing.add_argument("--start", type=int, default=0, help="the first (0)")
    playing.add_argument("--jobs", type=int, default=cores(), help="processes (as many as cores)")
    playing.add_argument("--go-on", action="store_true", help="play them all, and say which broke what")
    _take_scene(playing)
    playing.set_defaults(do=play)
    replaying = verbs.add_parser("replay", help="play one seed and tell what happened")
    replaying.add_argument("seed", type=int)
    replaying.add_argument("--all", action="store_true", help="everything, not only what the violation is about")
    _take_scene(replaying)
    replaying.set_defaults(do=replay)
    shrinking = verbs.add_parser("shrink", help="find the shortest script that breaks what this seed breaks")
    shrinking.add_argument("seed", type=int)
    shrinking.add_argument("--runs", type=int, default=MOST_RUNS, help=f"how many to try at most ({MOST_RUNS})")
    shrinking.add_argument("--write", type=Path, help="write it as a test to this file")
    _take_scene(shrinking)
    shrinking.set_defaults(do=shrink)
    exhausting = verbs.add_parser("exhaust", help="play a short script with a fault at every moment")
    exhausting.add_argument("script", choices=list(SHORT_SCRIPTS))
    exhausting.add_argument("--every", type=int, default=1, help="take every so many-th fault only (1)")
    exhausting.add_argument("--pairs", action="store_true", help="two faults at a time")
    exhausting.add_argument("--jobs", type=int, default=cores(), help="processes (as many as cores)")
    exhausting.set_defaults(do=exhaust)
    return parser


def _take_scene(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scene", choices=[*SCENES, TENANTS], default="", help="with this scene in every seed, and no other"
    )


def exhaust(given: argparse.Namespace) -> int:
    scripts = list(exhausted(SHORT_SCRIPTS[given.script], given.every, given.pairs))
    say(f"{len(scripts)} runs of {given.script!r}, each with {'two faults' if given.pairs else 'a fault'} of its own")
    tally = _Tally()
    try:
        for one in tally.count(play_scripts(scripts, given.jobs), lambda: f"of {len(scripts)}, {tally.broke}"):
            say(f"{one.violation}: {', '.join(map(literal, one.script.faults))}")
    except KeyboardInterrupt:
        say(f"interrupted after {tally.done} of {len(scripts)} runs, {tally.broke}")
        return INTERRUPTED
    say(f"{tally.done} runs in {tally.seconds:.0f} s: {len(tally.broken)} broke a promise")
    if not tally.broken:
        return 0
    shortest = min(tally.broken, key=lambda one: one.steps)
    _tell(told(shortest.script), replayable=False)
    print(test_file(shortest, shortest.script.seed))
    return FAILED


def play(given: argparse.Namespace) -> int:
    tally = _Tally()
    seeds = range(given.start, given.start + given.seeds)
    try:
        # The runs have no other name here: a loop that is left ends the processes that play them.
        for one in tally.count(
            play_seeds(seeds, given.jobs, given.scene), lambda: f"of {given.seeds} seeds, {tally.pace}"
        ):
            say(f"seed {one.script.seed}: {one.violation}")
            if not given.go_on:
                break
    except KeyboardInterrupt:
        say(f"interrupted after {tally.done} seeds from {given.start} on, {tally.broke}; {tally.pace}")
        return INTERRUPTED
    broken = tally.broken
    say(f"{tally.done} seeds from {given.start} on: {len(broken)} broke a promise; {tally.pace}, {tally.steps} events")
    if not broken:
        return 0
    first = min(broken, key=lambda one: one.script.seed)
    if len(broken) > 1:
        by_promise = Counter(one.violation.promise for one in broken if one.violation is not None)
        say("by promise: " + ", ".join(f"{promise} {count}" for promise, count in sorted(by_promise.items())))
    _tell(told(first.script), scene=given.scene)
    return FAILED


def replay(given: argparse.Namespace) -> int:
    one = told(draw(given.seed, scene=given.scene))
    if given.all:
        print("\n".join(shown(sorted(one.lines, key=lambda line: line[0]))))
    _tell(one, whole=given.all, scene=given.scene)
    say(f"{one.steps} events, trace {one.trace:016x}")
    return FAILED if one.violation is not None else 0


def shrink(given: argparse.Namespace) -> int:
    prepare()
    found = run(draw(given.seed, scene=given.scene))
    if found.violation is None:
        say(f"seed {given.seed} breaks no promise: there is nothing to make shorter")
        return 0
    say(f"seed {given.seed}: {found.violation}")
    shrinking = Shrinking(found, most_runs=given.runs, on_shorter=lambda shorter: say(f"  {_length(shorter)}"))
    shortest = shrinking.shrink()
    say(f"after {shrinking.runs} runs: {_length(shortest)}, in a world of {shortest.script.shape}")
    _tell(told(shortest.script), replayable=False)
    text = test_file(shortest, given.seed)
    if given.write is not None:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(text)
        say(f"written to {given.write}")
    else:
        print(text)
    return FAILED


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Tally:
    """Counts runs as they end, and tells of the progress."""

    def __init__(self) -> None:
        self.done = self.steps = 0
        self.broken: list[Run] = []
        self._began = now_seconds()

    def count(self, runs: Iterable[Run], progress: Callable[[], str]) -> Iterator[Run]:
        """The runs that broke a promise."""
        said = self._began
        for one in runs:
            self.done, self.steps = self.done + 1, self.steps + one.steps
            if one.violation is not None:
                self.broken.append(one)
                yield one
            if now_seconds() - said > PROGRESS_SECONDS:
                said = now_seconds()
                say(f"{self.done} {progress()}")

    @property
    def seconds(self) -> float:
        return max(now_seconds() - self._began, 1e-9)

    @property
    def pace(self) -> str:
        return f"{self.seconds:.0f} s, {self.done / self.seconds * 60:.0f} seeds a minute"

    @property
    def broke(self) -> str:
        return f"{len(self.broken)} of them broken"


def _length(one: Run) -> str:
    return f"{len(one.script.operations)} operations and {len(one.script.faults)} faults"


def _tell(one: Run, whole: bool = False, replayable: bool = True, scene: str = "") -> None:
    """Print the promise, the story, and how to replay it."""
    if one.violation is None:
        say(f"seed {one.script.seed} breaks no promise")
        return
    if not whole:
        print("\n".join(one.story))
    say(f"\n{one.violation}")
    if replayable:
        which = f"{one.script.seed} --scene {scene!r}" if scene else str(one.script.seed)
        say(f"again:   python -m holdfast.simulation replay {which}")
        say(f"shorter: python -m holdfast.simulation shrink {which}")
