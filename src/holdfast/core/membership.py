"""Nodes: who lends memory, and who fell silent.

A node is (name, boot id): a restart voids all its old memory at once (I14). While it is silent nothing new is
placed on it; its segments are unmounted when it says goodbye, when another boot takes its name, or after
`node_timeout_ms`. Memory that a master does not know is never mounted as it is: readers may hold leases in it.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.grants import Quarantined
from holdfast.core.primary import Decision, Member, Primary
from holdfast.core.state import Segment
from holdfast.errors import BadRequest, MemoryVoid, NameTaken, UnknownNode
from holdfast.ids import MAX_OBJECT_BYTES, SMALL_ALIGN, SegmentName
from holdfast.instant import Instant
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import GrantEnded, RangesFreed, SegmentMounted, SegmentUnmounted
from holdfast.messages.shapes import Record

MAX_SEGMENTS = 1_024
MAX_NAME = 128
MAX_CLEAN = 1_024


def register_node(primary: Primary, request: n.RegisterNode, connection: int, now: Instant) -> Decision:
    state = primary.state
    _check_offer(request)
    member = primary.members.get(request.name)
    if member is not None and member.boot == request.boot and segments_of(primary, request.name):
        if request.log_id not in (0, state.log_id):
            raise MemoryVoid("this memory was last mounted under another log; mount new memory under a new boot id")
        member.connection, member.last_heard = connection, now
        return _registered(primary), _writers_gone(primary, member, _writers(primary, member) - {*request.live_writers})
    if member is not None and member.connection > 0 and primary.is_live(member, now):
        raise NameTaken(
            f"a live node is already called {request.name!r}; nothing was mounted. Give this node another --name, or "
            "stop the other one"
        )
    if request.log_id != 0:
        raise MemoryVoid("the master does not know this memory; mount new memory under a new boot id")
    records = unmount(primary, request.name)
    handles = range(state.next_segment, state.next_segment + len(request.sizes))
    for number, (handle, size) in enumerate(zip(handles, request.sizes, strict=True)):
        records.append(
            SegmentMounted(
                handle=handle,
                name=SegmentName(request.name, request.boot, number),
                size_bytes=size,
                data_address=request.data_address,
                socket_path=request.socket_path,
                host=request.host,
            )
        )
    primary.members[request.name] = Member(request.name, request.boot, now, connection, list(handles))
    return _registered(primary), records


def _check_offer(request: n.RegisterNode) -> None:
    if not 0 < len(request.name) <= MAX_NAME or "/" in request.name:
        raise BadRequest(f"a node's name has 1 to {MAX_NAME} characters and no '/'; nothing was mounted")
    if not 0 < len(request.sizes) <= MAX_SEGMENTS:
        raise BadRequest(f"a node lends 1 to {MAX_SEGMENTS} segments; nothing was mounted")
    if any(not 0 < size <= MAX_OBJECT_BYTES or size % SMALL_ALIGN for size in request.sizes):
        raise BadRequest(f"a segment's size is a positive multiple of {SMALL_ALIGN} bytes; nothing was mounted")


def _registered(primary: Primary) -> n.Registered:
    state = primary.state
    return n.Registered(state.log_id, state.epoch, state.secret, primary.rules.beat_ms)


def segments_of(primary: Primary, node: str) -> list[Segment]:
    return [segment for segment in primary.state.segments.values() if segment.name.node == node]


def _member(primary: Primary, name: str, boot: int) -> Member:
    member = primary.members.get(name)
    if member is None or member.boot != boot:
        raise UnknownNode(f"the node {name!r} of this boot is not registered; register again")
    return member


def beat(primary: Primary, request: n.Beat, connection: int, now: Instant) -> Decision:
    member = _member(primary, request.name, request.boot)
    member.connection, member.last_heard = connection, now
    records = _writers_gone(primary, member, set(request.gone_writers)) if request.gone_writers else []
    if request.cleaned:
        cleaned = set(request.cleaned)
        for grant in cleaned:
            member.clean.pop(grant, None)
        records += _free_on(primary, member, lambda held: held.grant in cleaned and not held.writer)
    return n.Beaten(primary.state.epoch, list(member.clean)[:MAX_CLEAN]), records


def _writers(primary: Primary, member: Member) -> set[int]:
    """The numbers of all writers that may still write to this node's memory."""
    mine = set(member.handles)
    granted = {x.writer for g in primary.state.grants.values() for x in g.ranges if x.segment in mine and x.writer}
    return granted | {held.writer for held in primary.state.quarantine.values() if held.segment in mine and held.writer}


def _writers_gone(primary: Primary, member: Member, gone: set[int]) -> list[Record]:
    """No thread of these processes can write any more: end their grants, free what waited for this on this node.

    Ranges of the same grants on other nodes go to quarantine and wait for those nodes' own word.
    """
    mine = set(member.handles)
    records: list[Record] = []
    for grant in primary.state.grants.values():
        settled = [place.segment for place in grant.ranges if place.segment in mine and place.writer in gone]
        if settled:
            records.append(GrantEnded(grant.id, settled))
    return records + _free_on(primary, member, lambda held: held.writer in gone)


def _free_on(primary: Primary, member: Member, ended: Callable[[Quarantined], bool]) -> list[Record]:
    mine = set(member.handles)
    entries = [e for e, held in primary.state.quarantine.items() if held.segment in mine and ended(held)]
    return [RangesFreed(entries)] if entries else []


def leave(primary: Primary, request: n.Leave, connection: int, now: Instant) -> Decision:
    member = _member(primary, request.name, request.boot)
    del primary.members[member.name]
    return q.Done(len(member.handles)), unmount(primary, member.name)


def unmount(primary: Primary, node: str) -> list[Record]:
    return [SegmentUnmounted(segment.handle) for segment in segments_of(primary, node)]


def connection_lost(primary: Primary, connection: int) -> None:
    for member in primary.members.values():
        if member.connection == connection:
            member.connection = 0


def silent_too_long(primary: Primary, now: Instant) -> list[Record]:
    """Unmount what fell silent long ago."""
    limit = now - primary.rules.node_timeout_ms
    gone = [member for member in primary.members.values() if member.last_heard < limit]
    records: list[Record] = []
    for member in gone:
        del primary.members[member.name]
        records += unmount(primary, member.name)
    return records
