"""A master's view of itself: the same facts for the RPC verbs, HTTP and the metrics."""

from __future__ import annotations

import asyncio
import heapq
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast import __version__
from holdfast.core.catalogue.digest import digest
from holdfast.core.nodes.restored_memory import unverified_objects
from holdfast.core.objects.reads import explain, list_keys, stat_of
from holdfast.core.state.apply import ranges_of
from holdfast.core.state.state import State
from holdfast.core.tenants import tenants_of
from holdfast.errors import HoldfastError, Refused
from holdfast.ids import COPIES, is_reserved, namespace_of
from holdfast.instant import now_ms
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.waiting_room import Answer
from holdfast.master.renewals import RenewalFollower, RenewalWriter
from holdfast.master.restoration import Restoration
from holdfast.master.roles.master import Master
from holdfast.master.status.clients import Clients
from holdfast.master.status.memory_map import MemorySurvey
from holdfast.master.status.overview import overview_of
from holdfast.master.status.sessions import by_node, node_info, session_facts, standing_of
from holdfast.master.status.standings import Standings
from holdfast.master.status.tenants import TenantDesk
from holdfast.messages.of_masters import FetchSnapshot, HandOver, TakeSnapshot
from holdfast.messages.requests import (
    Done,
    Explain,
    Explanations,
    GetStatus,
    KeyList,
    ListKeys,
    ListNodes,
    NodeList,
    ObjectStat,
    Status,
)
from holdfast.messages.shapes import Message
from holdfast.replication.snapshot_store import SnapshotFailed
from holdfast.wire.codec import failed

_TENANT_GAUGES = {
    "used_bytes": "Memory of the tenant's objects.",
    "objects": "Objects of the tenant.",
    "guaranteed_bytes": "Memory that others cannot evict.",
    "limit_bytes": "Memory that the tenant cannot exceed; 0: no limit.",
    "leased_bytes": "Memory of the tenant under leases, at the last count.",
    "pinned_bytes": "Memory of the tenant's hard-pinned objects.",
    "clients": "Clients of the tenant that are connected.",
}


