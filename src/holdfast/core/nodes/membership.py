"""Membership: which nodes lend memory. A node's session tells whether it is alive.

A node is (name, boot id): a restart voids all its old memory at once (I14). While its session is not live nothing new
is placed on it; its segments are unmounted when the session ends by a goodbye or by expiry, or when another boot takes
its name. Memory that a master does not know is never mounted with its content: readers may hold leases in it. Nor is
memory of a node that knows of more of the log than exists: the missing records may have moved or freed its ranges.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.copies.disks import leave_disks
from holdfast.core.nodes.node_operations import lately_revoked
from holdfast.core.primary.decision import NOTHING_PLANNED, Command, Decision, Planned
from holdfast.core.primary.primary import Member, Primary
from holdfast.core.primary.session_book import Session
from holdfast.core.state.grants import Quarantined
from holdfast.core.state.state import Segment, State
from holdfast.errors import BadRequest, MemoryVoid, UnknownNode
from holdfast.ids import MAX_OBJECT_BYTES, SMALL_ALIGN, SegmentName
from holdfast.instant import Instant
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import (
    GrantEnded,
    RangesFreed,
    SegmentMounted,
    SegmentUnmounted,
    SessionClosed,
    SessionEnd,
)
from holdfast.messages.shapes import Record
from holdfast.wire.mac import node_key

MAX_SEGMENTS = 1_024
MAX_CLEAN = 1_024
MAX_FIGURES = 64


def register_node(primary: Primary, request: n.RegisterNode, connection: int, now: Instant) -> Decision:
    """Take the memory that the node offers. There is room on it for puts that wait, also if it was known already."""
    state = primary.state
    name = primary.sessions.require(request.session).name
    _check_offer(name, request)
    member = primary.members.get(name)
    if member is not None and member.boot == request.boot and segments_of(primary, name):
        if request.log_id not in (0, state.log_id, *state.continues):
            raise MemoryVoid("this memory was last mounted under another log; mount new memory under a new boot id")
        if request.log_id == state.log_id:
            # The node may know of more of an older history than was restored: then all of its ranges are verified.
            _check_tail(state, request)
        member.session = request.session
        member.fenced = False  # The node must report again whether older writers are left.
        member.clean_untold = dict(member.clean)  # It is not known which of these an earlier master told it of.
        gone = _writers(primary, member) - {*request.live_writers}
        return Decision(
            _registered(primary, name, now),
            _writers_gone(primary, member, gone),
            freed=True,
            commands=lately_revoked(primary, name),
        )
    if request.log_id != 0:
        raise MemoryVoid("the master does not know this memory; mount new memory under a new boot id")
    records = unmount(primary, name)
    handles = range(state.next_segment, state.next_segment + len(request.sizes))
    for number, (handle, size) in enumerate(zip(handles, request.sizes, strict=True)):
        records.append(
            SegmentMounted(
                handle=handle,
                name=SegmentName(name, request.boot, number),
                size_bytes=size,
                data_address=request.data_address,
                socket_path=request.socket_path,
                host=request.host,
            )
        )
    primary.members[name] = Member(name, request.boot, request.session, handles=list(handles))
    return Decision(_registered(primary, name, now), records, freed=True)


def _check_tail(state: State, request: n.RegisterNode) -> None:
    """Refuse a node that knows of durable records that this log lacks. Coordination has lost them, and with them the
    knowledge of what lies where in the node's memory."""
    end = state.end_of_epoch(request.heard_epoch)
    if request.heard_index > end:
        raise MemoryVoid(
            f"the node heard of {request.heard_index} durable records in epoch {request.heard_epoch}, and the log has "
            f"{end} of them: it lost its tail. Mount new memory under a new boot id"
        )


def _check_offer(name: str, request: n.RegisterNode) -> None:
    if "/" in name:
        raise BadRequest(f"a node's name has no '/', as {name!r} has; nothing was mounted")
    if not 0 < len(request.sizes) <= MAX_SEGMENTS:
        raise BadRequest(f"a node lends 1 to {MAX_SEGMENTS} segments; nothing was mounted")
    if any(not 0 < size <= MAX_OBJECT_BYTES or size % SMALL_ALIGN for size in request.sizes):
        raise BadRequest(f"a segment's size is a positive multiple of {SMALL_ALIGN} bytes; nothing was mounted")


