"""The metrics of a node, in the families of Prometheus, and its probes (ADR 58).

They are read when somebody asks, in the HTTP server's thread; the node's own threads only add to numbers. Bytes that
clients move through mapped memory pass no code of the node, so that it counts attachments instead; nobody counts those
bytes yet. How objects, grants and free space share the memory is the primary's to tell
(`holdfast_node_memory_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.dashboard.metric_families import build_info, counter, counters, gauge, gauges
from holdfast.node.node import Node
from holdfast.session.follower import Happening
from holdfast.session.lease import Standing

T = TypeVar("T")
HAPPENINGS = (
    Happening.OPENED,
    Happening.JEOPARDY,
    Happening.SAFE_AGAIN,
    Happening.EXPIRED,
    Happening.MASTER_CHANGED,
)


class NodeView:
    """A node as its HTTP server shows it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.registry = CollectorRegistry()
        self.registry.register(NodeMetrics(node))
        ProcessCollector(registry=self.registry)

    def ready(self) -> tuple[bool, str]:
        return self._node.ready()


class NodeMetrics(Collector):
    """Every family is there from the start, so that a query finds it, also without a disk."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        yield build_info()
        yield from self._of_session()
        yield from self._of_memory()
        yield from self._of_orders()
        yield from self._of_disk()

    def _of_session(self) -> Iterator[Metric]:
        life, supervisor = self._node.session.life, self._node.supervisor
        ready, _ = self._node.ready()
        yield gauge("node_ready", "1 while clients of the cluster find bytes here.", int(ready))
        standing = life.follower.standing()
        standings = {one.value: int(one is standing) for one in Standing}
        yield gauges("node_session", "1 for how the session stands; expired: there is none.", "standing", standings)
        yield gauge("node_epoch", "The epoch of the primary that the node follows.", life.follower.epoch)
        yield counter("node_session_renewals", "Keepalives that were answered.", life.follower.renewals)
        happened = {one.value: life.happenings[one] for one in HAPPENINGS}
        yield counters("node_session_events", "What happened to the node's sessions.", "event", happened)
        yield counter("node_voided_memory", "Times that the memory was replaced: no master knew it.", life.voided)
        yield gauge(
            "node_tasks_down", "Background threads that failed and do not work again yet.", len(supervisor.down())
        )

    def _of_memory(self) -> Iterator[Metric]:
        node = self._node
        segments = {str(number): size for number, size in enumerate(node.sizes)}
        yield gauges("node_lent_bytes", "Memory that the node lends, by segment.", "segment", segments)
        connections = {"shared": node.attach.connections, "tcp": node.data.connections}
        yield gauges("node_connections", "Open connections, by the path of their bytes.", "path", connections)
        yield gauge("node_writers", "Processes of this machine that may write to the memory.", node.report.writers)
        attached = {"read": node.attach.read_attaches, "write": node.attach.write_attaches}
        yield counters("node_attached_segments", "Segments handed out to be mapped, by access.", "access", attached)
        moved = node.data.transfers()
        requests = {"read": moved.reads, "write": moved.writes}
        yield counters("node_tcp_requests", "Ranges that clients and nodes read and wrote over TCP.", "verb", requests)
        size_bytes = {"in": moved.written_bytes, "out": moved.read_bytes}
        yield counters("node_tcp_bytes", "Bytes of these ranges.", "direction", size_bytes)
        refused = dict(node.data.refusals)
        yield counters("node_refused_connections", "TCP connections ended by a refusal, by error.", "code", refused)
        yield counter("node_fences", "Ranges whose earlier tickets and grants became void.", node.data.fences)
        yield counter("node_cleared_bytes", "Memory wiped before another tenant got it.", node.data.cleared_bytes)
        yield counter("node_verified_bytes", "Memory compared with a restored catalogue.", node.verified_bytes)
        yield counter(
            "node_mismatched_ranges", "Ranges that did not match a restored catalogue.", node.mismatched_ranges
        )

    def _of_orders(self) -> Iterator[Metric]:
        workers = self._node.workers
        copiers = {"memory": workers.memory.copier}
        if workers.disk is not None:
            copiers["disk"] = workers.disk.copier
        for name, text, field in (
            ("node_copied_bytes", "Bytes of objects that the primary had copied here; each is hashed.", "copied_bytes"),
            ("node_copied_objects", "Objects copied here with the right checksum.", "copied_objects"),
            ("node_failed_copies", "Objects that could not be copied here.", "failed_objects"),
        ):
            counts = {target: getattr(copier, field) for target, copier in copiers.items()}
            yield counters(name, text, "target", {"memory": 0, "disk": 0} | counts)
        orders = CounterMetricFamily(
            "holdfast_node_orders", "Orders of the primary, by worker and outcome.", labels=["worker", "outcome"]
        )
        for one in workers.queues:
            for outcome in ("done", "failed", "dropped"):
                orders.add_metric([_label(one.name), outcome], getattr(one, outcome))
        yield orders
        waiting = {_label(one.name): one.waiting for one in workers.queues}
        yield gauges("node_waiting_orders", "Orders that wait for their worker.", "worker", waiting)

    def _of_disk(self) -> Iterator[Metric]:
        disk = self._node.lending.disk
        used = sum(one.size_bytes for one in disk.store.stored()) if disk is not None else 0
        uses = {"stored": used, "free": max(0, disk.size_bytes - used)} if disk is not None else {}
        yield gauges("node_disk_bytes", "Space of the disk tier, by use; no samples without one.", "use", uses)
        fault = disk is not None and disk.trouble is not None
        yield gauge("node_disk_fault", "1 while the disk tier is disabled.", int(fault))
        for name, text in (
            ("read_bytes", "Bytes read from files for clients, nodes and copies."),
            ("written_bytes", "Bytes of objects written to files."),
            ("checked_bytes", "Bytes of files compared with their checksums."),
        ):
            yield counter(f"node_disk_{name}", text, getattr(disk, name, 0))
        lost = {damage.name.lower(): count for damage, count in list(self._node.report.lost_files.found.items())}
        yield counters("node_lost_files", "Disk files found gone or spoiled.", "seen", lost)


class DirectCalls:
    """How routes reach a node: at once, in the thread of HTTP. Numbers may be read from any thread, and what has a lock
    is read under it."""

    async def ask(self, call: Callable[[], T]) -> T:
        return call()

    async def begin(self, start: Callable[[Callable[[T], None]], None]) -> T:
        given: list[T] = []
        start(given.append)
        return given[0]

    async def recent(self, call: Callable[[], T]) -> T:
        return call()


def _label(name: str) -> str:
    return name.replace(" ", "_")
