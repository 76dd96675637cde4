"""Operators' verbs about nodes: cordon, drain, resize; and ending a client's writes.

All of it is in the log, by the node's name, so that it outlives this primary and the node's own restarts.
"""

from __future__ import annotations

from holdfast.core.copies.drains import check_room
from holdfast.core.primary.decision import Command, Decision, Planned
from holdfast.core.primary.primary import Member, Primary
from holdfast.core.state.state import DRAINING, MODES, Segment
from holdfast.errors import BadValue, NoRoom, Refused, UnknownNode
from holdfast.ids import COPIES, LARGE_ALIGN, MAX_OBJECT_BYTES, SMALL_ALIGN, SegmentName
from holdfast.instant import Instant
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import ClientsRevoked, GrantEnded, NodeModeChanged, SegmentLimited, SegmentMounted
from holdfast.messages.shapes import Record

MAX_MODES = 10_000
MAX_SEGMENTS = 1_024
TOLD_AT_ONCE = 4_096
"""Revoked clients in one command."""
TOLD_AGAIN = 256
"""Revoked clients whom a new primary names to nodes: tickets of all that were revoked earlier have expired."""


def _member(primary: Primary, node: str) -> Member:
    member = primary.members.get(node)
    if member is None:
        known = ", ".join(sorted(primary.members)) or "there are none"
        raise UnknownNode(f"no node is called {node!r}; nothing was changed. The nodes: {known}")
    return member


def command(node: str, name: str, body: c.Body) -> Command:
    return Command(node, name, c.encode_body(body), name in c.CONFIRMED)


def change_mode(primary: Primary, request: q.ChangeMode, client: int, now: Instant) -> Decision:
    state = primary.state
    if request.mode not in MODES:
        raise BadValue(f"a node is one of {', '.join(MODES)}, not {request.mode!r}; nothing was changed")
    if request.node not in state.modes:
        _member(primary, request.node)
    if len(state.modes) >= MAX_MODES and request.node not in state.modes:
        raise BadValue(f"{MAX_MODES:,} nodes are set aside, the most there may be; open some first")
    mode = MODES.index(request.mode)
    if state.modes.get(request.node, 0) == mode:
        return Decision(q.Done(0))
    if mode == DRAINING and not request.evict:
        check_room(primary, request.node, now)
    primary.copies.leaving.clear()
    primary.copies.stuck.pop(request.node, None)
    primary.copies.plan_at = 0
    told = command(request.node, "maintenance", c.Maintain(request.mode))
    return Decision(q.Done(1), [NodeModeChanged(request.node, mode)], commands=[told])


def resize_node(primary: Primary, request: q.ResizeNode, client: int, now: Instant) -> Decision:
    """Growing has the node mount another segment. Shrinking sets limits, and moves the objects beyond them away."""
    member = _member(primary, request.node)
    wanted = request.size_bytes // LARGE_ALIGN * LARGE_ALIGN
    if not 0 < wanted <= MAX_OBJECT_BYTES:
        raise BadValue(
            f"a node lends from {LARGE_ALIGN:,} to {MAX_OBJECT_BYTES:,} bytes, not {request.size_bytes:,}; nothing was "
            "changed"
        )
    memory = [s for s in primary.state.memory_segments() if s.name.node == request.node]
    size = sum(segment.usable_bytes for segment in memory)
    if wanted == size:
        return Decision(q.Done(0))
    if wanted > size:
        all_of_it = wanted - size + sum(segment.size_bytes for segment in memory)
        _check_most(member, all_of_it)
        _check_growing(member, wanted - size, request.force)
        told = command(member.name, "volume_update", c.UpdateVolume(all_of_it, force=request.force))
        return Decision(q.Done(wanted - size), commands=[told])
    _check_shrinking(primary, request.node, size - wanted, now)
    records: list[Record] = []
    excess = size - wanted
    for segment in reversed(memory):
        # A segment keeps at least one page.
        cut = min(excess, segment.usable_bytes - LARGE_ALIGN)
        if cut > 0:
            records.append(SegmentLimited(segment.handle, segment.usable_bytes - cut))
            excess -= cut
    primary.copies.leaving.clear()
    primary.copies.plan_at = 0
    return Decision(q.Done(size - wanted), records)