def _registered(primary: Primary, node: str, now: Instant) -> n.Registered:
    state = primary.state
    doubt = primary.doubt
    return n.Registered(
        state.log_id,
        state.epoch,
        node_key(state.secret, node),
        primary.rules.report_interval_ms,
        primary.process,
        doubt.suspects,
        max(0, doubt.until - now) if doubt.suspects else 0,
        primary.ticket_terms(now),
    )


def segments_of(primary: Primary, node: str) -> list[Segment]:
    """Its memory segments, without disks: a disk outlives its node's boots."""
    return [segment for segment in primary.state.memory_segments() if segment.name.node == node]


def known_member(primary: Primary, session: int, boot: int) -> Member:
    member = primary.members.get(primary.sessions.require(session).name)
    if member is None or member.boot != boot or member.session != session:
        raise UnknownNode("the memory of this boot is not mounted under this session; register again")
    return member


def report_writers(primary: Primary, request: n.ReportWriters, connection: int, now: Instant) -> Decision:
    member = known_member(primary, request.session, request.boot)
    records = _writers_gone(primary, member, set(request.gone_writers)) if request.gone_writers else []
    if request.cleaned:
        cleaned = set(request.cleaned)
        for grant in request.cleaned:
            member.clean.pop(grant, None)
            member.clean_untold.pop(grant, None)
        records += _free_on(primary, member, lambda one: one.grant in cleaned and not one.writer)
    return Decision(q.Done(len(records)), records)


def report_usage(primary: Primary, request: n.ReportUsage, connection: int, now: Instant) -> Decision:
    if len(request.figures) > MAX_FIGURES or any(len(name) > MAX_FIGURES for name in request.figures):
        raise BadRequest(f"a report has at most {MAX_FIGURES} figures with short names; it was not taken")
    member = known_member(primary, request.session, request.boot)
    member.figures = request.figures
    # A request that a writer sent before it died may have arrived after the report of its death (I11).
    live = {*request.live_writers}
    gone = {number for number in _writers(primary, member) if number < request.next_writer and number not in live}
    return Decision(q.Done(len(request.figures)), _writers_gone(primary, member, gone) if gone else ())


def ask_to_clean(primary: Primary, member: Member) -> Planned:
    """Tell a live node which further grants it must close. It reports when it is done."""
    if not primary.sessions.takes_commands(member.session):
        return NOTHING_PLANNED  # It is asked again when it has taken the commands that wait.
    some = list(member.clean_untold)[:MAX_CLEAN]
    for grant in some:
        del member.clean_untold[grant]
    return Planned(commands=[Command(member.name, c.CLEAN, c.encode_body(c.Clean(some)))])


def _writers(primary: Primary, member: Member) -> set[int]:
    """The numbers of all writers that may still write to this node's memory."""
    mine = set(member.handles)
    granted = {x.writer for g in primary.state.grants.values() for x in g.ranges if x.segment in mine and x.writer}
    return granted | {one.writer for one in primary.state.quarantine.values() if one.segment in mine and one.writer}


def _writers_gone(primary: Primary, member: Member, gone: set[int]) -> list[Record]:
    """These processes can no longer write here: end their grants, and free the ranges on this node that waited for it.

    Ranges of the same grants on other nodes go to quarantine and wait for those nodes' own reports.
    """
    mine = set(member.handles)
    records: list[Record] = []
    for grant in primary.state.grants.values():
        settled = [place.segment for place in grant.ranges if place.segment in mine and place.writer in gone]
        if settled:
            records.append(GrantEnded(grant.id, settled))
    return records + _free_on(primary, member, lambda one: one.writer in gone)


def _free_on(primary: Primary, member: Member, ended: Callable[[Quarantined], bool]) -> list[Record]:
    mine = set(member.handles)
    entries = [e for e, one in primary.state.quarantine.items() if one.segment in mine and ended(one)]
    return [RangesFreed(entries)] if entries else []


def unmount(primary: Primary, node: str) -> list[Record]:
    """Unmount the node's segments and forget the node; its disk stays, as away."""
    records = [*leave_disks(primary, node), *(SegmentUnmounted(s.handle) for s in segments_of(primary, node))]
    primary.members.pop(node, None)
    return records


def expire(primary: Primary, session: Session) -> list[Record]:
    """Close a session that is over, and unmount the memory of its node."""
    records = [SessionClosed(session.id, SessionEnd.EXPIRED), *unmount(primary, session.name)]
    primary.sessions.close(session, "its lease and the time of jeopardy after it have passed")
    return records


def given_up(primary: Primary, now: Instant) -> list[str]:
    """Nodes without a session whose time to come back with one is over."""
    return [member.name for member in primary.members.values() if not member.session and member.given_up_at <= now]
