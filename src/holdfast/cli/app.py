"""The verbs, in the order that `holdfast --help` shows them.

A command line that begins with a verb needs that verb alone. The others are not imported, nor are their flags made,
which takes longer than many a command. Typer is imported when an app is made: verbs that only connect are read without
it where that will do (`quick`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, NamedTuple

from holdfast import __version__
from holdfast.cli.declared import Misuse
from holdfast.cli.exit_codes import OK, USAGE

if TYPE_CHECKING:
    import typer

COMPLETING = "_HOLDFAST_COMPLETE"


class Verb(NamedTuple):
    """A function of the verb's name, in a module of this package."""

    module: str
    panel: str
    example: str
    connects: bool = False
    """It needs the client's settings and nothing else: its module imports neither typer nor pydantic, and its arguments
    are declared as `declared` says."""


VERBS = {
    "up": Verb("processes.up", "Processes", "Example: holdfast up --size 4GiB --nodes 2"),
    "master": Verb("processes.run", "Processes", "Example: holdfast master --listen 127.0.0.1:7070 --name master-1"),
    "node": Verb(
        "processes.run", "Processes", "Example: holdfast node --address 10.0.0.1:7070 --name node-7 --size 64GiB"
    ),
    "config": Verb("processes.config_file", "Processes", "Example: holdfast config check /etc/holdfast/master.toml"),
    "put": Verb(
        "objects.transfer",
        "Objects",
        "Example: holdfast put greeting README.md; date | holdfast put now -",
        connects=True,
    ),
    "get": Verb(
        "objects.transfer",
        "Objects",
        "Example: holdfast get greeting -o copy.md; holdfast get now | wc -c",
        connects=True,
    ),
    "exists": Verb("objects.keys", "Objects", "Example: holdfast exists greeting && echo there", connects=True),
    "ls": Verb(
        "objects.keys", "Objects", "Example: holdfast ls model-7/ --long; holdfast ls 'model/*/kv-??'", connects=True
    ),
    "rm": Verb(
        "objects.keys", "Objects", "Example: holdfast rm greeting; holdfast rm --matching '^model-7/'", connects=True
    ),
    "stat": Verb("objects.keys", "Objects", "Example: holdfast stat greeting --json", connects=True),
    "touch": Verb("objects.keys", "Objects", "Example: holdfast touch greeting", connects=True),
    "pin": Verb(
        "objects.keys", "Objects", "Example: holdfast pin model-7/weights --hard; holdfast pin greeting", connects=True
    ),
    "unpin": Verb("objects.keys", "Objects", "Example: holdfast unpin model-7/weights", connects=True),
    "explain": Verb("objects.keys", "Objects", "Example: holdfast explain greeting", connects=True),
    "status": Verb("cluster.status", "Cluster", "Example: holdfast status; holdfast status --watch 5", connects=True),
    "top": Verb("live.top", "Cluster", "Example: holdfast top; holdfast top --once"),
    "events": Verb(
        "live.events", "Cluster", "Example: holdfast events --limit 20; holdfast events --follow --json", connects=True
    ),
    "nodes": Verb(
        "cluster.status", "Cluster", "Example: holdfast nodes --json; holdfast nodes resize node-7 8GiB", connects=True
    ),
    "clients": Verb(
        "cluster.clients", "Cluster", "Example: holdfast clients; holdfast clients revoke 1f2e3d4c5b", connects=True
    ),
    "drain": Verb(
        "cluster.node_operations", "Cluster", "Example: holdfast drain node-7; holdfast drain node-7 --cancel"
    ),
    "failover": Verb("cluster.failover", "Cluster", "Example: holdfast failover --address 10.0.0.1:7070,10.0.0.2:7070"),
    "snapshot": Verb("cluster.status", "Cluster", "Example: holdfast snapshot --address 10.0.0.2:7070", connects=True),
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
    import typer

    from holdfast.cli.options import takes
    from holdfast.environment.client_settings import ClientSettings

    app = typer.Typer(
        name="holdfast",
        help="A shared memory cache for large immutable objects whose master can die without the cache going cold.",
        epilog="Start with: holdfast up",
        add_completion=True,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root())
    named = arguments[0] if arguments else ""
    for name in [named] if named in VERBS else VERBS:
        verb = VERBS[name]
        run = getattr(import_module(f"holdfast.cli.{verb.module}"), name)
        if verb.connects:
            run = takes(ClientSettings)(run)
        app.command(name, epilog=verb.example, rich_help_panel=verb.panel)(run)
    return app


def run_with_typer(arguments: list[str]) -> int:
    """Run the verb that the arguments name, print help, or answer the shell. Misuse if typer cannot read them."""
    import typer

    completing = COMPLETING in os.environ
    command = typer.main.get_command(app_for(_typed_so_far() if completing else arguments))
    if completing:
        # The shell asks what could be typed here; this prints it and exits.
        command.main(args=arguments, prog_name="holdfast")
    try:
        # Not `command.main`, which would turn Ctrl-C and a closed pipe into exits of its own.
        with command.make_context("holdfast", arguments) as context:
            code = command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        if not error.format_message():
            # No verb was given: the help has been printed, which says it all.
            return USAGE
        raise Misuse(error.format_message()) from error
    return code if isinstance(code, int) else OK


def _typed_so_far() -> list[str]:
    """The verb that is being completed, as bash or the other shells tell it; none while it is not whole."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    return words[:1] if len(words) > 1 or line[-1:].isspace() else []


def _root() -> Callable[..., None]:
    import typer

    def print_version(asked: bool) -> None:
        if asked:
            typer.echo(f"holdfast {__version__}")
            raise typer.Exit

    shown = typer.Option("--version", help="Print the version and exit.", callback=print_version, is_eager=True)

    def root(show_version: bool = False) -> None:
        """A shared memory cache for large immutable objects whose master can die without the cache going cold."""

    root.__annotations__["show_version"] = Annotated[bool, shown]
    return root