def _check_most(member: Member, size: int) -> None:
    """Refuse what the node may never lend, also by force."""
    most = member.figures.get("max_size_bytes")
    if most is not None and size > most:
        raise Refused(
            f"{member.name!r} would map {size:,} bytes in all, and may map {most:,} (its --max-size, or all memory of "
            "its machine); nothing was changed. Lend less, or start it with another --max-size"
        )


def _check_growing(member: Member, more: int, force: bool) -> None:
    """Refuse at once what the node would refuse, judging by its last report; the node checks again."""
    most = member.figures.get("memory_to_lend_bytes")
    if most is not None and more > most and not force:
        raise Refused(
            f"{member.name!r} would lend {more:,} bytes more, and its machine has {most:,} to lend; nothing was "
            "changed. Lend less, or use --force"
        )


def _check_shrinking(primary: Primary, node: str, less: int, now: Instant) -> None:
    """Refuse a shrink that could not end: there must be room elsewhere for the objects in the part to give up."""
    free = sum(
        primary.allocators[s.handle].free_bytes for s in primary.state.memory_segments() if _takes(primary, s, now)
    )
    if free < less:
        raise NoRoom(
            f"shrinking {node!r} by {less:,} bytes needs that much free memory for what lies there, and {free:,} are "
            "free; nothing was changed. Remove objects or add a node first"
        )


def _takes(primary: Primary, segment: Segment, now: Instant) -> bool:
    return primary.available(segment, now)


def mount_segment(primary: Primary, request: n.MountSegment, client: int, now: Instant) -> Decision:
    """Mount one more segment of a member. A retry is harmless."""
    state = primary.state
    member = primary.members.get(request.node)
    if member is None or member.boot != request.boot:
        raise UnknownNode(f"the node {request.node!r} of this boot is not registered; register first")
    name = SegmentName(request.node, request.boot, request.number)
    known = [segment for segment in state.memory_segments() if segment.name.node == request.node]
    if any(segment.name == name for segment in known):
        return Decision(q.Done(0))
    if not 0 < request.size_bytes <= MAX_OBJECT_BYTES or request.size_bytes % SMALL_ALIGN or not known:
        raise BadValue(f"a segment's size is a positive multiple of {SMALL_ALIGN} bytes; nothing was mounted")
    if request.number != len(known) or len(known) >= MAX_SEGMENTS:
        raise BadValue(
            f"segment {request.number} does not follow the {len(known)} that are mounted; nothing was mounted"
        )
    first = known[0]
    handle = state.next_segment
    member.handles.append(handle)
    mounted = SegmentMounted(handle, name, request.size_bytes, first.data_address, first.socket_path, first.host)
    return Decision(q.Done(1), [mounted])


def revoke_writes(primary: Primary, request: q.RevokeWrites, client: int, now: Instant) -> Decision:
    """End the client's grants into quarantine, and have every node refuse its bytes. It can still write to memory that
    it maps, but only to ranges it was granted: those are given to nobody until the client is gone (I11)."""
    if request.client == COPIES:
        raise BadValue("0 is no client's number; nothing was changed")
    grants = [grant.id for grant in primary.live_grants(request.client)]
    records = [GrantEnded(grant, settled=[]) for grant in grants]
    told = [command(node, "revoke_client", c.RevokeClient(request.client)) for node in primary.members]
    return Decision(q.Done(len(grants)), records, commands=told)


def revoke_clients(primary: Primary, clients: list[int]) -> Planned:
    """The end of these clients: their grants go into quarantine as by `revoke_writes`, nodes take none of their
    tickets, and no master lets them in again."""
    grants = [grant.id for client in clients for grant in primary.live_grants(client)]
    records: list[Record] = [GrantEnded(grant, settled=[]) for grant in grants]
    told = [one for node in primary.members for one in _revocations(node, clients)]
    return Planned([*records, ClientsRevoked(clients)], told)


def lately_revoked(primary: Primary, node: str) -> list[Command]:
    """For a node that an earlier primary may not have told: its last word may have been lost with it, and a ticket is
    good for longer than a failover takes."""
    return _revocations(node, list(primary.state.revoked)[-TOLD_AGAIN:])


def _revocations(node: str, clients: list[int]) -> list[Command]:
    parts = [clients[at : at + TOLD_AT_ONCE] for at in range(0, len(clients), TOLD_AT_ONCE)]
    return [command(node, "revoke_client", c.RevokeClient(part[0], part[1:])) for part in parts]
