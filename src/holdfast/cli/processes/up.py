"""`holdfast up`: a whole cluster on this machine, as real processes, until Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from holdfast.cli.exit_codes import FAILED, INTERRUPTED, OK
from holdfast.cli.options import takes
from holdfast.cli.output import Output, human_bytes
from holdfast.cli.processes.fleet import Fleet
from holdfast.cli.processes.local_cluster import ClusterWanted, LocalCluster
from holdfast.cli.processes.ports import check_port_is_free, reachable
from holdfast.coordination.urls import redacted
from holdfast.errors import Refused
from holdfast.messages.requests import Status
from holdfast.node.host_capacity import available_memory, check_memory
from holdfast.private_files import keep_private, private_directory
from holdfast.settings import BadSetting, UpSettings


@takes(UpSettings)
def up(settings: UpSettings, out: Output, config: Path | None) -> int:
    """Start masters and nodes on this machine, keep them running, and end them on Ctrl-C.

    What dies is started again. The children read the tables of --config for themselves, too.
    """
    for flag in ("listen", "http"):
        check_port_is_free(flag, getattr(settings, flag))
    if settings.ready_file is not None and not settings.ready_file.parent.is_dir():
        raise BadSetting(f"--ready-file: there is no directory {settings.ready_file.parent}. Nothing was started")
    if not settings.force:
        check_memory(settings.size * settings.nodes, available_memory())
    data_dir = settings.data_dir.expanduser()
    keep_private()
    private_directory(data_dir)
    stop = Event()
    code = OK
    with locked(data_dir), on_signals(stop), tempfile.TemporaryDirectory(prefix="holdfast-up-") as run_dir:
        fleet = Fleet(stop, say)
        try:
            cluster = LocalCluster(fleet, wanted_by(settings, data_dir, Path(run_dir), config))
            facts = facts_of(cluster, cluster.start(stop))
            if settings.ready_file is not None:
                write_ready_file(settings.ready_file, facts)
            if out.as_json:
                out.data(facts)
                sys.stdout.flush()
            else:
                tell(facts, settings)
            fleet.watch()
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            say("stopping")
            killed = fleet.end()
            if settings.ready_file is not None:
                settings.ready_file.unlink(missing_ok=True)
    if killed:
        say(f"{', '.join(killed)} did not end in time and had to be killed")
    say(f"stopped; the log and the snapshots are kept in {data_dir}, the memory that was lent is gone")
    return FAILED if killed else code


def wanted_by(settings: UpSettings, data_dir: Path, run_dir: Path, config: Path | None) -> ClusterWanted:
    return ClusterWanted(
        data_dir=data_dir,
        run_dir=run_dir,
        size_bytes=settings.size,
        listen=settings.listen,
        http=settings.http,
        masters=settings.masters,
        nodes=settings.nodes,
        coordination=settings.coordination,
        token=settings.token,
        arguments=(
            *("--log-level", settings.log_level),
            *(("--config", str(config)) if config is not None else ()),
            *(("--insecure",) if settings.insecure else ()),
        ),
        master_arguments=(
            *(("--preset", settings.preset) if settings.preset is not None else ()),
            *(("--identities", str(settings.identities.absolute())) if settings.identities is not None else ()),
        ),
        node_arguments=("--force",) if settings.force else (),
        new_history=settings.new_history,
    )


def facts_of(cluster: LocalCluster, primary: Status) -> dict[str, Any]:
    """Where they all are, for the ready file."""
    return {
        "pid": os.getpid(),
        "address": cluster.address,
        "http": reachable(cluster.masters[0][1]["http"]),
        "coordination": redacted(cluster.wanted.log),
        "primary": primary.name,
        "masters": [{**facts, "pid": child.pid} for child, facts in cluster.masters],
        "nodes": [{**facts, "pid": child.pid} for child, facts in cluster.nodes],
    }


def tell(facts: dict[str, Any], settings: UpSettings) -> None:
    primary = next(master for master in facts["masters"] if master["name"] == facts["primary"])
    print("holdfast is up", flush=False)
    for master in facts["masters"]:
        role = "primary" if master is primary else "standby"
        place = f"{reachable(master['address'])}   http://{reachable(master['http'])}/"
        print(f"  {master['name']:10} {place}   {role}, process {master['pid']}")
    for node in facts["nodes"]:
        print(f"  {node['name']:10} {node['data_address']}   lends {human_bytes(settings.size)}")
    print("try, in another shell:")
    print(f"  export HOLDFAST_ADDRESS={facts['address']}")
    print("  holdfast put greeting README.md")
    print("  holdfast get greeting")
    print("  holdfast status")
    if len(facts["masters"]) > 1:
        print(f"  kill -9 {primary['pid']}   # the primary: kill it, and get the greeting again")
    print("Ctrl-C ends it", flush=True)


def say(text: str) -> None:
    print(f"holdfast up: {text}", file=sys.stderr, flush=True)


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Make sure that no other cluster runs on this directory: its masters would join ours."""
    with (data_dir / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"another holdfast up runs on {data_dir}. Nothing was started; stop it, or choose another --data-dir"
            ) from None
        yield


def write_ready_file(path: Path, facts: dict[str, Any]) -> None:
    """Write the ready file atomically: a process that waits for it never sees a partial one."""
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