class MasterView:
    def __init__(self, master: Master) -> None:
        self.master = master
        self._started = now_ms()
        self._digest: tuple[Callable[[], object], int, str] = (lambda: None, -1, "")
        """The last digest: a weak reference to its catalogue, its index, and the digest."""
        self.registry = CollectorRegistry()
        self.registry.register(Figures(self))
        master.server.views[GetStatus] = lambda request, answer: answer(self.status_message())
        master.server.views[ListNodes] = lambda request, answer: answer(self.nodes_message())
        master.server.views[FetchSnapshot] = self._fetch_snapshot
        master.server.views[HandOver] = self._hand_over
        master.server.views[TakeSnapshot] = self._take_snapshot
        self._tasks: set[asyncio.Task[None]] = set()
        self.restoration = Restoration(master)
        self._clients = Clients(master.server)
        self.standings = Standings(master)
        self._tenants = TenantDesk(master.server)

    def _fetch_snapshot(self, request: FetchSnapshot, answer: Answer) -> None:
        log_id = request.log_id or self.state.log_id
        answer(self.master.store.piece(log_id, request.batch, request.offset))

    def _hand_over(self, request: HandOver, answer: Answer) -> None:
        master = self.master
        if master.engine is None:
            answer(failed(master.server.not_leading()))
        elif master.coordination is None:
            answer(failed(Refused("this master is alone: there is nobody to hand over to; nothing was changed")))
        else:
            master.hand_over()
            answer(Done(1))

    def _take_snapshot(self, request: TakeSnapshot, answer: Answer) -> None:
        events, name = self.master.events, self.master.server.name

        async def take() -> None:
            try:
                batch = await self.master.snapshot()
                events.add("snapshot", name, f"written as asked, of the log through batch {batch:,}", now_ms())
                answer(Done(batch))
            except (HoldfastError, OSError) as error:
                events.add("snapshot_failed", name, str(error), now_ms())
                answer(failed(error if isinstance(error, HoldfastError) else SnapshotFailed(str(error))))

        task = asyncio.create_task(take())
        self.master.supervisor.watch("a snapshot that was asked for", task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def state(self) -> State:
        """The primary's state, or the standby's copy."""
        engine = self.master.server.engine
        return engine.state if engine is not None else self.master.standby.state

    def _current_digest(self) -> str:
        state = self.state
        known, index, found = self._digest
        # Not compared by id(): a dropped catalogue may have had the same id, at the same index, with other records.
        if known() is not state.catalogue or index != state.index:
            found = digest(state.catalogue)
            self._digest = (weakref.ref(state.catalogue), state.index, found)
        return found

    def status_message(self) -> Status:
        state, master = self.state, self.master
        engine = master.server.engine
        memory = {segment.handle: segment for segment in state.memory_segments()}
        capacity = sum(segment.usable_bytes for segment in memory.values())
        granted = sum(g.left_bytes for g in state.grants.values() for x in g.ranges if x.segment in memory)
        quarantined = sum(one.size_bytes for one in state.quarantine.values() if one.segment in memory)
        free = engine.primary.free_bytes if engine is not None else 0
        used = capacity - free - granted - quarantined if engine is not None else occupied_bytes(state)
        promotable, reason = master.promotable()
        figures = master.term_figures
        return Status(
            cluster=state.cluster or master.plan.cluster,
            name=master.server.name,
            role=master.role,
            epoch=state.epoch,
            log_index=master.log_index,
            applied_index=state.index,
            durable_index=engine.durable_index if engine is not None else state.index,
            promotable=promotable,
            promotable_reason=reason,
            objects=state.objects,
            used_bytes=used,
            capacity_bytes=capacity,
            digest=self._current_digest(),
            leader=master.leader_address,
            granted_bytes=granted,
            quarantined_bytes=quarantined,
            free_bytes=free,
            nodes=len({segment.name.node for segment in state.segments.values()}),
            clients=len(master.server.connections),
            uptime_ms=now_ms() - self._started,
            version=__version__,
            promotion_ms=figures.promotion_ms,
            log_bytes=figures.log_bytes,
            log_batches=figures.log_batches,
            masters=master.announcement.known,
            evicted=engine.evicted if engine is not None else 0,
            hidden=len(state.mask),
            waits=master.histories.waits if master.histories is not None else "",
            log_id=f"{state.log_id:016x}",
            insecure=list(master.plan.insecure),
            identities_fault=master.server.identities.fault,
            **self._renewals(),
        )

    def _renewals(self) -> dict[str, Any]:
        """Figures of the renewals beside the log, or, if renewals are records, how long a record takes."""
        renewals, figures = self.master.renewals, self.master.term_figures
        if isinstance(renewals, RenewalWriter):
            sender = renewals.sender
            return {
                "renewal_writes": sender.written,
                "renewal_bytes": sender.size_bytes,
                "renewals": sender.renewals,
                "renewal_delay_ms": round(sender.delay_ms, 1),
            }
        if isinstance(renewals, RenewalFollower):
            return {"renewals": renewals.receiver.renewals}
        if self.master.plan.rules.lease_sync == "every":
            return {"renewal_delay_ms": round(figures.append_ms, 1)}
        return {}

    def nodes_message(self) -> NodeList:
        engine = self.master.engine
        if engine is None:
            return NodeList([])
        now, own = now_ms(), by_node(engine.state)
        members = engine.primary.members.values()
        return NodeList([node_info(engine.primary, member, own.get(member.name, []), now) for member in members])

    def sessions(self, after: str, limit: int) -> list[dict[str, Any]]:
        engine = self.master.engine
        if engine is None:
            return []
        now = now_ms()
        later = [session for session in engine.primary.sessions if session.name > after]
        first = heapq.nsmallest(limit, later, key=lambda session: session.name)
        return [session_facts(engine.primary, session, now) for session in first]

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        now = now_ms()
        return [
            {"number": e.number, "age_ms": now - e.at, "kind": e.kind, "subject": e.subject, "text": e.text}
            for e in self.master.events.after(after, limit)
        ]

    def overview(self) -> dict[str, Any]:
        return overview_of(self.master, self.standings.all(), self._started)

    def survey_memory(self) -> MemorySurvey:
        return MemorySurvey(self.state, now_ms())

    def explain(self, key: str, tenant: str) -> dict[str, Any]:
        engine = self.master.engine
        namespace = self._namespace(tenant, key)
        if engine is None or namespace is None:
            return {"key": key, "stat": None, "reasons": [self._why_unknown(engine)]}
        found = explain(engine.primary, Explain([namespace + key]), 0, now_ms()).reply
        assert isinstance(found, Explanations)
        [stat], [reasons] = found.stats, found.reasons
        return {"key": key, "stat": _stat_fields(stat, namespace) if stat is not None else None, "reasons": reasons}

    def _why_unknown(self, engine: Engine | None) -> str:
        if engine is not None:
            return "no object can have this key"
        return f"this master is a standby, and only the primary can say: {self.master.leader_address or 'nobody leads'}"

    def order(self, request: Message, answer: Answer) -> None:
        """Carry out an operator's request, as if it had come by RPC."""
        view = self.master.server.views.get(type(request))
        engine = self.master.engine
        if view is not None:
            view(request, answer)
        elif engine is None:
            answer(failed(self.master.server.not_leading()))
        else:
            reply, after = engine.handle(request, COPIES, 0, now_ms())
            assert isinstance(reply, Message), "an operator's request is answered at once"
            engine.when_durable(after, lambda: answer(reply)) if after else answer(reply)

    def list_clients(self, tenant: str | None, answer: Answer) -> None:
        self._clients.list(tenant, answer)

    def end_client(self, who: str, answer: Answer) -> None:
        self._clients.end(who, answer)

    def list_tenants(self, tenant: str | None, answer: Answer) -> None:
        self._tenants.list(tenant, answer)

    def change_tenant(self, name: str, quotas: dict[str, int | float | None], answer: Answer) -> None:
        self._tenants.change(name, quotas, answer)

    def remove_tenant(self, name: str, answer: Answer) -> None:
        self._tenants.remove(name, answer)

    def status(self) -> dict[str, Any]:
        return _fields(self.status_message())

    def nodes(self) -> list[dict[str, Any]]:
        return [_fields(node) for node in self.nodes_message().nodes]

    def keys(self, cursor: int, tenant: str) -> tuple[list[str], int]:
        """Some of the tenant's keys, and the cursor for the next ones; 0 when all were seen."""
        engine = self.master.engine
        namespace = self._namespace(tenant, "")
        if engine is None or namespace is None:
            return [], 0
        reply = list_keys(engine.primary, ListKeys(namespace, cursor), 0, now_ms()).reply
        assert isinstance(reply, KeyList)
        return [key[len(namespace) :] for key in reply.keys], reply.cursor

    def objects(self, prefix: str, cursor: int, limit: int, tenant: str) -> dict[str, Any]:
        """A page of the tenant's objects, and the cursor for the next page; 0 when all were seen."""
        engine = self.master.engine
        namespace = self._namespace(tenant, prefix)
        if engine is None or namespace is None:
            return {"objects": [], "cursor": 0}
        primary = engine.primary
        now = now_ms()
        reply = list_keys(primary, ListKeys(namespace + prefix, cursor), 0, now).reply
        assert isinstance(reply, KeyList)
        found = []
        keys = reply.keys[:limit]
        for key in keys:
            known = stat_of(primary, key, now)
            if known is not None:
                found.append(_stat_fields(known, namespace))
        after = reply.cursor
        if len(reply.keys) > limit:
            after = primary.state.catalogue.by_key.slot_of(keys[-1]) + 1
        return {"objects": found, "cursor": after}

    def stat(self, key: str, tenant: str) -> dict[str, Any] | None:
        engine = self.master.engine
        namespace = self._namespace(tenant, key)
        if engine is None or namespace is None:
            return None
        known = stat_of(engine.primary, namespace + key, now_ms())
        return _stat_fields(known, namespace) if known is not None else None

    def _namespace(self, tenant: str, key: str) -> str | None:
        """The prefix of the tenant's keys. None if it has no keys, or if nobody may name this one."""
        number = self.state.tenants.number_of(tenant)
        return None if number is None or is_reserved(key) else namespace_of(number)

    def ready(self) -> tuple[bool, str]:
        if self.master.server.stopping:
            return False, "the master is stopping"
        if self.master.engine is None:
            promotable, reason = self.master.promotable()
            return promotable, f"standby: {reason}"
        for name, why in self.master.supervisor.down().items():
            return False, f"serving, but its background task {name!r} is down: {why}"
        if not self.state.segments:
            return True, "serving; no node lends memory yet"
        return True, "serving"


def occupied_bytes(state: State) -> int:
    """The bytes that the objects take, for a role that does not track free space."""
    live = state.catalogue.live()
    if not len(live):
        return 0
    memory = {segment.handle for segment in state.memory_segments()}
    return sum(int(lengths.sum()) for handle, _, lengths in ranges_of(state, live) if handle in memory)


def _fields(message: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(message)


def _stat_fields(stat: ObjectStat, namespace: str) -> dict[str, Any]:
    return _fields(stat) | {
        "key": stat.key[len(namespace) :],
        "replicas": [_fields(replica) for replica in stat.replicas],
    }


def _lost_files(engine: Engine | None) -> Metric:
    lost = CounterMetricFamily("holdfast_lost_files", "Disk files found gone or spoiled.", labels=["node", "seen"])
    for (node, damage), count in list(engine.primary.lost_files.items()) if engine is not None else ():
        lost.add_metric([node, damage.name.lower()], count)
    return lost


class Figures(Collector):
    """Metrics read at each scrape, so that counting costs the hot path only an addition."""

    def __init__(self, view: MasterView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        server = self._view.master.server
        engine = server.engine
        status = self._view.status_message()
        down = len(server.supervisor.down())
        gauges = {
            "objects": ("Objects stored.", status.objects),
            "soft_pinned_objects": ("Objects with a soft pin.", len(self._view.state.catalogue.soft_pin_until)),
            "capacity_bytes": ("Memory that nodes lend.", status.capacity_bytes),
            "used_bytes": ("Memory that objects take.", status.used_bytes),
            "granted_bytes": ("Memory granted to writers and not committed yet.", status.granted_bytes),
            "quarantined_bytes": ("Memory waiting for a writer's word or a lease's end.", status.quarantined_bytes),
            "free_bytes": ("Memory that can be granted.", status.free_bytes),
            "nodes": ("Nodes registered.", status.nodes),
            "connections": ("Open RPC connections.", status.clients),
            "lacking_objects": (
                "Objects with fewer replicas in memory than their put asked for.",
                len(engine.state.catalogue.lacking) if engine is not None else 0,
            ),
            "parked_puts": ("Puts waiting for room.", engine.parked if engine is not None else 0),
            "primary": ("1 while this master is the primary.", int(status.role == "primary")),
            "promotable": ("1 while this master could take over.", int(status.promotable)),
            "tasks_down": ("Background tasks that failed and do not work again yet.", down),
            "identities_fault": (
                "1 while its new file of identities cannot be used.",
                int(bool(status.identities_fault)),
            ),
            "epoch": ("The master's epoch.", status.epoch),
            "log_index": ("Records in the log.", status.log_index),
            "hidden_objects": ("Objects evicted here that the catalogue still holds.", status.hidden),
            "renewal_delay_ms": ("From a renewal to when standbys can know of it.", status.renewal_delay_ms),
        }
        yield self._sessions()
        yield self._insecure()
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"holdfast_{name}", text, value)
        yield CounterMetricFamily("holdfast_evicted_objects", "Objects evicted.", status.evicted)
        yield CounterMetricFamily("holdfast_renewals", "Leases renewed that standbys were told of.", status.renewals)
        yield CounterMetricFamily("holdfast_renewal_writes", "Values of renewals written.", status.renewal_writes)
        yield CounterMetricFamily("holdfast_renewal_bytes", "Bytes of such values.", status.renewal_bytes)
        yield _lost_files(engine)
        asked = {kind.__name__: count for kind, count in list(server.requests.items())}
        yield _counters("requests", "Requests by verb.", "verb", asked)
        refused, ended = (engine.failures, engine.guard.failures) if engine is not None else ({}, {})
        yield _counters("failures", "Requests refused, by error.", "code", refused)
        yield _counters("upkeep_failures", "Steps of upkeep that a defect ended, by kind.", "kind", ended)
        yield from self._restored()
        yield from self._tenants()

    def _sessions(self) -> Metric:
        engine = self._view.master.server.engine
        standings = Counter(standing_of(one, now_ms()) for one in engine.primary.sessions) if engine is not None else {}
        sessions = GaugeMetricFamily("holdfast_sessions", "Sessions by standing.", labels=["standing"])
        for standing in ("safe", "jeopardy"):
            sessions.add_metric([standing], standings.get(standing, 0))
        return sessions

    def _insecure(self) -> Metric:
        """Listeners that strangers can reach: this master's, and those that nodes report."""
        master = self._view.master
        found = GaugeMetricFamily("holdfast_insecure", "Listeners open to strangers (--insecure).", labels=["process"])
        found.add_metric([master.server.name], len(master.plan.insecure))
        for member in list(master.engine.primary.members.values()) if master.engine is not None else ():
            if "insecure" in member.figures:  # Not before its first report.
                found.add_metric([member.name], member.figures["insecure"])
        return found

    def _tenants(self) -> Iterator[Metric]:
        """Figures of each tenant, from the primary; none without tenants."""
        engine = self._view.master.server.engine
        if engine is None or not engine.state.tenants:
            return
        found = tenants_of(engine.primary, now_ms())
        for field, text in _TENANT_GAUGES.items():
            gauge = GaugeMetricFamily(f"holdfast_tenant_{field}", text, labels=["tenant"])
            for tenant in found:
                gauge.add_metric([tenant.name], getattr(tenant, field))
            yield gauge
        yield _counters("tenant_evicted_objects", "Evicted, by tenant.", "tenant", {t.name: t.evicted for t in found})
        refused = {tenant.name: tenant.refused for tenant in found}
        yield _counters("tenant_refused_requests", "Refused by a quota, by tenant.", "tenant", refused)

    def _restored(self) -> Iterator[Metric]:
        """Figures of a restored history; zeros otherwise."""
        state = self._view.state
        origin = state.origin
        yield GaugeMetricFamily("holdfast_restored_objects", "Objects a restored history began with.", origin.objects)
        unverified = unverified_objects(state)
        yield GaugeMetricFamily("holdfast_unverified_objects", "Restored and not compared yet.", unverified)
        dropped = GaugeMetricFamily("holdfast_restore_dropped_objects", "Restored, then given up.", labels=["cause"])
        dropped.add_metric(["mismatch"], origin.mismatched)
        dropped.add_metric(["memory_lost"], origin.lost)
        dropped.add_metric(["file_lost"], origin.lost_files)
        yield dropped


def _counters(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    found = CounterMetricFamily(f"holdfast_{name}", text, labels=[label])
    for value, count in list(counts.items()):
        found.add_metric([value], count)
    return found
