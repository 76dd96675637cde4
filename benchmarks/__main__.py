"""`python -m benchmarks`: run the themes, print the table."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from contextlib import nullcontext

import msgspec

from benchmarks import (
    adjacency,
    bandwidth,
    batches,
    catalogue,
    cli_start,
    dashboard,
    eviction_stream,
    evictions,
    failover,
    floods,
    log_speed,
    metrics,
    outages,
    renewals,
    replicas,
    sessions,
    single_keys,
    successor,
    tenant_steps,
    tenants,
    torment,
)
from benchmarks.measure import Row, Scale
from benchmarks.wakeful import awake

THEMES: dict[str, Callable[[Scale], list[Row]]] = {
    "single": single_keys.run,
    "batches": batches.run,
    "shared-memory": bandwidth.run_same_host,
    "tcp": bandwidth.run_tcp,
    "storm": evictions.run_storm,
    "eviction": evictions.run_core,
    "adjacency": adjacency.run,
    "catalogue": catalogue.run,
    "sessions": sessions.run,
    "outages": outages.run,
    "failover": failover.run,
    "log": log_speed.run,
    "standby": successor.run,
    "torment": torment.run,
    "replicas": replicas.run,
    "failover-million": failover.run_million,
    "renewals": renewals.run,
    "eviction-stream": eviction_stream.run,
    "floods": floods.run,
    "dashboard": dashboard.run,
    "tenants": tenants.run,
    "tenant-steps": tenant_steps.run,
    "metrics": metrics.run,
    "cli": cli_start.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure this machine; medians, ratios in one run.")
    parser.add_argument("--only", choices=THEMES, action="append", help="only this theme; may be given again")
    parser.add_argument("--quick", action="store_true", help="see that it works; the figures mean little")
    parser.add_argument("--awake", action="store_true", help="keep cores from sleeping, as on a machine of one's own")
    parser.add_argument("--json", action="store_true", help="rows as JSON on standard output")
    given = parser.parse_args()
    scale = Scale(given.quick)
    rows: list[Row] = []
    with awake() if given.awake else nullcontext():
        for name in given.only or THEMES:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            measured = THEMES[name](scale)
            rows += measured
            if not given.json:
                print("\n".join(_lines(measured)), flush=True)
    if given.json:
        found = {"machine": _machine(), "quick": given.quick, "awake": given.awake, "rows": rows}
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    missed = [row.name for row in rows if row.reached is False]
    print(f"{_machine()}; {len(missed)} of {len(rows)} rows missed their target", file=sys.stderr)
    return 0


def _machine() -> str:
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    )


def _lines(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        reached = {True: "yes", False: "NO", None: ""}[row.reached]
        remarks = "; ".join(filter(None, [f"of {row.baseline}" if row.baseline else "", row.durability, row.note]))
        figure = f"{_number(row.figure):>12} {row.unit:<14}"
        lines.append(f"{row.name:<52} {figure} {ratio:>7}  {row.target:<16} {reached:<4} {remarks}".rstrip())
    return lines


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 1000 or figure == int(figure) else f"{figure:,.2f}"


if __name__ == "__main__":
    sys.exit(main())
