"""The verbs, in the order that `holdfast --help` shows them."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli import (
    bench,
    cluster,
    demo,
    doctor,
    handing_over,
    keys,
    lab,
    live_settings,
    processes,
    restore,
    setting_aside,
    transfer,
    up,
)

app = typer.Typer(
    name="holdfast",
    help="A shared memory cache for large immutable objects whose master can die without the cache going cold.",
    epilog="Start with: holdfast up",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A shared memory cache for large immutable objects whose master can die without the cache going cold."""


_COMMANDS = (
    ("up", up.up, "Processes", "Example: holdfast up --size 4GiB --nodes 2"),
    ("master", processes.master, "Processes", "Example: holdfast master --listen 0.0.0.0:7070 --name master-1"),
    ("node", processes.node, "Processes", "Example: holdfast node --address 10.0.0.1:7070 --name node-7 --size 64GiB"),
    ("put", transfer.put, "Objects", "Example: holdfast put greeting README.md; date | holdfast put now -"),
    ("get", transfer.get, "Objects", "Example: holdfast get greeting -o copy.md; holdfast get now | wc -c"),
    ("exists", keys.exists, "Objects", "Example: holdfast exists greeting && echo there"),
    ("ls", keys.ls, "Objects", "Example: holdfast ls model-7/ --long"),
    ("rm", keys.rm, "Objects", "Example: holdfast rm greeting; holdfast rm --matching '^model-7/'"),
    ("stat", keys.stat, "Objects", "Example: holdfast stat greeting --json"),
    ("explain", keys.explain, "Objects", "Example: holdfast explain greeting"),
    ("status", cluster.status, "Cluster", "Example: holdfast status --address 10.0.0.1:7070"),
    ("nodes", cluster.nodes, "Cluster", "Example: holdfast nodes --json; holdfast nodes resize node-7 8GiB"),
    ("drain", setting_aside.drain, "Cluster", "Example: holdfast drain node-7; holdfast drain node-7 --cancel"),
    ("failover", handing_over.failover, "Cluster", "Example: holdfast failover --address 10.0.0.1:7070,10.0.0.2:7070"),
    ("snapshot", cluster.snapshot, "Cluster", "Example: holdfast snapshot --address 10.0.0.2:7070"),
    ("restore", restore.restore, "Cluster", "Example: holdfast restore --address 10.0.0.1:7070,10.0.0.2:7070"),
    ("settings", live_settings.settings, "Cluster", "Example: holdfast settings high_watermark=0.8 lease_ttl_ms="),
    ("demo", demo.demo, "Cluster", "Example: holdfast demo --objects 10000 --seconds 10"),
    ("lab", lab.lab, "Cluster", "Example: holdfast lab --presets follow,timer --trace conversation_trace.jsonl"),
    ("bench", bench.bench, "Cluster", "Example: holdfast bench --seconds 5"),
    ("doctor", doctor.doctor, "Cluster", "Example: holdfast doctor"),
)

VERBS = frozenset(name for name, _, _, _ in _COMMANDS)

for _name, _verb, _panel, _example in _COMMANDS:
    app.command(_name, epilog=_example, rich_help_panel=_panel)(_verb)
