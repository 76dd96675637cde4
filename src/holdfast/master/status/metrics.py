"""The metrics of a master, in the families of Prometheus.

They are read when somebody asks; requests only add to numbers (`traffic.latencies`, `core.primary.object_counts`).
Names follow the conventions: base units, `_total` for counters, verbs in snake case. Figures of the cluster come from
the primary; a standby shows its own. Counters begin at 0 with each term of a primary, or with the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.core.catalogue.catalogue import HARD_PIN, LIVE, MASKED, SOFT_PIN, extents_of
from holdfast.core.nodes.restored_memory import unverified_objects
from holdfast.core.primary.object_counts import EvictionReason, ObjectCounts
from holdfast.core.primary.primary import Primary
from holdfast.core.state.state import State
from holdfast.core.tenants import tenants_of
from holdfast.dashboard.metric_families import (
    buckets_of,
    build_info,
    counter,
    counters,
    gauge,
    gauges,
    histogram,
    snake,
)
from holdfast.instant import Instant, now_ms
from holdfast.master.engine.engine import Engine
from holdfast.master.roles.master import Master
from holdfast.master.status.sessions import standing_of
from holdfast.messages.requests import Status

TENANT_GAUGES = {
    "used_bytes": "Memory of the tenant's objects.",
    "objects": "Objects of the tenant.",
    "guaranteed_bytes": "Memory that others cannot evict.",
    "limit_bytes": "Memory that the tenant cannot exceed; 0: no limit.",
    "leased_bytes": "Memory of the tenant under leases, at the last count.",
    "pinned_bytes": "Memory of the tenant's hard-pinned objects.",
    "clients": "Clients of the tenant that are connected.",
}


class MasterMetrics(Collector):
    """Every family is there in every role, so that a query finds it; most have no samples on a standby."""

    def __init__(self, master: Master, status: Callable[[], Status]) -> None:
        self._master = master
        self._status = status

    def collect(self) -> Iterator[Metric]:
        engine, now = self._master.server.engine, now_ms()
        yield build_info()
        yield from self._of_process()
        yield from self._of_status(self._status(), engine)
        yield from self._of_objects(engine, now)
        yield from self._of_log(engine)
        yield from self._of_nodes(engine, now)
        yield from self._restored()
        yield from self._tenants(engine, now)

    @property
    def _state(self) -> State:
        return (self._master.server.engine or self._master.standby).state

    def _of_process(self) -> Iterator[Metric]:
        """Requests, and what they wait for."""
        server = self._master.server
        asked = {snake(verb.__name__): count for verb, count in list(server.requests.items())}
        yield counters("requests", "Requests by verb.", "verb", asked)
        took = HistogramMetricFamily(
            "holdfast_request_duration_seconds", "From a request's arrival to its reply's departure.", labels=["verb"]
        )
        for verb, durations in list(server.latencies.by_verb.items()):
            took.add_metric([snake(verb.__name__)], buckets_of(durations), durations.total_ns / 1e9)
        yield took
        yield histogram("loop_lag_seconds", "By how much the master's loop was late.", server.loop_lag)
        backlog = server.traffic.backlog
        waiting = {"in": backlog.incoming, "out": backlog.outgoing}
        yield gauges("backlog_bytes", "Frames not yet whole, and replies not yet read.", "direction", waiting)
        yield gauge(
            "tasks_down", "Background tasks that failed and do not work again yet.", len(server.supervisor.down())
        )
        yield gauge("connections", "Open RPC connections.", len(server.connections))

    def _of_status(self, status: Status, engine: Engine | None) -> Iterator[Metric]:
        yield gauge("objects", "Objects stored.", status.objects)
        yield gauge("capacity_bytes", "Memory that nodes lend.", status.capacity_bytes)
        yield gauge("used_bytes", "Memory that objects take.", status.used_bytes)
        yield gauge("granted_bytes", "Memory granted to writers and not committed yet.", status.granted_bytes)
        yield gauge(
            "quarantined_bytes", "Memory waiting for a writer's word or a lease's end.", status.quarantined_bytes
        )
        yield gauge("free_bytes", "Memory that can be granted.", status.free_bytes)
        yield gauge("primary", "1 while this master is the primary.", int(status.role == "primary"))
        yield gauge("promotable", "1 while this master could take over.", int(status.promotable))
        fault = int(bool(status.identities_fault))
        yield gauge("identities_fault", "1 while its new file of identities cannot be used.", fault)
        yield gauge("epoch", "The master's epoch.", status.epoch)
        yield gauge("log_index", "Records in the log.", status.log_index)
        yield gauge("hidden_objects", "Objects evicted here that the catalogue still holds.", status.hidden)
        yield gauge(
            "renewal_delay_seconds", "From a renewal to when standbys can know of it.", status.renewal_delay_ms / 1000
        )
        yield counter("renewals", "Leases renewed that standbys were told of.", status.renewals)
        yield counter("renewal_writes", "Values of renewals written.", status.renewal_writes)
        yield counter("renewal_bytes", "Bytes of such values.", status.renewal_bytes)
        refused, ended = (engine.failures, engine.guard.failures) if engine is not None else ({}, {})
        yield counters("failures", "Requests refused, by error.", "code", refused)
        yield counters("upkeep_failures", "Steps of upkeep that a defect ended, by kind.", "kind", ended)

    def _of_objects(self, engine: Engine | None, now: Instant) -> Iterator[Metric]:
        counts = engine.primary.counts if engine is not None else ObjectCounts()
        yield counter("hits", "Keys that reads located; reads under a lease ask nobody.", counts.hits)
        yield counter("misses", "Keys that reads asked for in vain.", counts.misses)
        yield counter("hit_bytes", "Bytes of the objects that reads located.", counts.hit_bytes)
        yield counter("stored_objects", "Objects that puts stored.", counts.stored)
        yield counter("stored_bytes", "Bytes of the objects that puts stored.", counts.stored_bytes)
        evicted = {reason.value: counts.evicted[reason] for reason in EvictionReason}
        yield counters("evicted_objects", "Objects evicted, by reason.", "reason", evicted)
        sizes = {reason.value: counts.evicted_bytes[reason] for reason in EvictionReason}
        yield counters("evicted_bytes", "Bytes of such objects, by reason.", "reason", sizes)
        catalogue = self._state.catalogue
        lacking = len(catalogue.lacking) if engine is not None else 0
        yield gauge("lacking_objects", "Objects with fewer replicas in memory than their put asked for.", lacking)
        yield from self._kept(now if engine is not None else None)

    def _kept(self, now: Instant | None) -> Iterator[Metric]:
        """Leases and pins, in one pass over the columns: 4 ms for a million objects. Only the primary knows leases."""
        catalogue = self._state.catalogue
        flags = catalogue.flags[: catalogue.top]
        live = flags & (LIVE | MASKED) == LIVE
        masks = {
            "leased": live & (catalogue.lease_until[: catalogue.top] > now) if now is not None else live & False,
            "soft_pinned": live & (flags & SOFT_PIN != 0),
            "hard_pinned": live & (flags & HARD_PIN != 0),
        }
        texts = {"leased": "under a lease", "soft_pinned": "with a soft pin", "hard_pinned": "with a hard pin"}
        for name, mask in masks.items():
            slots = np.flatnonzero(mask)
            yield gauge(f"{name}_objects", f"Objects {texts[name]}.", len(slots))
            size = int(extents_of(catalogue.sizes[slots]).sum())
            yield gauge(f"{name}_bytes", f"Memory of one replica of each object {texts[name]}.", size)

    def _of_log(self, engine: Engine | None) -> Iterator[Metric]:
        master, figures = self._master, self._master.figures
        yield histogram("log_append_duration_seconds", "Until an append to the log was durable.", figures.log.appends)
        yield counter("log_append_bytes", "Bytes appended to the log.", figures.log.bytes)
        errors = {"announce": 0, "events": 0, "follow": 0, "standings": 0} | figures.coordination_errors
        yield counters(
            "coordination_errors",
            "Calls of coordination that failed, by what they were for.",
            "operation",
            errors | {"append": figures.log.errors},
        )
        yield histogram("promotion_duration_seconds", "From winning a term to serving under it.", figures.promotions)
        log = engine.log if engine is not None else None
        yield gauge("log_pending_bytes", "Records that are not durable yet.", log.bytes if log is not None else 0)
        queues = {
            "log": log.waiting if log is not None else 0,
            "room": engine.parked if engine is not None else 0,
            "turn": master.server.traffic.turns.waiting,
        }
        yield gauges(
            "queue_length",
            "Replies that wait for the log, puts for room, connections for their turn.",
            "queue",
            queues,
        )
        yield gauge("parked_puts", "Puts waiting for room.", queues["room"])
        succession = engine.succession if engine is not None else None
        lag, waiting = (succession.lag, succession.waiting) if succession is not None else (0, 0)
        has_successor = int(succession is not None and bool(succession.name))
        yield gauge("successor", "1 while a standby holds the tail of this primary's log.", has_successor)
        yield gauge("successor_lag_records", "Records that it does not hold yet.", lag)
        yield gauge("successor_waiting_replies", "Replies that wait for its word.", waiting)
        yield gauge(
            "held_tail_records", "Records that this standby holds until they are in the log.", master.held_records
        )
        yield gauge("standby_lag_batches", "Batches of the log that this standby has not applied.", master.lag_batches)
        written_at = master.snapshots.newest_at(self._state.log_id) if master.snapshots is not None else None
        snapshot = GaugeMetricFamily(
            "holdfast_snapshot_timestamp_seconds", "When this master's newest snapshot was written; none: no sample."
        )
        if written_at is not None:
            snapshot.add_metric([], written_at)
        yield snapshot

    def _of_nodes(self, engine: Engine | None, now: Instant) -> Iterator[Metric]:
        primary = engine.primary if engine is not None else None
        members = list(primary.members.values()) if primary is not None else []
        live = sum(primary.is_live(member, now) for member in members) if primary is not None else 0
        yield gauge("nodes", "Nodes that the primary is connected to; 0 at a standby.", live)
        standings = Counter(standing_of(one, now) for one in primary.sessions) if primary is not None else Counter()
        both = {standing: standings[standing] for standing in ("safe", "jeopardy")}
        yield gauges("sessions", "Sessions by standing.", "standing", both)
        server, plan = self._master.server, self._master.plan
        # Of a node not before its first report.
        told = {member.name: member.figures["insecure"] for member in members if "insecure" in member.figures}
        exposed = {server.name: len(plan.insecure)} | told
        yield gauges("insecure", "Listeners open to strangers (--insecure).", "process", exposed)
        yield self._memory_by_node(primary)
        lost = CounterMetricFamily("holdfast_lost_files", "Disk files found gone or spoiled.", labels=["node", "seen"])
        for (node, damage), count in list(primary.lost_files.items()) if primary is not None else ():
            lost.add_metric([node, damage.name.lower()], count)
        yield lost

    def _memory_by_node(self, primary: Primary | None) -> Metric:
        found = GaugeMetricFamily(
            "holdfast_node_memory_bytes", "Memory that a node lends, by use; none at a standby.", labels=["node", "use"]
        )
        if primary is None:
            return found
        state = primary.state
        uses: dict[str, Counter[str]] = {}
        nodes = {segment.handle: segment.name.node for segment in state.memory_segments()}
        for segment in state.memory_segments():
            of_node = uses.setdefault(segment.name.node, Counter(granted=0, quarantined=0))
            free = primary.allocators[segment.handle].free_bytes
            of_node.update(free=free, used=segment.usable_bytes - free)
        for kind, segment_handle, size in _reserved(state):
            if segment_handle in nodes:
                uses[nodes[segment_handle]].update({kind: size, "used": -size})
        for node, of_node in uses.items():
            for use, size in of_node.items():
                found.add_metric([node, use], size)
        return found

    def _tenants(self, engine: Engine | None, now: Instant) -> Iterator[Metric]:
        """Figures of each tenant, from the primary; none without tenants."""
        if engine is None or not engine.state.tenants:
            return
        found = tenants_of(engine.primary, now)
        for field, text in TENANT_GAUGES.items():
            yield gauges(f"tenant_{field}", text, "tenant", {one.name: getattr(one, field) for one in found})
        evicted = {tenant.name: tenant.evicted for tenant in found}
        yield counters("tenant_evicted_objects", "Evicted, by tenant.", "tenant", evicted)
        refused = {tenant.name: tenant.refused for tenant in found}
        yield counters("tenant_refused_requests", "Refused by a quota, by tenant.", "tenant", refused)

    def _restored(self) -> Iterator[Metric]:
        """Figures of a restored history; zeros otherwise."""
        state = self._state
        origin = state.origin
        yield gauge("restored_objects", "Objects a restored history began with.", origin.objects)
        yield gauge("unverified_objects", "Restored and not compared yet.", unverified_objects(state))
        dropped = {"mismatch": origin.mismatched, "memory_lost": origin.lost, "file_lost": origin.lost_files}
        yield gauges("restore_dropped_objects", "Restored, then given up.", "cause", dropped)


def _reserved(state: State) -> Iterator[tuple[str, int, int]]:
    """What is neither an object's nor free: (use, segment, size)."""
    for grant in state.grants.values():
        for one in grant.ranges:
            yield "granted", one.segment, grant.left_bytes
    for entry in state.quarantine.values():
        yield "quarantined", entry.segment, entry.size_bytes
