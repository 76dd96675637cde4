"""`holdfast lab`: one workload through every preset, with the primary killed in the middle of each.

Each preset gets a cluster of its own: two masters, a node with less memory than the blocks would take, and a client
that looks blocks up, reads those that are there and writes the others. What it prints is what the presets cost, and
what is left after a failover.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from threading import Event
from typing import get_args

from holdfast.cli.exit_codes import FAILED, INTERRUPTED, OK
from holdfast.cli.lab_report import draw, tell
from holdfast.cli.lab_run import Outcome, Trial
from holdfast.cli.lab_workload import Request, conversations, distinct_blocks, traced
from holdfast.cli.local_cluster import Wanted, available_bytes, check_memory
from holdfast.cli.options import takes
from holdfast.cli.output import Output
from holdfast.cli.up import on_signals
from holdfast.errors import BadValue
from holdfast.ids import extent_of
from holdfast.settings import PREFIX, LabSettings, PresetName

QUICK_REQUESTS = 400
QUICK_VALUE_BYTES = 4 << 10
QUICK_LEASE_MS = 200
LEAST_MEMORY = 1 << 20
SHARED_GRANT_BYTES = 256 << 10
"""Small, so that a client does not hold much of the memory for puts that it has not made."""


@takes(LabSettings)
def lab(settings: LabSettings, out: Output) -> int:
    """Replay a workload once for each preset, kill the primary in the middle, and compare what it costs."""
    presets = chosen(settings.presets)
    requests = workload(settings)
    value_size = QUICK_VALUE_BYTES if settings.quick else settings.value_size
    size_bytes = memory_for(requests, value_size, settings.memory)
    check_memory(size_bytes, available_bytes())
    stop = Event()
    outcomes: list[Outcome] = []
    with on_signals(stop):
        for preset in presets:
            out.note(f"{preset}: {len(requests):,} requests, the primary is killed after {len(requests) // 2:,}")
            try:
                outcomes.append(tried(settings, preset, requests, value_size, size_bytes, stop))
            except KeyboardInterrupt:
                return INTERRUPTED
    sound = not any(outcome.wrong for outcome in outcomes)
    if out.as_json:
        out.data({"ok": sound, "requests": len(requests), "memory_bytes": size_bytes, "value_bytes": value_size,
                  "presets": [outcome.facts() for outcome in outcomes]})  # fmt: skip
    else:
        tell(out, outcomes)
    if settings.plot is not None:
        draw(outcomes, settings.plot)
    return OK if sound else FAILED


def chosen(names: str) -> list[PresetName]:
    known: tuple[PresetName, ...] = get_args(PresetName)
    if not names:
        return list(known)
    asked = [name.strip() for name in names.split(",")]
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise BadValue(f"there is no preset {unknown[0]!r}: choose from {', '.join(known)}. Nothing was started")
    return [name for name in known if name in asked]


def workload(settings: LabSettings) -> list[Request]:
    count = min(settings.requests, QUICK_REQUESTS) if settings.quick else settings.requests
    return traced(settings.trace, count) if settings.trace is not None else conversations(count, settings.seed)


def memory_for(requests: list[Request], value_size: int, share: float) -> int:
    stored = distinct_blocks(requests) * extent_of(value_size)
    return max(LEAST_MEMORY, int(stored * share) >> 20 << 20)


def tried(
    settings: LabSettings, preset: PresetName, requests: list[Request], value_size: int, size_bytes: int, stop: Event
) -> Outcome:
    lease_ttl_ms = min(QUICK_LEASE_MS, settings.lease_ttl_ms) if settings.quick else settings.lease_ttl_ms
    with tempfile.TemporaryDirectory(prefix="holdfast-lab-") as directory:
        wanted = Wanted(
            data_dir=Path(directory),
            run_dir=Path(directory),
            size_bytes=size_bytes,
            coordination=settings.coordination,
            cluster=f"lab-{secrets.token_hex(4)}",
            arguments=("--log-level", "error"),
            master_arguments=(
                *("--preset", preset, "--lease-ttl-ms", str(lease_ttl_ms)),
                *("--shared-grant-bytes", str(SHARED_GRANT_BYTES)),
            ),
            # What the user has set for a cluster of theirs is not meant for this one; empty is as if unset.
            variables={name: "" for name in os.environ if name.startswith(PREFIX)},
        )
        rate = 0.0 if settings.quick else settings.rate
        trial = Trial(preset, requests, value_size, rate, wanted, stop)
        try:
            return trial.run()
        finally:
            trial.cluster.fleet.end()
