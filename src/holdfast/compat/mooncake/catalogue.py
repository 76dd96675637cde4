"""Removals, the places of replicas, and segments that a program mounts."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from holdfast.compat.mooncake.codes import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    NOT_SUPPORTED,
    OBJECT_HAS_LEASE,
    OBJECT_NOT_FOUND,
    OK,
    TASK_NOT_FOUND,
)
from holdfast.compat.mooncake.link import MooncakeLink, say_once
from holdfast.compat.mooncake.linked import Linked
from holdfast.compat.mooncake.segment import EngineNode, node_name, node_prefix
from holdfast.compat.mooncake.structures import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    QueryTaskResponse,
    ReplicaDescriptor,
)
from holdfast.messages.requests import ObjectStat, Replica

log = logging.getLogger("holdfast.mooncake")
NO_TASK = (0, 0)


def remove_each(link: MooncakeLink, keys: Sequence[str | None], force: bool) -> list[int]:
    """A code for each. A hard pin is no reason to refuse: in Mooncake it keeps from eviction alone."""
    codes = [OBJECT_NOT_FOUND] * len(keys)
    places = [(place, key) for place, key in enumerate(keys) if key is not None]
    gone = link.cache.remove_many([key for _, key in places], force=force)
    kept = []
    for (place, key), removed in zip(places, gone, strict=True):
        if removed:
            codes[place] = OK
        elif not force:
            kept.append((place, key))
    stats = link.cache.stat_many([key for _, key in kept]) if kept else []
    pinned = []
    for (place, key), stat in zip(kept, stats, strict=True):
        if stat is not None and stat.hard_pin and not stat.lease_left_ms:
            pinned.append((place, key))
        elif stat is not None:
            codes[place] = OBJECT_HAS_LEASE
    freed = link.cache.remove_many([key for _, key in pinned], force=True) if pinned else []
    for (place, _), removed in zip(pinned, freed, strict=True):
        codes[place] = OK if removed else OBJECT_NOT_FOUND
    return codes


def described(replica: Replica, size_bytes: int) -> ReplicaDescriptor:
    if replica.kind == "DISK":
        return ReplicaDescriptor(DiskDescriptor(f"{replica.node}/{replica.segment}", size_bytes))
    return ReplicaDescriptor(MemoryDescriptor(Descriptor(size_bytes, replica.offset, replica.node)))


class StoreListing(Linked):
    """The methods about objects as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self._mounted: dict[str, EngineNode] = {}

    def close(self) -> int:
        with self._changing:
            nodes, self._mounted = list(self._mounted.values()), {}
            code = super().close()
        for node in nodes:
            node.stop()
        return code

    def remove(self, key: str, force: bool = False) -> int:
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        def remove(link: MooncakeLink) -> list[int]:
            return remove_each(link, link.names.stored_each(keys), force)

        return self._ask(remove, lambda code: [code] * len(keys)) if keys else []

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """How many. Keys are matched here, as they are said, so that a tenant's prefix is no part of them."""
        try:
            pattern = re.compile(regex_pattern)
        except re.error as error:
            log.warning("remove_by_regex: %r is no regular expression: %s", regex_pattern, error)
            return INVALID_PARAMS

        def remove(link: MooncakeLink) -> int:
            found = [
                stored
                for prefix in link.names.prefixes()
                for stored in link.cache.keys(prefix)
                if (key := link.names.shown(stored)) is not None and pattern.search(key)
            ]
            return remove_each(link, found, force).count(OK) if found else 0

        return self._ask(remove, lambda code: code)

    def remove_all(self, force: bool = False) -> int:
        """How many of this tenant's. Without force, what others read and what is pinned hard stays."""
        return self._ask(
            lambda link: sum(link.cache.remove_matching(one, force=force) for one in link.names.patterns()),
            lambda code: code,
        )

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        def ask(link: MooncakeLink) -> dict[str, list[ReplicaDescriptor]]:
            stats = _stats(link, keys)
            return {
                key: [described(replica, stat.size_bytes) for replica in stat.replicas]
                for key, stat in zip(keys, stats, strict=True)
                if stat is not None
            }

        return self._ask(ask, lambda code: {})

    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = "") -> list[str]:
        """Remove objects that nobody reads; the keys of those that were. With a segment, those whose only replicas lie
        there: one replica of several cannot be given up by hand."""

        def clear(link: MooncakeLink) -> list[str]:
            stats = _stats(link, keys)
            chosen = [
                key for key, stat in zip(keys, stats, strict=True) if stat is not None and _only_on(stat, segment_name)
            ]
            codes = remove_each(link, link.names.stored_each(chosen), force=False) if chosen else []
            return [key for key, code in zip(chosen, codes, strict=True) if code == OK]

        return self._ask(clear, lambda code: [])

    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[tuple[int, int], int]:
        say_once("copy and move tasks are not known here: masters keep replicas and move objects by themselves")
        return NO_TASK, INVALID_PARAMS

    def create_move_task(self, key: str, source: str, target: str) -> tuple[tuple[int, int], int]:
        return self.create_copy_task(key, [target])

    def query_task(self, task_id: tuple[int, int]) -> tuple[QueryTaskResponse | None, int]:
        return None, TASK_NOT_FOUND

    def get_offload_rpc_read_count(self) -> int:
        return 0

    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Lend this much more, as one more node of this process."""

        def mount(link: MooncakeLink) -> dict[str, Any]:
            host, _, port = link.hostname.rpartition(":")
            name = f"{node_name(f'{host}:{port}')}-{len(self._mounted) + 1}"
            node = EngineNode(name, link.address, host, size)
            if not node.start():
                return {"ret": INTERNAL_ERROR, "segment_ids": [], "allocated_size": 0}
            self._mounted[name] = node
            return {"ret": OK, "segment_ids": [name], "allocated_size": size}

        return self._ask(mount, lambda code: {"ret": code, "segment_ids": [], "allocated_size": 0})

    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        nodes = [self._mounted.pop(name, None) for name in segment_ids]
        for node in nodes:
            if node is not None:
                node.stop()
        return OK if all(nodes) else INTERNAL_ERROR

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        return self.unmount_and_free_segment(segment_ids, grace_period_seconds)

    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        say_once("mount_segment of a caller's own memory is not supported: nodes lend their own")
        return {"ret": NOT_SUPPORTED, "segment_ids": []}

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        return OK


def _stats(link: MooncakeLink, keys: Sequence[str]) -> list[ObjectStat | None]:
    stored = link.names.stored_each(keys)
    wanted = list(dict.fromkeys(each for each in stored if each is not None))
    found = dict(zip(wanted, link.cache.stat_many(wanted), strict=True)) if wanted else {}
    return [found[each] if each is not None else None for each in stored]


def _only_on(stat: ObjectStat, segment: str) -> bool:
    """Do all replicas lie on this segment, by its node's name or its client's `host:port`? Any do on no segment."""
    return not segment or all(
        replica.node == segment or replica.node.startswith(node_prefix(segment)) for replica in stat.replicas
    )
