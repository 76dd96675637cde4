"""What a master shows of itself: the same facts for the RPC verbs, HTTP and the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast import __version__
from holdfast.core.digest import digest
from holdfast.core.reads import list_keys, stat_of
from holdfast.instant import now_ms
from holdfast.master.server import RpcServer
from holdfast.messages.requests import GetStatus, KeyList, ListKeys, ListNodes, NodeInfo, NodeList, Status


class MasterView:
    def __init__(self, server: RpcServer, address: str) -> None:
        self._server = server
        self._address = address
        self._started = now_ms()
        self._digest: tuple[int, str] = (-1, "")
        self.registry = CollectorRegistry()
        self.registry.register(Figures(self))
        server.views[GetStatus] = self.status_message
        server.views[ListNodes] = self.nodes_message

    @property
    def server(self) -> RpcServer:
        return self._server

    def _current_digest(self) -> str:
        state = self._server.engine.state
        if self._digest[0] != state.index:
            self._digest = (state.index, digest(state.catalogue))
        return self._digest[1]

    def status_message(self) -> Status:
        primary = self._server.engine.primary
        state = primary.state
        granted = sum(grant.left_bytes * len(grant.ranges) for grant in state.grants.values())
        quarantined = sum(held.size_bytes for held in state.quarantine.values())
        return Status(
            cluster=state.cluster,
            name=self._server.name,
            role="primary",
            epoch=state.epoch,
            log_index=state.index,
            applied_index=state.index,
            durable_index=state.index,
            promotable=False,
            promotable_reason="it is the primary",
            objects=state.catalogue.count,
            used_bytes=primary.capacity_bytes - primary.free_bytes - granted - quarantined,
            capacity_bytes=primary.capacity_bytes,
            digest=self._current_digest(),
            leader=self._address,
            granted_bytes=granted,
            quarantined_bytes=quarantined,
            free_bytes=primary.free_bytes,
            nodes=len(primary.members),
            clients=len(self._server.connections),
            uptime_ms=now_ms() - self._started,
            version=__version__,
        )

    def nodes_message(self) -> NodeList:
        primary = self._server.engine.primary
        now = now_ms()
        found = []
        for member in primary.members.values():
            segments = [s for s in primary.state.segments.values() if s.name.node == member.name]
            found.append(
                NodeInfo(
                    name=member.name,
                    boot=f"{member.boot:016x}",
                    available=primary.is_live(member, now),
                    silent_ms=max(0, now - member.last_heard),
                    data_address=segments[0].data_address if segments else "",
                    host=segments[0].host if segments else "",
                    segments=len(segments),
                    capacity_bytes=sum(s.size_bytes for s in segments),
                    used_bytes=sum(primary.allocators[s.handle].used_bytes for s in segments),
                )
            )
        return NodeList(found)

    def status(self) -> dict[str, Any]:
        return _fields(self.status_message())

    def nodes(self) -> list[dict[str, Any]]:
        return [_fields(node) for node in self.nodes_message().nodes]

    def objects(self, prefix: str, cursor: int, limit: int) -> dict[str, Any]:
        """A page of objects; the cursor goes on where it stopped, 0 when all were seen."""
        primary = self._server.engine.primary
        now = now_ms()
        reply, _ = list_keys(primary, ListKeys(prefix, cursor), 0, now)
        assert isinstance(reply, KeyList)
        found = []
        keys = reply.keys[:limit]
        for key in keys:
            known = stat_of(primary, key, now)
            if known is not None:
                found.append(_fields(known) | {"replicas": [_fields(replica) for replica in known.replicas]})
        after = reply.cursor
        if len(reply.keys) > limit:
            after = primary.state.catalogue.by_key.slot_of(keys[-1]) + 1
        return {"objects": found, "cursor": after}

    def ready(self) -> tuple[bool, str]:
        if self._server.stopping:
            return False, "the master is stopping"
        if not self._server.engine.state.segments:
            return True, "serving; no node lends memory yet"
        return True, "serving"


def _fields(message: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(message)


class Figures(Collector):
    """Read at each scrape, so that counting costs the hot path nothing but an addition."""

    def __init__(self, view: MasterView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        server = self._view.server
        engine = server.engine
        status = self._view.status_message()
        gauges = {
            "objects": ("Objects stored.", status.objects),
            "capacity_bytes": ("Memory that nodes lend.", status.capacity_bytes),
            "used_bytes": ("Memory that objects take.", status.used_bytes),
            "granted_bytes": ("Memory granted to writers and not committed yet.", status.granted_bytes),
            "quarantined_bytes": ("Memory waiting for a writer's word or a lease's end.", status.quarantined_bytes),
            "free_bytes": ("Memory that can be granted.", status.free_bytes),
            "nodes": ("Nodes registered.", status.nodes),
            "connections": ("Open RPC connections.", status.clients),
            "parked_puts": ("Puts waiting for room.", engine.parked),
            "epoch": ("The master's epoch.", status.epoch),
            "log_index": ("Records in the log.", status.log_index),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"holdfast_{name}", text, value)
        yield CounterMetricFamily("holdfast_evicted_objects", "Objects evicted.", engine.evicted)
        asked = CounterMetricFamily("holdfast_requests", "Requests by verb.", labels=["verb"])
        for kind, count in list(server.requests.items()):
            asked.add_metric([kind.__name__], count)
        yield asked
        refused = CounterMetricFamily("holdfast_failures", "Requests refused, by error.", labels=["code"])
        for code, count in list(engine.failures.items()):
            refused.add_metric([code], count)
        yield refused
