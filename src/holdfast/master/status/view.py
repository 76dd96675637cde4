"""A master's view of itself: the same facts for the RPC verbs, HTTP and the metrics."""

from __future__ import annotations

import asyncio
import heapq
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector

from holdfast import __version__
from holdfast.core.catalogue.digest import digest
from holdfast.core.objects.reads import explain, list_keys, stat_of
from holdfast.core.state.apply import ranges_of
from holdfast.core.state.state import State
from holdfast.dashboard.live import overview_of_tenant
from holdfast.errors import HoldfastError, Refused
from holdfast.ids import COPIES, is_reserved, namespace_of
from holdfast.instant import now_ms
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.waiting_room import Answer
from holdfast.master.events import REMEMBERED_EVENTS
from holdfast.master.renewals import RenewalFollower, RenewalWriter
from holdfast.master.restoration import Restoration
from holdfast.master.roles.master import Master
from holdfast.master.status.clients import Clients
from holdfast.master.status.memory_map import MemorySurvey
from holdfast.master.status.metrics import MasterMetrics
from holdfast.master.status.overview import overview_of
from holdfast.master.status.sessions import by_node, node_info, session_facts
from holdfast.master.status.standings import Standings
from holdfast.master.status.tenants import TenantDesk
from holdfast.master.status.timeline import Timeline
from holdfast.messages.of_masters import (
    EventInfo,
    EventList,
    FetchSnapshot,
    GetOverview,
    HandOver,
    HoldTail,
    ListEvents,
    Overview,
    TakeSnapshot,
)
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


class MasterView:
    def __init__(self, master: Master) -> None:
        self.master = master
        self._started = now_ms()
        self._digest: tuple[Callable[[], object], int, str] = (lambda: None, -1, "")
        """The last digest: a weak reference to its catalogue, its index, and the digest."""
        self.registry = CollectorRegistry()
        self.registry.register(MasterMetrics(master, partial(self.status_message, with_digest=False)))
        ProcessCollector(registry=self.registry)
        master.server.views[GetStatus] = lambda request, answer: answer(self.status_message())
        master.server.views[ListNodes] = lambda request, answer: answer(self.nodes_message())
        master.server.views[GetOverview] = lambda request, answer: answer(self._overview_message(request.tenant))
        master.server.views[ListEvents] = lambda request, answer: answer(self._events_message(request))
        master.server.views[FetchSnapshot] = self._fetch_snapshot
        master.server.views[HoldTail] = self._hold_tail
        master.server.views[HandOver] = self._hand_over
        master.server.views[TakeSnapshot] = self._take_snapshot
        self._tasks: set[asyncio.Task[None]] = set()
        self.restoration = Restoration(master)
        self._clients = Clients(master.server)
        self.standings = Standings(master)
        self.timeline = Timeline(master)
        self._tenants = TenantDesk(master.server)

    def _fetch_snapshot(self, request: FetchSnapshot, answer: Answer) -> None:
        log_id = request.log_id or self.state.log_id
        answer(self.master.store.piece(log_id, request.batch, request.offset))

    def _hold_tail(self, request: HoldTail, answer: Answer) -> None:
        try:
            answer(self.master.hold_tail(request))
        except HoldfastError as error:
            answer(failed(error))

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
                answer(Done(await self.master.snapshot()))
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

    def status_message(self, with_digest: bool = True) -> Status:
        """Without the digest it makes no pass over the primary's catalogue."""
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
            cluster=master.plan.cluster,
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
            digest=self._current_digest() if with_digest else "",
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
            log_version=engine.primary.log_version if engine is not None else state.log_version,
            log_held_back_by=master.announcement.versions.held_back_by,
            **self._succession(engine),
            **self._renewals(),
        )

    def _succession(self, engine: Engine | None) -> dict[str, Any]:
        """Who holds the tail of the primary's log, and what this standby holds of it."""
        succession = engine.succession if engine is not None else None
        named = succession.name if succession is not None else ""
        return {
            "successor": named if engine is not None else self.state.successor.name,
            "successor_lag": succession.lag if succession is not None else 0,
            "held_records": self.master.held_records,
        }

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
            {
                "number": event.number,
                "age_ms": now - event.at,
                "kind": event.kind,
                "subject": event.subject,
                "text": event.text,
                "master": event.master,
            }
            for event in self.master.events.after(after, limit)
        ]

    def overview(self) -> dict[str, Any]:
        return overview_of(self.master, self.standings.all(), self._started)

    def _overview_message(self, tenant: str | None) -> Overview:
        found = self.overview()
        return Overview(msgspec.json.encode(found if tenant is None else overview_of_tenant(found, tenant)))

    def _events_message(self, request: ListEvents) -> EventList:
        found = self.master.events.after(request.after, max(1, min(request.limit, REMEMBERED_EVENTS)))
        return EventList(
            [EventInfo(one.number, one.date_ms, one.kind, one.subject, one.text, one.master) for one in found]
        )

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
