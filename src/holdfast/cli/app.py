"""The verbs, in the order that `holdfast --help` shows them.

A command line that begins with a verb needs that verb alone. The others are not imported, nor are their flags made,
which takes longer than many a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

from holdfast import __version__


class Verb(NamedTuple):
    """A function of the verb's name, in a module of this package."""

    module: str
    panel: str
    example: str


VERBS = {
    "up": Verb("processes.up", "Processes", "Example: holdfast up --size 4GiB --nodes 2"),
    "master": Verb("processes.run", "Processes", "Example: holdfast master --listen 127.0.0.1:7070 --name master-1"),
    "node": Verb(
        "processes.run", "Processes", "Example: holdfast node --address 10.0.0.1:7070 --name node-7 --size 64GiB"
    ),
    "config": Verb("processes.config_file", "Processes", "Example: holdfast config check /etc/holdfast/master.toml"),
    "put": Verb("objects.transfer", "Objects", "Example: holdfast put greeting README.md; date | holdfast put now -"),
    "get": Verb("objects.transfer", "Objects", "Example: holdfast get greeting -o copy.md; holdfast get now | wc -c"),
    "exists": Verb("objects.keys", "Objects", "Example: holdfast exists greeting && echo there"),
    "ls": Verb("objects.keys", "Objects", "Example: holdfast ls model-7/ --long"),
    "rm": Verb("objects.keys", "Objects", "Example: holdfast rm greeting; holdfast rm --matching '^model-7/'"),
    "stat": Verb("objects.keys", "Objects", "Example: holdfast stat greeting --json"),
    "explain": Verb("objects.keys", "Objects", "Example: holdfast explain greeting"),
    "status": Verb("cluster.status", "Cluster", "Example: holdfast status --address 10.0.0.1:7070"),
    "nodes": Verb("cluster.status", "Cluster", "Example: holdfast nodes --json; holdfast nodes resize node-7 8GiB"),
    "clients": Verb("cluster.clients", "Cluster", "Example: holdfast clients; holdfast clients revoke 1f2e3d4c5b"),
    "drain": Verb(
        "cluster.node_operations", "Cluster", "Example: holdfast drain node-7; holdfast drain node-7 --cancel"
    ),
    "failover": Verb("cluster.failover", "Cluster", "Example: holdfast failover --address 10.0.0.1:7070,10.0.0.2:7070"),
    "snapshot": Verb("cluster.status", "Cluster", "Example: holdfast snapshot --address 10.0.0.2:7070"),
    "restore": Verb("cluster.restore", "Cluster", "Example: holdfast restore --address 10.0.0.1:7070,10.0.0.2:7070"),
    "token": Verb(
        "cluster.tokens",
        "Cluster",
        "Example: holdfast token new trainer --role writer --identities ids.toml > trainer.token",
    ),
    "certificates": Verb(
        "cluster.certificates",
        "Cluster",
        "Example: holdfast certificates authority; holdfast certificates server node-7 --host 10.0.0.7",
    ),
    "settings": Verb("cluster.live_settings", "Cluster", "Example: holdfast settings high_watermark=0.8 lease_ttl_ms="),
    "tenants": Verb(
        "cluster.tenants", "Cluster", "Example: holdfast tenants; holdfast tenants set team-a --limit 40GiB"
    ),
    "demo": Verb("demo.command", "Cluster", "Example: holdfast demo --objects 10000 --seconds 10"),
    "lab": Verb(
        "lab.command", "Cluster", "Example: holdfast lab --presets follow,timer --trace conversation_trace.jsonl"
    ),
    "bench": Verb("objects.bench", "Cluster", "Example: holdfast bench --seconds 5"),
    "doctor": Verb("cluster.doctor", "Cluster", "Example: holdfast doctor"),
}


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The command line that these arguments need: their verb, or all of them where they do not begin with one."""
    app = typer.Typer(
        name="holdfast",
        help="A shared memory cache for large immutable objects whose master can die without the cache going cold.",
        epilog="Start with: holdfast up",
        add_completion=True,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    named = arguments[0] if arguments else ""
    for name in [named] if named in VERBS else VERBS:
        verb = VERBS[name]
        run = getattr(import_module(f"holdfast.cli.{verb.module}"), name)
        app.command(name, epilog=verb.example, rich_help_panel=verb.panel)(run)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


def root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A shared memory cache for large immutable objects whose master can die without the cache going cold."""
