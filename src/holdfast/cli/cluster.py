"""Verbs that show the cluster: `status` and `nodes`."""

from __future__ import annotations

from holdfast.cli import connection
from holdfast.cli.options import takes
from holdfast.cli.output import Output, human_bytes, human_ms, plain
from holdfast.settings import ClientSettings


@takes(ClientSettings)
def status(settings: ClientSettings, out: Output) -> None:
    """Show the master's view of the cluster: role, objects, memory, log."""
    with connection.open_cache(settings) as cache:
        found = cache.status()
    if out.as_json:
        out.data(found)
        return
    share = found.used_bytes / found.capacity_bytes if found.capacity_bytes else 0.0
    out.facts(
        [
            ("cluster", f"{found.cluster}, {found.nodes} nodes, {found.clients} clients"),
            ("master", f"{found.name} ({found.role}, epoch {found.epoch}), up {human_ms(found.uptime_ms)}"),
            ("leader", found.leader),
            ("version", found.version),
            ("objects", f"{found.objects:,}"),
            ("memory", f"{human_bytes(found.used_bytes)} of {human_bytes(found.capacity_bytes)} used ({share:.0%})"),
            ("being written", human_bytes(found.granted_bytes)),
            ("in quarantine", human_bytes(found.quarantined_bytes)),
            ("free", human_bytes(found.free_bytes)),
            ("log", f"index {found.log_index}, applied {found.applied_index}, durable {found.durable_index}"),
            ("promotable", "yes" if found.promotable else f"no: {found.promotable_reason}"),
            ("digest", found.digest),
        ]
    )


@takes(ClientSettings)
def nodes(settings: ClientSettings, out: Output) -> None:
    """List the nodes, whether they answer, and how full they are."""
    with connection.open_cache(settings) as cache:
        found = cache.nodes().nodes
    if out.as_json:
        out.data(plain(found))
        return
    if not found:
        out.note("no node is here; start one with: holdfast node --name node-1 --size 1GiB")
        return
    rows = [
        (
            node.name,
            "available" if node.available else f"silent for {human_ms(node.silent_ms)}",
            human_bytes(node.used_bytes),
            human_bytes(node.capacity_bytes),
            f"{node.used_bytes / node.capacity_bytes:.0%}" if node.capacity_bytes else "-",
            node.segments,
            node.data_address,
        )
        for node in found
    ]
    headings = ("NAME", "STATE", "USED", "CAPACITY", "FULL", "SEGMENTS", "DATA")
    out.table(headings, rows, right=("USED", "CAPACITY", "FULL", "SEGMENTS"))
