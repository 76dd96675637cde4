"""The standing of a primary's sessions, as RPC, HTTP and the metrics show it.

A follower proves its identity by its session's number, so only the beginning of that is shown.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.catalogue.catalogue import DISK, MEMORY
from holdfast.core.copies.evacuation import left_on
from holdfast.core.primary.primary import Member, Primary
from holdfast.core.primary.session_book import Session
from holdfast.core.state.state import MODES, Drain, Segment, State
from holdfast.instant import Instant
from holdfast.messages.requests import NodeInfo

NO_DRAIN = Drain()


def standing_of(session: Session | None, now: Instant) -> str:
    if session is None:
        return "expired"
    return "safe" if now < session.lease_until else "jeopardy"


def by_node(state: State) -> dict[str, list[Segment]]:
    """Node -> its segments, disks among them."""
    found: dict[str, list[Segment]] = {}
    for segment in state.segments.values():
        found.setdefault(segment.name.node, []).append(segment)
    return found


def node_info(primary: Primary, member: Member, own: list[Segment], now: Instant, counts_left: bool = True) -> NodeInfo:
    """`own`: its segments. `counts_left`: count what has yet to leave the node, which is a pass over the catalogue
    while one is drained."""
    segments = [segment for segment in own if segment.kind == MEMORY]
    disk = next((segment for segment in own if segment.kind == DISK), None)
    objects_left, bytes_left = left_on(primary.state, member.name) if counts_left else (0, 0)
    session = primary.sessions.get(member.session)
    drain = primary.state.drains.get(member.name, NO_DRAIN)
    return NodeInfo(
        name=member.name,
        boot=f"{member.boot:016x}",
        available=primary.is_live(member, now),
        silent_ms=max(0, now - session.lease_until) if session is not None else 0,
        data_address=segments[0].data_address if segments else "",
        host=segments[0].host if segments else "",
        segments=len(segments),
        capacity_bytes=sum(s.usable_bytes for s in segments),
        used_bytes=sum(map(primary.used_on, segments)),
        mode=MODES[primary.state.modes.get(member.name, 0)],
        objects_left=objects_left,
        bytes_left=bytes_left,
        waits_for=primary.copies.stuck.get(member.name, ""),
        disk="" if disk is None else "away" if disk.away else disk.closed or "mounted",
        disk_capacity_bytes=disk.size_bytes if disk is not None else 0,
        disk_used_bytes=primary.used_on(disk) if disk is not None else 0,
        standing=standing_of(session, now),
        session_epoch=session.session_epoch if session is not None else 0,
        lease_left_ms=max(0, session.lease_until - now) if session is not None else 0,
        last_command=session.last_command if session is not None else "",
        figures=member.figures,
        moved_objects=drain.moved_objects,
        moved_bytes=drain.moved_bytes,
        evicted_objects=drain.evicted_objects,
        evicted_bytes=drain.evicted_bytes,
    )


def session_facts(primary: Primary, session: Session, now: Instant) -> dict[str, Any]:
    member = primary.members.get(session.name)
    mine = member is not None and member.session == session.id
    return {
        "session": f"{session.id:016x}"[:8],
        "name": session.name,
        "standing": standing_of(session, now),
        "connected": session.connection > 0,
        "epoch": primary.sessions.epoch,
        "session_epoch": session.session_epoch,
        "lease_left_ms": max(0, session.lease_until - now),
        "expires_in_ms": max(0, session.expires_at - now),
        "keepalive_held": session.keepalive is not None,
        "commands_waiting": len(session.commands),
        "last_command": session.last_command,
        "segments": len(member.handles) if member is not None and mine else 0,
    }
