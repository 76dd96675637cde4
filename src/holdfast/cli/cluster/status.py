"""Verbs that show the cluster: `status` and `nodes`; and `snapshot`, which writes down what a master holds."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from holdfast.cli import connection
from holdfast.cli.cluster.masters import (
    HEADINGS,
    LOOK_SECONDS,
    RIGHT,
    MasterSeen,
    ask_one,
    facts_of,
    given_addresses,
    primary_of,
    row_of,
    survey,
)
from holdfast.cli.declared import Flag, Operand
from holdfast.cli.exit_codes import LATER, OK
from holdfast.cli.output import Output, counted, human_bytes, human_ms, plain
from holdfast.environment.client_settings import BadSetting, ClientSettings
from holdfast.errors import NotAllowed, TryAgain
from holdfast.instant import now_seconds
from holdfast.messages.of_masters import FetchSnapshot, SnapshotPiece, TakeSnapshot
from holdfast.messages.requests import Done, NodeInfo, Status

SPARE = ("APPLIED", "EPOCH")
NODES_SPARE = ("LAST TOLD", "SEGMENTS", "LEASE", "DATA", "MODE")
PAST_ANY_SNAPSHOT = 1 << 40
"""An offset past any snapshot: a request for the piece there returns only the size."""


def status(
    settings: ClientSettings,
    out: Output,
    seconds: Annotated[str, Operand("[SECONDS]", "Of --watch: from one look to the next; 2 unless given.")] = "",
    watch: Annotated[bool, Flag("Look again and again, until q or Ctrl-C.")] = False,
) -> int:
    """Show the primary's view of the cluster, and how every master stands that is known."""
    if watch:
        from holdfast.cli.live.repetition import repeat, seconds_of

        return repeat(partial(show_once, settings, out), out, seconds_of(seconds))
    if seconds:
        raise BadSetting("SECONDS go with --watch: holdfast status --watch 5")
    return show_once(settings, out)


def show_once(settings: ClientSettings, out: Output) -> int:
    given = given_addresses(settings.address)
    try:
        with connection.open_cache(settings) as cache:
            primary: Status | None = cache.status()
    except TryAgain:
        # No primary is exactly when one wants to know how the others stand.
        seen = survey(given, settings.token, min(settings.timeout, LOOK_SECONDS))
        if not any(one.status is not None for one in seen):
            raise
        primary = primary_of(seen)
    else:
        assert primary is not None
        seen = survey([*given, primary.leader, *primary.masters], settings.token, min(settings.timeout, LOOK_SECONDS))
        # The master that answered may have led until a moment ago.
        leading = [one for one in (primary, primary_of(seen)) if one is not None and one.role == "primary"]
        primary = max(leading, key=lambda one: (one.epoch, one.applied_index), default=None)
    if out.as_json:
        shown = plain(primary) if primary is not None else {}
        masters = [facts_of(one, primary) for one in seen]
        out.data({**shown, "primary": shown or None, "masters": masters})
    else:
        show_status(out, primary, seen)
    return OK if primary is not None else LATER


def show_status(out: Output, found: Status | None, seen: list[MasterSeen]) -> None:
    if found is None:
        out.note("no master is primary now; one of these takes over when it can")
    else:
        show_primary(out, found)
        out.line("")
    out.table(HEADINGS, [row_of(one, found) for one in seen], RIGHT, SPARE)


def show_primary(out: Output, found: Status) -> None:
    share = found.used_bytes / found.capacity_bytes if found.capacity_bytes else 0.0
    out.facts(
        [
            ("cluster", f"{found.cluster}, {counted(found.nodes, 'node')}, {counted(found.clients, 'client')}"),
            ("master", f"{found.name} ({found.role}, epoch {found.epoch}), up {human_ms(found.uptime_ms)}"),
            ("leader", found.leader),
            ("version", found.version),
            ("objects", f"{found.objects:,}"),
            ("memory", f"{human_bytes(found.used_bytes)} of {human_bytes(found.capacity_bytes)} used ({share:.0%})"),
            ("being written", human_bytes(found.granted_bytes)),
            ("in quarantine", human_bytes(found.quarantined_bytes)),
            ("free", human_bytes(found.free_bytes)),
            ("log", f"index {found.log_index}, applied {found.applied_index}, durable {found.durable_index}"),
            *([("log version", _log_version_of(found))] if found.log_version else []),
            *([("successor", _successor_of(found))] if found.successor else []),
            ("digest", found.digest),
            *[("INSECURE", text) for text in found.insecure],
            *([("IDENTITIES", f"not as the file says: {found.identities_fault}")] if found.identities_fault else []),
        ]
    )


