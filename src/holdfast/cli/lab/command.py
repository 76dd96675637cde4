"""`holdfast lab`: one workload through every preset, with the primary killed in the middle of each.

Each preset gets a cluster of its own: two masters, a node with less memory than the blocks would take, and a client
that looks blocks up, reads those that are there and writes the others. What it prints is what the presets cost, and
what is left after a failover. A control after them, whose primary nobody kills, tells what the hit rate would have
been: while a primary leads, it evicts by the same rule in every preset, so that one is enough.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import get_args

from holdfast.cli.exit_codes import FAILED, OK, Interrupted
from holdfast.cli.lab.report import draw, tell
from holdfast.cli.lab.run import Outcome, Trial
from holdfast.cli.lab.workload import Request, conversations, distinct_blocks, traced
from holdfast.cli.options import takes
from holdfast.cli.output import Output
from holdfast.cli.processes.local_cluster import ClusterWanted
from holdfast.cli.processes.up import on_signals
from holdfast.errors import BadValue
from holdfast.ids import extent_of
from holdfast.node.host_capacity import available_memory, check_memory
from holdfast.settings import PREFIX, LabSettings, PresetName

CONTROL: PresetName = "follow"
QUICK_REQUESTS = 300
QUICK_AT_ONCE = 3
"""Most of a small run is the start of its processes, which wait for one another."""
QUICK_VALUE_BYTES = 4 << 10
QUICK_LEASE_MS = 200
LEAST_MEMORY = 1 << 20
SHARED_GRANT_BYTES = 256 << 10
"""Small, so that a client does not hold much of the memory for puts that it has not made."""


@dataclass(frozen=True, slots=True)
class Course:
    """The workload that every preset goes through."""

    requests: list[Request]
    value_bytes: int
    size_bytes: int
    rate: float
    lease_ttl_ms: int
    coordination: str
    at_once: int


@takes(LabSettings)
def lab(settings: LabSettings, out: Output) -> int:
    """Replay a workload once for each preset, kill the primary in the middle, and compare what it costs."""
    presets = chosen(settings.presets)
    course = course_of(settings)
    check_memory(course.at_once * course.size_bytes, available_memory())
    stop = Event()
    try:
        with on_signals(stop):
            outcomes, control = run_all(course, presets, stop, out, controlled=not settings.quick)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the lab's processes have ended, and nothing of it is left") from None
    sound = not any(outcome.wrong for outcome in outcomes)
    if out.as_json:
        out.data({"ok": sound, "requests": len(course.requests), "memory_bytes": course.size_bytes,
                  "value_bytes": course.value_bytes, "presets": [outcome.facts() for outcome in outcomes],
                  "control": control.facts() if control is not None else None})  # fmt: skip
    else:
        tell(out, outcomes, control)
    if settings.plot is not None:
        draw(outcomes, settings.plot)
    return OK if sound else FAILED


def run_all(
    course: Course, presets: list[PresetName], stop: Event, out: Output, controlled: bool
) -> tuple[list[Outcome], Outcome | None]:
    """The outcome of each preset, and of the control, if there is one. KeyboardInterrupt: `stop` was set."""
    with ThreadPoolExecutor(course.at_once) as threads:
        killed = [threads.submit(tried, course, preset, True, stop, out) for preset in presets]
        unharmed = [threads.submit(tried, course, CONTROL, False, stop, out)] if controlled else []
        ended, _ = wait([*killed, *unharmed], return_when=FIRST_EXCEPTION)
        faults = [fault for trial in ended if (fault := trial.exception()) is not None]
        if faults:
            # One that cannot go on ends the others, which end their processes.
            stop.set()
            threads.shutdown(cancel_futures=True)
            raise faults[0]
    outcomes, controls = [trial.result() for trial in killed], [trial.result() for trial in unharmed]
    for control in controls:
        for outcome in outcomes:
            outcome.hit_rate_lost = control.hit_rate_after - outcome.hit_rate_after
    return outcomes, controls[0] if controls else None


def chosen(names: str) -> list[PresetName]:
    known: tuple[PresetName, ...] = get_args(PresetName)
    if not names:
        return list(known)
    asked = [name.strip() for name in names.split(",")]
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise BadValue(f"there is no preset {unknown[0]!r}: choose from {', '.join(known)}. Nothing was started")
    return [name for name in known if name in asked]


def course_of(settings: LabSettings) -> Course:
    quick = settings.quick
    count = min(settings.requests, QUICK_REQUESTS) if quick else settings.requests
    requests = traced(settings.trace, count) if settings.trace is not None else conversations(count, settings.seed)
    value_bytes = QUICK_VALUE_BYTES if quick else settings.value_size
    return Course(
        requests=requests,
        value_bytes=value_bytes,
        size_bytes=memory_for(requests, value_bytes, settings.memory),
        rate=0.0 if quick else settings.rate,
        lease_ttl_ms=min(QUICK_LEASE_MS, settings.lease_ttl_ms) if quick else settings.lease_ttl_ms,
        coordination=settings.coordination,
        at_once=QUICK_AT_ONCE if quick else 1,
    )


def memory_for(requests: list[Request], value_size: int, share: float) -> int:
    stored = distinct_blocks(requests) * extent_of(value_size)
    return max(LEAST_MEMORY, int(stored * share) >> 20 << 20)


def tried(course: Course, preset: PresetName, kills: bool, stop: Event, out: Output) -> Outcome:
    if stop.is_set():
        raise KeyboardInterrupt
    count = len(course.requests)
    fate = f"the primary is killed after {count // 2:,}" if kills else "nobody is killed"
    out.note(f"{preset}: {count:,} requests, {fate}")
    with tempfile.TemporaryDirectory(prefix="holdfast-lab-") as directory:
        wanted = ClusterWanted(
            data_dir=Path(directory),
            run_dir=Path(directory),
            size_bytes=course.size_bytes,
            coordination=course.coordination,
            cluster=f"lab-{secrets.token_hex(4)}",
            arguments=("--log-level", "error"),
            master_arguments=(
                *("--preset", preset, "--lease-ttl-ms", str(course.lease_ttl_ms)),
                *("--shared-grant-bytes", str(SHARED_GRANT_BYTES)),
            ),
            # The user's settings for their own cluster are not meant for this one; empty counts as unset.
            variables={name: "" for name in os.environ if name.startswith(PREFIX)},
        )
        trial = Trial(preset, course.requests, course.value_bytes, course.rate, wanted, stop)
        try:
            return trial.run(kills)
        finally:
            trial.cluster.fleet.end()
