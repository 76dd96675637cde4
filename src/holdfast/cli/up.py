"""`holdfast up`: a whole cluster on this machine, as real processes, until Ctrl-C."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from holdfast.cli.exit_codes import FAILED, INTERRUPTED, OK
from holdfast.cli.fleet import Child, Fleet
from holdfast.cli.options import takes
from holdfast.cli.output import Output, human_bytes
from holdfast.errors import Refused
from holdfast.settings import UpSettings, flag_of, join_address, split_address

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a process that listens everywhere is reached from its own machine."""
PORTS_TRIED = 1_000
START_WITHIN_S = 60.0
TOUCHED_BYTES_A_SECOND = 256 << 20
"""What even a slow, busy machine manages."""


@takes(UpSettings)
def up(settings: UpSettings, out: Output, config: Path | None) -> int:
    """Start a master and nodes on this machine, keep them running, and end them on Ctrl-C.

    What dies is started again. The children read the tables of --config for themselves, too.
    """
    for flag in ("listen", "http"):
        check_port_is_free(flag, getattr(settings, flag))
    check_memory(settings.size * settings.nodes, available_bytes())
    data_dir = settings.data_dir.expanduser()
    data_dir.mkdir(parents=True, exist_ok=True)
    stop = Event()
    with on_signals(stop), tempfile.TemporaryDirectory(prefix="holdfast-up-") as run_dir:
        fleet = Fleet(stop, say)
        try:
            facts = start(fleet, settings, data_dir, Path(run_dir), config)
            if settings.ready_file is not None:
                write_ready_file(settings.ready_file, facts)
            if out.as_json:
                out.data(facts)
                sys.stdout.flush()
            else:
                tell(facts, settings)
            fleet.watch()
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            say("stopping")
            killed = fleet.end()
            if settings.ready_file is not None:
                settings.ready_file.unlink(missing_ok=True)
    if killed:
        say(f"{', '.join(killed)} did not end in time and had to be killed")
    return FAILED if killed else OK


def start(fleet: Fleet, settings: UpSettings, data_dir: Path, run_dir: Path, config: Path | None) -> dict[str, Any]:
    """Start the master, then the nodes; where they all are."""
    hidden = {"HOLDFAST_TOKEN": settings.token} if settings.token else {}
    shared = ["--log-level", settings.log_level, *(["--config", str(config)] if config is not None else [])]
    master = Child(
        "master-1",
        ["master", "--name", "master-1", "--data-dir", str(data_dir / "master-1"), *shared],
        run_dir / "master-1.json",
        hidden,
    )
    listening = master.arguments
    master.arguments = [*listening, "--listen", settings.listen, "--http", settings.http]
    [found] = fleet.launch(master)
    # Any free port becomes this port: a master that is started again must be found where it was.
    master.arguments = [*listening, "--listen", found["address"], "--http", found["http"]]

    reached = reachable(found["address"])
    host, port = split_address(settings.listen)
    taken = {split_address(found["http"])[1]}
    nodes = []
    for number in range(1, settings.nodes + 1):
        chosen = next_free_port(host, port + 1, taken) if port else 0
        taken.add(chosen)
        name = f"node-{number}"
        place = ["--listen", join_address(host, chosen), "--address", reached, "--size", str(settings.size)]
        nodes.append(Child(name, ["node", "--name", name, *place, *shared], run_dir / f"{name}.json", hidden))
    # A node touches its memory before it lends it, so that no put ever waits for a page.
    placed = fleet.launch(*nodes, within_s=START_WITHIN_S + settings.nodes * settings.size / TOUCHED_BYTES_A_SECOND)
    return {
        "pid": os.getpid(),
        "address": reached,
        "http": reachable(found["http"]),
        "masters": [{**found, "pid": master.pid}],
        "nodes": [{**facts, "pid": child.pid} for facts, child in zip(placed, nodes, strict=True)],
    }


def tell(facts: dict[str, Any], settings: UpSettings) -> None:
    default = facts["address"] == UpSettings.model_fields["listen"].default
    aim = "" if default else f" --address {facts['address']}"
    print("holdfast is up", flush=False)
    for master in facts["masters"]:
        print(f"  {master['name']:10} {facts['address']}   http://{facts['http']}/")
    for node in facts["nodes"]:
        print(f"  {node['name']:10} {node['data_address']}   lends {human_bytes(settings.size)}")
    print("try, in another shell:")
    print(f"  holdfast put greeting README.md{aim}")
    print(f"  holdfast get greeting{aim}")
    print(f"  holdfast status{aim}")
    print("Ctrl-C ends it", flush=True)


def say(text: str) -> None:
    print(f"holdfast up: {text}", file=sys.stderr, flush=True)


def check_port_is_free(field: str, address: str) -> None:
    host, port = split_address(address)
    fault = bind_fault(host, port)
    if fault is not None:
        raise Refused(
            f"port {port} on {host} cannot be used: {fault}. Nothing was started; "
            f"is holdfast already running? Choose another port with {flag_of(field)}"
        )


def check_memory(wanted_bytes: int, available: int | None) -> None:
    """The kernel would rather end processes at random than say that there is not enough."""
    if available is not None and wanted_bytes > available:
        raise Refused(
            f"the nodes would lend {human_bytes(wanted_bytes)}, but only {human_bytes(available)} of memory are "
            "available. Nothing was started; choose a smaller --size"
        )


def available_bytes() -> int | None:
    """Memory that this machine can still give, where it says so."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def next_free_port(host: str, first: int, taken: set[int]) -> int:
    for port in range(first, min(first + PORTS_TRIED, 65_536)):
        if port not in taken and bind_fault(host, port) is None:
            return port
    raise Refused(f"no port from {first} on is free on {host}; choose another place with --listen")


def bind_fault(host: str, port: int) -> str | None:
    """Why nobody can listen there, or None."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def reachable(address: str) -> str:
    host, port = split_address(address)
    return join_address(ANYWHERE.get(host, host), port)


def write_ready_file(path: Path, facts: dict[str, Any]) -> None:
    """Whoever waits for the file finds it whole."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    partial.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    partial.replace(path)


@contextmanager
def on_signals(stop: Event) -> Iterator[None]:
    """SIGTERM, Ctrl-C and a closed terminal set the event, until the block ends."""
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