def _log_version_of(found: Status) -> str:
    """The records that may be written, and which masters are to be upgraded before newer ones may."""
    held = f"; held back by {', '.join(found.log_held_back_by)}: upgrade them" if found.log_held_back_by else ""
    return f"{found.log_version}{held}"


def _successor_of(found: Status) -> str:
    if found.role != "primary":
        return f"{found.successor}, as the log says"
    return f"{found.successor}, which holds all but {found.successor_lag:,} records"


def snapshot(settings: ClientSettings, out: Output) -> None:
    """Have a master write a snapshot now: the one at --address, or, of several, a standby that has caught up."""
    deadline = now_seconds() + settings.timeout
    given = given_addresses(settings.address)
    if len(given) != 1:
        with connection.open_cache(settings) as cache:
            given = [*given, cache.status().leader]
    seen = survey(given, settings.token, min(settings.timeout, LOOK_SECONDS))
    reached = [one for one in seen if one.status is not None]
    if not reached:
        raise TryAgain(f"no master answers: {seen[0].fault}")
    # The primary has better things to do, as long as somebody else can.
    chosen = next((one for one in reached if one.promotable), reached[0])
    assert chosen.status is not None
    batch = ask_one(chosen.address, settings.token, TakeSnapshot(), Done, deadline).count
    size_bytes = _size_of_snapshot(chosen.address, settings.token, batch, deadline)
    facts = {"master": chosen.status.name, "address": chosen.address, "role": chosen.role, "batch": batch}
    if out.as_json:
        out.data({**facts, "size_bytes": size_bytes or None})
        return
    size = f" ({human_bytes(size_bytes)})" if size_bytes else ""
    out.line(
        f"{chosen.status.name} ({chosen.role}) wrote a snapshot{size} of the log through batch {batch} "
        "to its data directory"
    )


def _size_of_snapshot(address: str, token: str, batch: int, deadline: float) -> int:
    """0 where it is not known: snapshots, and their sizes, are for masters only where there are roles."""
    try:
        return ask_one(address, token, FetchSnapshot(batch, PAST_ANY_SNAPSHOT), SnapshotPiece, deadline).size_bytes
    except NotAllowed:
        return 0


def nodes(
    settings: ClientSettings,
    out: Output,
    action: Annotated[str, Operand("[ACTION]", "cordon, uncordon, resize, copy-rate or revoke-client.")] = "",
    name: Annotated[str, Operand("[NAME]", "The node; of copy-rate the bytes a second.", "nodes")] = "",
    value: Annotated[str, Operand("[SIZE]", "Of resize: how much it shall lend.")] = "",
    force: Annotated[bool, Flag("Of resize: take memory that the node's machine seems to lack.", ("--force",))] = False,
) -> int:
    """List the nodes, whether they answer, and how full they are; or change one of them."""
    if action:
        from holdfast.cli.cluster import node_operations

        return node_operations.act(settings, out, action, name, value, force)
    with connection.open_cache(settings) as cache:
        found = cache.nodes().nodes
    if out.as_json:
        out.data(plain(found))
        return OK
    if not found:
        out.note("no node is here; start one with: holdfast node --name node-1 --size 1GiB")
        return OK
    rows = [
        (
            node.name,
            _state_of(node),
            human_ms(node.lease_left_ms),
            node.last_command or "-",
            human_bytes(node.used_bytes),
            human_bytes(node.capacity_bytes),
            f"{node.used_bytes / node.capacity_bytes:.0%}" if node.capacity_bytes else "-",
            node.segments,
            node.data_address,
            node.mode,
            _disk_of(node),
        )
        for node in found
    ]
    headings = ("NAME", "STATE", "LEASE", "LAST TOLD", "USED", "CAPACITY", "FULL", "SEGMENTS", "DATA", "MODE", "DISK")
    out.table(headings, rows, ("LEASE", "USED", "CAPACITY", "FULL", "SEGMENTS"), NODES_SPARE)
    return OK


def _state_of(node: NodeInfo) -> str:
    """How its session stands, and whether anything is placed on it."""
    if node.standing == "safe":
        return "safe" if node.available else "safe, not connected"
    return f"{node.standing} for {human_ms(node.silent_ms)}" if node.standing == "jeopardy" else node.standing


def _disk_of(node: NodeInfo) -> str:
    if not node.disk:
        return "-"
    used = f"{human_bytes(node.disk_used_bytes)} of {human_bytes(node.disk_capacity_bytes)}"
    return used if node.disk == "mounted" else f"{node.disk}; {used}"
