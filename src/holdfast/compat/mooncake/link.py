"""The state of a store that is set up: its link to the cluster, the names of its tenant, the caller's memory."""

from __future__ import annotations

import logging
import os
import random
import threading
from dataclasses import dataclass, field
from typing import Any

import holdfast
from holdfast.client.cache import Cache
from holdfast.compat.device_memory import CallersMemory, cuda_driver
from holdfast.compat.mooncake.configuration import (
    CALL_SECONDS,
    PROBES,
    PUT_SECONDS,
    PUT_TIMEOUT,
    SEGMENTS,
    BadSetup,
    Setup,
    seconds_of,
    tls_context,
    word_of,
)
from holdfast.compat.mooncake.names import Names
from holdfast.compat.mooncake.segment import EngineNode, declined, node_name, node_prefix
from holdfast.compat.mooncake.structures import ReplicateConfig, SoftPinAction
from holdfast.errors import HoldfastError
from holdfast.ids import MAX_REPLICAS
from holdfast.instant import now_seconds
from holdfast.integrations.link import Link
from holdfast.messages.requests import NodeInfo

log = logging.getLogger("holdfast.mooncake")

FIRST_PORT, LAST_PORT = 12_300, 14_300
"""Mooncake draws a client's port from this range for the client's name; here it is only part of the name."""
NODES_SECONDS = 5.0
"""How long the list of nodes is believed, which is asked for only by puts that name replicas or nodes."""

_said: set[str] = set()


def say_once(text: str, *arguments: object) -> None:
    """Log a setting that has no meaning here, once in the life of the process."""
    if text not in _said:
        _said.add(text)
        log.warning(text, *arguments)


@dataclass(slots=True, eq=False)
class MooncakeLink:
    shared: Link
    """The link that all engines' faces share: while it is down, what needs a master is refused at once."""
    cache: Cache
    puts: Cache
    """The same client with a shorter timeout: a program should soon learn that a store has no room."""
    address: str
    names: Names
    hostname: str
    buffer_bytes: int
    probes: str
    node: EngineNode | None = None
    memory: CallersMemory = field(default_factory=lambda: CallersMemory(cuda_driver()))
    _nodes: list[NodeInfo] = field(default_factory=list)
    _nodes_until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        try:
            self.shared.close()
        finally:
            if self.node is not None:
                self.node.stop()

    def nodes(self) -> list[NodeInfo]:
        with self._lock:
            if now_seconds() >= self._nodes_until:
                self._nodes = [node for node in self.cache.nodes().nodes if node.available]
                self._nodes_until = now_seconds() + NODES_SECONDS
            return self._nodes

    def put_options(self, config: ReplicateConfig, upsert: bool) -> dict[str, Any] | None:
        """Keywords for the client; None: the configuration contradicts itself."""
        _say_what_is_ignored(config)
        if config.replica_num < 1 or (
            config.soft_pin_ttl_ms is not None and config.soft_pin_action != SoftPinAction.ENABLE
        ):
            return None
        options: dict[str, Any] = {"upsert": upsert}
        if config.with_hard_pin:
            options["hard_pin"] = True
        if config.soft_pin_action == SoftPinAction.ENABLE:
            options["soft_pin"] = True
        segments = [*config.preferred_segments, *([config.preferred_segment] if config.preferred_segment else [])]
        if segments:
            options["prefer"] = self._nodes_named(segments) or None
        if config.replica_num > 1:
            # As many as there can be, as Mooncake does: an object with fewer replicas is better than none.
            options["replicas"] = min(config.replica_num, max(1, len(self.nodes())), MAX_REPLICAS)
        return options

    def _nodes_named(self, segments: list[str]) -> list[str]:
        """A segment is called by a node's name, or by the `host:port` of the client that started it."""
        names = [node.name for node in self.nodes()]
        return [
            name for segment in segments for name in names if name == segment or name.startswith(node_prefix(segment))
        ]


def _say_what_is_ignored(config: ReplicateConfig) -> None:
    if config.nof_replica_num or config.dfs_replica_num or config.preferred_nof_segments:
        say_once("replicas on NVMe-oF or a file system are not known here; those in memory are stored")
    if config.soft_pin_ttl_ms is not None:
        say_once("soft_pin_ttl_ms is ignored: the masters' soft_pin_ttl_ms counts")
    if config.group_ids:
        say_once("group_ids are ignored: objects are evicted one by one, the longest unused first")
    if config.prefer_alloc_in_same_node:
        say_once("prefer_alloc_in_same_node is ignored: clients write to a node of their machine where there is one")


def open_link(setup: Setup) -> MooncakeLink:
    """Connected, and with its node where it lends one. HoldfastError within seconds; BadSetup for bad settings."""
    call_seconds = seconds_of("HOLDFAST_TIMEOUT", CALL_SECONDS)
    put_seconds = min(seconds_of(PUT_TIMEOUT, PUT_SECONDS), call_seconds)
    mode = word_of(SEGMENTS, ("auto", "on", "off"))
    probes = word_of(PROBES, ("use", "look", "lease"))
    if not setup.address:
        raise BadSetup("no address of a master is given")
    if setup.protocol.lower() != "tcp":
        say_once("protocol %r is ignored: bytes move over shared memory and TCP", setup.protocol)
    token = os.environ.get("HOLDFAST_TOKEN", "")
    cache = holdfast.connect(setup.address, timeout=call_seconds, token=token, tls=tls_context())
    host, _, port = setup.hostname.rpartition(":")
    if not (host and port.isdigit()):
        # Not a secret: it only keeps two clients of a machine apart.
        host, port = setup.hostname, str(random.randint(FIRST_PORT, LAST_PORT))
    shared = Link(lambda: cache, "the caller of mooncake.store", log)
    shared.open()
    link = MooncakeLink(
        shared=shared,
        cache=cache,
        puts=cache.with_timeout(put_seconds),
        address=setup.address,
        names=Names(setup.tenant),
        hostname=f"{host}:{port}",
        buffer_bytes=setup.buffer_bytes,
        probes=probes,
    )
    try:
        link.node = _lend(link, setup, mode, host)
    except BaseException:
        link.close()
        raise
    return link


def _lend(link: MooncakeLink, setup: Setup, mode: str, host: str) -> EngineNode | None:
    nodes = link.cache.nodes().nodes
    if not setup.segment_bytes:
        if not any(node.available for node in nodes):
            log.warning("no node lends memory yet: puts are refused until one does")
        return None
    reason = declined(mode, nodes, setup.segment_bytes)
    if reason:
        log.warning("global_segment_size (%s bytes) is not lent: %s", f"{setup.segment_bytes:,}", reason)
        return None
    node = EngineNode(node_name(link.hostname), setup.address, host, setup.segment_bytes)
    if not node.start():
        raise HoldfastError(f"the node {node.name} of {setup.segment_bytes:,} bytes did not start; see its log above")
    log.info("lending %s bytes as node %s", f"{setup.segment_bytes:,}", node.name)
    return node
