"""The figures that a dashboard shows every second. None of them needs a pass over the catalogue: a status has a digest
and, of a standby, the bytes in use, and would take tens of milliseconds of a million objects."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.core.primary.object_counts import EvictionReason
from holdfast.core.primary.primary import Primary
from holdfast.core.tenants import tenants_of
from holdfast.dashboard.metric_families import snake
from holdfast.instant import Instant, now_ms
from holdfast.master.engine.engine import Engine
from holdfast.master.roles.master import Master
from holdfast.master.status.sessions import by_node, node_info, standing_of
from holdfast.master.status.standings import MasterStanding
from holdfast.operations.durations import BOUNDS_SECONDS

MOST_NODES = 1_000
MOST_TENANTS = 1_000


def overview_of(master: Master, masters: list[MasterStanding], started: Instant) -> dict[str, Any]:
    """At least the fields of `OverviewShown`."""
    engine, now = master.engine, now_ms()
    state = (master.server.engine or master.standby).state
    promotable, reason = master.promotable()
    latencies = master.server.latencies.by_verb
    found: dict[str, Any] = {
        "cluster": master.plan.cluster,
        "name": master.server.name,
        "role": master.role,
        "epoch": state.epoch,
        "leader": master.leader_address,
        "version": __version__,
        "uptime_ms": now - started,
        "stopping": master.server.stopping,
        "promotable": promotable,
        "promotable_reason": reason,
        "waits": master.histories.waits if master.histories is not None else "",
        "alone": master.coordination is None,
        "masters": [msgspec.structs.asdict(one) for one in masters],
        "objects": state.objects,
        "index": state.index,
        "durable_index": engine.durable_index if engine is not None else state.index,
        "durability": master.plan.durability,
        "successor": engine.succession.name if engine is not None and engine.succession is not None else "",
        "lease_sync": str(master.plan.rules.lease_sync),
        "promotion_ms": master.term_figures.promotion_ms,
        "insecure": list(master.plan.insecure),
        "connections": len(master.server.connections),
        "requests": {snake(kind.__name__): count for kind, count in list(master.server.requests.items())},
        "latencies": {snake(kind.__name__): took.cumulative() for kind, took in latencies.items()},
        "latency_bounds_seconds": BOUNDS_SECONDS,
        "capacity_bytes": sum(segment.usable_bytes for segment in state.memory_segments()),
    }
    return found | (_of_primary(engine, now) if engine is not None else {"nodes": [], "tenants": [], "sessions": {}})


def _of_primary(engine: Engine, now: Instant) -> dict[str, Any]:
    primary, counts = engine.primary, engine.primary.counts
    members = list(primary.members.values())[:MOST_NODES]
    own = by_node(primary.state)
    infos = [node_info(primary, member, own.get(member.name, []), now, counts_left=False) for member in members]
    nodes = [msgspec.structs.asdict(info) for info in infos]
    return {
        "free_bytes": primary.free_bytes,
        "evicted": engine.evicted,
        "evicted_objects": {reason.value: counts.evicted[reason] for reason in EvictionReason},
        "evicted_bytes": {reason.value: counts.evicted_bytes[reason] for reason in EvictionReason},
        "hits": counts.hits,
        "misses": counts.misses,
        "hit_bytes": counts.hit_bytes,
        "stored_bytes": counts.stored_bytes,
        "parked_puts": engine.parked,
        "failures": dict(engine.failures),
        "nodes": nodes,
        "nodes_total": len(primary.members),
        "sessions": dict(Counter(standing_of(one, now) for one in primary.sessions)),
        "tenants": _tenants(primary, now),
        "tcp_read_bytes": sum(node["figures"].get("tcp_read_bytes", 0) for node in nodes),
        "tcp_written_bytes": sum(node["figures"].get("tcp_written_bytes", 0) for node in nodes),
    }


def _tenants(primary: Primary, now: Instant) -> list[dict[str, Any]]:
    """None without tenants: the whole memory is one's own then."""
    if not primary.state.tenants:
        return []
    return [msgspec.structs.asdict(one) for one in tenants_of(primary, now)[:MOST_TENANTS]]
