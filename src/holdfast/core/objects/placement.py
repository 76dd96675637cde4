"""Placement of new memory: preferred places first, then the emptiest, each replica on another node."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.primary.primary import Primary
from holdfast.core.state.state import Segment
from holdfast.errors import BadValue, NoRoom, TooLarge
from holdfast.ids import LARGE_ALIGN, LARGE_FROM, SMALL_ALIGN, SegmentHandle
from holdfast.instant import Instant

SHARED_PARTS = 128
BATCH_PARTS = 8
"""A grant is no shorter than 1/8 of the length asked for, unless there is no other way to serve the put."""


class Room(NamedTuple):
    length: int
    places: list[tuple[SegmentHandle, int]]


class Wanted(NamedTuple):
    """Size and placement of a wanted grant: `length` bytes, or as few as `least` if those are easier to find."""

    length: int
    least: int
    replicas: int
    prefer: list[str]
    will_fill: bool
    """False for a grant that is shared by future puts, which may never come."""

    @property
    def floor(self) -> int:
        """Grants shorter than this are a last resort: each costs its writer a round trip."""
        return max(self.least, rounded(self.length // (BATCH_PARTS if self.will_fill else SHARED_PARTS)))


def rounded(length: int) -> int:
    """Round down to a length that can be granted."""
    align = LARGE_ALIGN if length >= LARGE_FROM else SMALL_ALIGN
    return length // align * align


def place(
    primary: Primary, length: int, replicas: int, prefer: list[str], now: Instant
) -> list[tuple[SegmentHandle, int]] | None:
    """Allocate one range per replica, as (segment, offset). None, and nothing allocated, if there is no room now."""
    align = LARGE_ALIGN if length >= LARGE_FROM else SMALL_ALIGN
    placed: list[tuple[SegmentHandle, int]] = []
    nodes: set[str] = set()
    for segment in in_order(primary, prefer, now):
        if segment.name.node in nodes:
            continue
        offset = primary.allocators[segment.handle].alloc(length, align)
        if offset is not None:
            placed.append((segment.handle, offset))
            nodes.add(segment.name.node)
            if len(placed) == replicas:
                return placed
    for handle, offset in placed:
        primary.allocators[handle].free(offset, length)
    return None


def place_most(primary: Primary, wanted: Wanted, least: int, now: Instant) -> Room | None:
    """Allocate the longest length that is free on enough nodes, up to what is wanted; None if that is less than
    `least`."""
    places = place(primary, wanted.length, wanted.replicas, wanted.prefer, now)
    if places is not None or least == wanted.length:
        return Room(wanted.length, places) if places is not None else None
    free: dict[str, int] = {}
    for segment in in_order(primary, [], now):
        longest = primary.allocators[segment.handle].largest_free
        free[segment.name.node] = max(longest, free.get(segment.name.node, 0))
    length = rounded(min(wanted.length, sorted(free.values())[-wanted.replicas]))
    # A piece that does not begin on a page boundary holds up to a page less.
    for shorter in dict.fromkeys((length, rounded(length - LARGE_ALIGN))):
        if shorter >= least:
            places = place(primary, shorter, wanted.replicas, wanted.prefer, now)
            if places is not None:
                return Room(shorter, places)
    return None


def in_order(primary: Primary, prefer: list[str], now: Instant) -> list[Segment]:
    rank = {name: i for i, name in reversed(list(enumerate(prefer)))}
    last = len(prefer)

    def order(segment: Segment) -> tuple[int, float, int]:
        wanted = min(rank.get(segment.name.node, last), rank.get(str(segment.name), last)) if rank else 0
        return wanted, -primary.allocators[segment.handle].free_bytes / segment.usable_bytes, segment.handle

    return sorted((s for s in primary.state.segments.values() if primary.available(s, now)), key=order)


def check_possible(primary: Primary, length: int, largest: int, replicas: int, now: Instant) -> None:
    """Raise at once if neither an eviction nor the return of an absent node could ever make room.

    More replicas than nodes is a mistake (`BadValue`) only if that many nodes never lent memory at once in this
    history. A cluster that once had them has lost some for now, even if they were unmounted since, and the put waits.
    """
    nodes: dict[str, int] = {}
    for segment in primary.state.memory_segments():
        nodes[segment.name.node] = max(nodes.get(segment.name.node, 0), segment.usable_bytes)
    if not nodes:
        raise NoRoom("no node lends memory yet; nothing was stored. Start a node, or wait for it to register")
    if replicas > primary.state.most_nodes:
        raise BadValue(
            f"{replicas} replicas need as many nodes, and there were never more than {primary.state.most_nodes}; "
            "nothing was stored. Ask for fewer replicas or start more nodes"
        )
    limit = sorted(nodes.values(), reverse=True)[min(replicas, len(nodes)) - 1]
    if largest > limit:
        raise TooLarge(
            f"an object of {largest:,} bytes fits into no node{_as_often(replicas)}: at most {limit:,} bytes do; "
            "nothing was stored. Store it in parts, or start larger nodes"
        )
    if length > limit:
        raise TooLarge(
            f"a grant of {length:,} bytes does not fit into any segment (the largest usable has {limit:,}), though "
            "each object would; nothing was stored. Split the batch"
        )


def available_nodes(primary: Primary, now: Instant) -> int:
    return len({s.name.node for s in primary.state.segments.values() if primary.available(s, now)})


def copies_to_place(primary: Primary, replicas: int, now: Instant) -> int:
    """Replicas that a put gets now: with `degraded_puts` at most one per available node, and at least one."""
    if not primary.rules.degraded_puts or replicas == 1:
        return replicas
    return min(replicas, max(1, available_nodes(primary, now)))


def why_no_room(primary: Primary, length: int, replicas: int, now: Instant) -> NoRoom:
    """The error for a put that timed out waiting for room: says what holds the memory."""
    ready = available_nodes(primary, now)
    if ready < replicas:
        return NoRoom(
            f"{replicas} replica(s) were asked for and {ready} node(s) answer and take new objects; nothing was "
            "stored. Try again when nodes are back, open one that is cordoned, or allow fewer copies meanwhile "
            "(degraded_puts)"
        )
    return NoRoom(
        f"no room for {length:,} bytes on {replicas} node(s) before the deadline: {primary.free_bytes:,} of "
        f"{primary.capacity_bytes:,} bytes are free, and nothing more may be evicted (leases, pins, unfinished puts); "
        "nothing was stored. Try again, or add a node"
    )


def _as_often(replicas: int) -> str:
    return f", {replicas} times" if replicas > 1 else ""
