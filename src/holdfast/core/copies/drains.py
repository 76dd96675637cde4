"""The cost of draining a node: estimated before it begins, counted while it goes on.

A drain moves everything from one node to the others. If they have no room for it under the watermark, objects are
evicted, from anywhere, the longest unused first. That is refused unless the operator asks for it. `apply` counts the
objects moved and evicted since a drain began, so that the next primary knows the counts too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.core.catalogue.catalogue import DISK, HARD_PIN, MASKED, MEMORY, SEVERAL
from holdfast.core.copies.evacuation import LIST_EVERY_MS, left_on
from holdfast.core.copies.plan import takes_files
from holdfast.core.objects.eviction import excess_bytes
from holdfast.core.primary.primary import Primary
from holdfast.core.state.state import DRAINING, Segment
from holdfast.errors import WouldEvict
from holdfast.ids import extent_of
from holdfast.instant import Instant
from holdfast.messages.records import NodeDrained
from holdfast.messages.shapes import Record


class Forecast(NamedTuple):
    """Estimate for a drain that has not begun. It ignores fragmentation, and puts that come meanwhile."""

    objects: int
    """Objects, in memory or on disk, that have too few replicas elsewhere and so must move."""
    moved_bytes: int
    held_bytes: int
    """Bytes of those that are leased or hard-pinned, and so never evicted."""
    room_bytes: int
    """Bytes that the other nodes take before they evict anything."""
    evicted_bytes: int
    """Estimated bytes that would be evicted for good, here or elsewhere."""
    nodes: int
    """Number of other nodes that take new objects."""


def check_room(primary: Primary, node: str, now: Instant) -> None:
    """Refuse a drain that would evict, or that could not end."""
    costs = forecast(primary, node, now)
    if costs.evicted_bytes:
        where = f"the {costs.nodes} other node(s) have" if costs.nodes else "no other node takes objects, so there is"
        raise WouldEvict(
            f"draining {node!r} moves {costs.objects:,} objects of {costs.moved_bytes:,} bytes, {costs.held_bytes:,} "
            f"of them leased or pinned, and {where} room for {costs.room_bytes:,}: about {costs.evicted_bytes:,} bytes "
            "would be evicted, or stay; nothing was changed. Add a node, remove objects, or drain with --evict"
        )


def forecast(primary: Primary, node: str, now: Instant) -> Forecast:
    state = primary.state
    others = [one for one in state.memory_segments() if one.name.node != node and primary.available(one, now)]
    in_memory = [one for one in state.memory_segments() if one.name.node == node]
    nodes = len({one.name.node for one in others})
    objects, moved, unevictable = _to_move(primary, in_memory, nodes, now)
    files, on_disk, _ = _to_move(primary, [one for one in state.disks() if one.name.node == node], 1, now)
    disks = [one for one in state.disks() if one.name.node != node and takes_files(primary, one, now)]
    disk_room = sum(primary.allocators[one.handle].free_bytes for one in disks)
    # A file goes to another disk, or to memory if there is none.
    into_memory = moved + max(0, on_disk - disk_room)
    capacity = sum(one.usable_bytes for one in others)
    used = sum(map(primary.used_on, others))
    room = max(0, int(primary.rules.high_watermark * capacity) - used)
    evicted = excess_bytes(primary.rules, capacity, used + into_memory) if into_memory > room else 0
    # Objects that move from memory to a disk are not lost.
    evicted = max(0, min(evicted, used + into_memory) - max(0, disk_room - on_disk))
    return Forecast(objects + files, moved + on_disk, unevictable, room, evicted, nodes)


def _to_move(primary: Primary, segments: list[Segment], open_nodes: int, now: Instant) -> tuple[int, int, int]:
    """(objects, bytes, bytes of leased or hard-pinned ones) that must leave these segments."""
    catalogue = primary.state.catalogue
    objects = size = unevictable = 0
    for segment in segments:
        slots = np.array(catalogue.on_segment(segment.handle), np.intp)
        if not len(slots):
            continue
        flags = catalogue.flags[slots]
        moves = flags & MASKED == 0
        for i in np.flatnonzero(moves & (flags & SEVERAL != 0)).tolist():
            moves[i] = not _enough_without(primary, int(slots[i]), segment, open_nodes)
        slots = slots[moves]
        extents = np.array([extent_of(catalogue.size_at[slot]) for slot in slots.tolist()], np.int64)
        kept = (catalogue.lease_until[slots] > now) | (catalogue.flags[slots] & HARD_PIN != 0)
        objects += len(slots)
        size += int(extents.sum())
        unevictable += int(extents[kept].sum())
    return objects, size, unevictable


def _enough_without(primary: Primary, slot: int, segment: Segment, open_nodes: int) -> bool:
    """Does the object have enough replicas on nodes other than this segment's?"""
    state = primary.state
    places = state.catalogue.replicas(slot)
    elsewhere = [one for one in places if state.segments[one.segment].name.node != segment.name.node]
    there = [one for one in elsewhere if one.segment not in state.away]
    if segment.kind == DISK:
        return bool(there)
    in_memory = sum(one.kind == MEMORY for one in there)
    return in_memory >= min(state.catalogue.wanted_of(slot), max(1, open_nodes))


def to_look_at(primary: Primary, now: Instant) -> list[str]:
    """Draining nodes to check for being empty: once per second, because the check is a pass over all objects."""
    under_way = [node for node, drain in primary.state.drains.items() if not drain.ended and node in primary.members]
    if not under_way or now < primary.copies.drains_looked_at + LIST_EVERY_MS:
        return []
    primary.copies.drains_looked_at = now
    return under_way


def drained(primary: Primary, node: str) -> list[Record]:
    """The record that a node is drained, if it is empty."""
    empty = primary.state.modes.get(node) == DRAINING and left_on(primary.state, node) == (0, 0)
    return [NodeDrained(node)] if empty else []
