"""Reads: which keys exist, where their bytes are, and what is known about them.

A read grants a lease, `max(lease_until, now + ttl)`, and notes the use; both are soft state, so that no read
writes a record. Beyond the share of its tenant (`lease_share`) it only notes the use. A probe (`exists`) changes
neither unless asked to, or probing would make everything unevictable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.core.catalogue.catalogue import DISK, HARD_PIN, MASKED, ON_DISK, SEVERAL, Slots
from holdfast.core.catalogue.key_index import ABSENT
from holdfast.core.objects.checks import check_keys, check_rows
from holdfast.core.objects.lease_share import leasable, may_lease
from holdfast.core.primary.decision import Decision, NextStep, Unfinished
from holdfast.core.primary.lessees import SEVERAL_LESSEES
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import LIST_SLOTS, SCALAR_BELOW, STEP_OBJECTS
from holdfast.core.state.packed_numbers import pack_sorted_ids
from holdfast.core.state.row_tables import LOCATED_TABLE, new_table
from holdfast.core.state.state import Segment, State
from holdfast.ids import MAX_KEYS, extent_of, is_reserved
from holdfast.instant import Instant
from holdfast.messages import requests as q
from holdfast.messages.records import LeasesRenewed
from holdfast.messages.rows import LocatedRow, SeenRow
from holdfast.messages.shapes import AttachTicket, MappingRight, Record, SegmentPlace

_NO_SLOTS: Slots = np.empty(0, np.intp)
_NO_ROW = bytes(LocatedRow.size_bytes)
_ABSENT_OR_PRESENT = (Decision(q.Presence(b"\0")), Decision(q.Presence(b"\1")))
"""For a probe of one key: 0.26 us with these values made once, 0.37 us with new ones for each."""


def exists(primary: Primary, request: q.Exists, client: int, now: Instant) -> Decision:
    state = primary.state
    if len(request.keys) > MAX_KEYS:
        check_keys(request.keys)
    if not (request.touch or request.use or request.without or state.away):
        found = state.catalogue.by_key.presence(request.keys)
        return _ABSENT_OR_PRESENT[found[0]] if len(found) == 1 else Decision(q.Presence(found))
    slots = readable_slots(state, request.keys, frozenset(request.without))
    presence = q.Presence(bytes([slot >= 0 for slot in slots]))
    there = np.array([slot for slot in slots if slot >= 0], np.intp)
    if request.touch:
        urgent, leased = _lease(primary, there, client, now)
        held = [slot for slot in slots if slot >= 0]
        return Decision(presence, _renewal_of(primary, held, leased), urgent)
    if request.use:
        state.catalogue.last_used[there] = now
        state.catalogue.renewed[there] = 1
        return Decision(presence, _renewal_of(primary, there.tolist(), bytes(len(there))))
    return Decision(presence)


def _lease(primary: Primary, slots: Slots, client: int, now: Instant) -> tuple[bool, bytes]:
    """Lease these objects. (Was one of the leases about to end, or had it ended? One byte per object: 1 if it is leased
    now. Empty: all are.)"""
    catalogue = primary.state.catalogue
    rules = primary.rules
    which = leasable(primary, slots, now)
    if which is not None:
        catalogue.last_used[slots] = now
        catalogue.renewed[slots] = 1
        slots = slots[which]
    before = catalogue.lease_until[slots]
    lessee, held_by = primary.lessees.number_of(client), catalogue.lessees[slots]
    catalogue.lessees[slots] = np.where((before <= now) | (held_by == lessee), lessee, SEVERAL_LESSEES)
    catalogue.lease_until[slots] = np.maximum(before, now + rules.lease_ttl_ms)
    catalogue.last_used[slots] = now
    catalogue.renewed[slots] = 1
    urgent = bool(len(slots)) and int(before.min()) < now + rules.urgent_renewal_ms
    return urgent, b"" if which is None else which.tobytes()


_LEASED, _URGENT = 1, 2


def _lease_one(primary: Primary, slot: int, client: int, now: Instant) -> int:
    """Like `_lease`, for one object and without an array. _LEASED, also _URGENT, or 0: it gets no lease."""
    catalogue, rules = primary.state.catalogue, primary.rules
    if not may_lease(primary, slot, now):
        catalogue.used_at[slot] = now
        catalogue.renewed_at[slot] = 1
        return 0
    before = catalogue.lease_at[slot]
    lessee, lessee_at = primary.lessees.number_of(client), catalogue.lessee_at
    lessee_at[slot] = lessee if before <= now or lessee_at[slot] == lessee else SEVERAL_LESSEES
    until = now + rules.lease_ttl_ms
    if before < until:
        catalogue.lease_at[slot] = until
    catalogue.used_at[slot] = now
    catalogue.renewed_at[slot] = 1
    return _LEASED | _URGENT if before < now + rules.urgent_renewal_ms else _LEASED


def _renewal_of(primary: Primary, slots: list[int], leased: bytes = b"") -> Sequence[Record]:
    """The records of these renewals, if every renewal is logged. `leased`: 0 for a use without a lease; empty if all
    are leased."""
    if primary.rules.lease_sync != "every":
        return ()
    id_at = primary.state.catalogue.id_at
    records = []
    for lease_ms, wanted in ((primary.rules.lease_ttl_ms, 1), (0, 0)):
        ids = {
            id_at[slot]
            for slot, is_leased in zip(slots, leased or b"\1" * len(slots), strict=True)
            if slot >= 0 and is_leased == wanted
        }
        if ids:
            records.append(LeasesRenewed(pack_sorted_ids(sorted(ids)), lease_ms))
    return records


def locate(primary: Primary, request: q.Locate, client: int, now: Instant) -> Decision:
    if len(request.keys) == 1 and (plain := _locate_one(primary, request, client, now)) is not None:
        return plain
    check_keys(request.keys)
    slots = readable_slots(primary.state, request.keys)
    rows, urgent, leased = (_few_rows if len(slots) < SCALAR_BELOW else _many_rows)(primary, slots, client, now)
    catalogue = primary.state.catalogue
    others: list[tuple[int, int, int]] = []
    if catalogue.others:
        for i, slot in enumerate(slots):
            if slot >= 0 and catalogue.flags_at[slot] & SEVERAL:
                others.extend((i, place.segment, place.offset) for place in catalogue.others[slot])
    if catalogue.on_disk:
        _note_disk_hits(primary, slots)
    located = _located(primary, rows, leased, others)
    if request.tickets:
        located.tickets = primary.tickets.to_read(client, rows, others, now)
    return Decision(located, _renewal_of(primary, slots, leased), urgent)


def _located(primary: Primary, rows: bytes, leased: bytes, others: list[tuple[int, int, int]]) -> q.Located:
    """The reply. `leased`: one byte per key, 0 if its object got no lease; empty if all did."""
    ttl_ms, topology = primary.rules.lease_ttl_ms, primary.state.topology
    if not leased:
        return q.Located(rows, ttl_ms, topology, others)
    return q.Located(rows, 0, topology, others, leased=leased, leased_ms=ttl_ms)


def _locate_one(primary: Primary, request: q.Locate, client: int, now: Instant) -> Decision | None:
    """Fast path for the common case: one object with one replica, in memory, and renewals that are not logged."""
    state, rules = primary.state, primary.rules
    catalogue = state.catalogue
    slot = catalogue.by_key.slot_of(request.keys[0])
    if slot < 0 or catalogue.flags_at[slot] & (SEVERAL | ON_DISK) or rules.lease_sync == "every":
        return None
    leased = _lease_one(primary, slot, client, now)
    size = catalogue.size_at[slot]
    row = LocatedRow.pack(
        catalogue.id_at[slot],
        catalogue.segment_at[slot],
        catalogue.offset_at[slot],
        size,
        catalogue.checksum_at[slot],
    )
    counts = primary.counts
    counts.hits += 1
    counts.hit_bytes += size
    located = q.Located(row, rules.lease_ttl_ms if leased else 0, state.topology)
    if request.tickets:
        located.tickets = primary.tickets.to_read(client, row, (), now)
    return Decision(located, (), leased > _LEASED)


def readable_slots(state: State, keys: list[str], without: frozenset[int] = frozenset()) -> list[int]:
    """Like `slots_of`, but an object counts as absent if all its replicas are on disks that are away, or all are in
    the segments `without`."""
    slots = state.catalogue.by_key.slots_of(keys)
    if without:
        return [slot if slot >= 0 and _is_outside(state, slot, without) else -1 for slot in slots]
    if not state.away:
        return slots
    return [slot if slot >= 0 and is_readable(state, slot) else -1 for slot in slots]


def is_readable(state: State, slot: int) -> bool:
    if not state.catalogue.flags_at[slot] & ON_DISK:
        return True
    return any(place.segment not in state.away for place in state.catalogue.replicas(slot))


def _is_outside(state: State, slot: int, without: frozenset[int]) -> bool:
    places = state.catalogue.replicas(slot)
    return any(place.segment not in without and place.segment not in state.away for place in places)


def _note_disk_hits(primary: Primary, slots: list[int]) -> None:
    catalogue = primary.state.catalogue
    for slot in slots:
        if slot >= 0 and catalogue.flags_at[slot] & ON_DISK:
            primary.copies.hit_on_disk(catalogue.id_at[slot])


def _few_rows(primary: Primary, slots: list[int], client: int, now: Instant) -> tuple[bytes, bool, bytes]:
    """The rows, whether a renewal was urgent, and which objects are leased (empty: all). Likewise `_many_rows`."""
    catalogue = primary.state.catalogue
    rows = b""
    given = bytearray()
    for slot in slots:
        if slot < 0:
            rows += _NO_ROW
            given.append(_LEASED)
            continue
        given.append(_lease_one(primary, slot, client, now))
        size = catalogue.size_at[slot]
        rows += LocatedRow.pack(
            catalogue.id_at[slot],
            catalogue.segment_at[slot],
            catalogue.offset_at[slot],
            size,
            catalogue.checksum_at[slot],
        )
        primary.counts.hits += 1
        primary.counts.hit_bytes += size
    primary.counts.misses += slots.count(ABSENT)
    return rows, max(given, default=0) > _LEASED, bytes(map(bool, given)) if 0 in given else b""


def _many_rows(primary: Primary, slots: list[int], client: int, now: Instant) -> tuple[bytes, bool, bytes]:
    catalogue = primary.state.catalogue
    at = np.array(slots, np.intp)
    there = None if min(slots) >= 0 else np.flatnonzero(at >= 0)
    if there is not None:
        at = at[there]
    urgent, leased = _lease(primary, at, client, now)
    rows = new_table(LOCATED_TABLE, len(at))
    rows["id"] = catalogue.ids.take(at)
    rows["segment"] = catalogue.segments.take(at)
    rows["offset"] = catalogue.offsets.take(at)
    rows["size"] = catalogue.sizes.take(at)
    rows["checksum"] = catalogue.checksums.take(at)
    primary.counts.hits += len(at)
    primary.counts.hit_bytes += int(rows["size"].sum())
    primary.counts.misses += len(slots) - len(at)
    if there is None:
        return rows.tobytes(), urgent, leased
    every = new_table(LOCATED_TABLE, len(slots))
    every[there] = rows
    if leased:
        of_all = np.ones(len(slots), np.uint8)
        of_all[there] = np.frombuffer(leased, np.uint8)
        leased = of_all.tobytes()
    return every.tobytes(), urgent, leased


class RenewalStep(NextStep, frozen=True, gc=False):
    """Where a renewal of many leases goes on: behind those that it has answered."""

    request: q.RenewLeases
    so_far: q.Presence


def renew_leases(primary: Primary, request: q.RenewLeases, client: int, now: Instant) -> Decision:
    check_rows(SeenRow, request.rows)
    return renewal_step(primary, RenewalStep(request, q.Presence(b"", primary.rules.lease_ttl_ms)), client, now)


def renewal_step(primary: Primary, step: RenewalStep, client: int, now: Instant) -> Decision:
    """If the same id is still at the same place, every byte read there was right: ids are never reused."""
    rows, so_far = step.request.rows, step.so_far
    first = len(so_far.found) * SeenRow.size_bytes
    some = rows[first : first + STEP_OBJECTS * SeenRow.size_bytes]
    catalogue = primary.state.catalogue
    found = bytearray(so_far.found)
    renewed: list[int] = []
    given = bytearray()
    for oid, segment, offset in SeenRow.iter_unpack(some):
        slot = catalogue.by_id.slot_of(oid)
        # The memory of a masked object may be granted to a writer at this very moment.
        visible = slot >= 0 and not catalogue.flags_at[slot] & MASKED
        there = visible and any((p.segment, p.offset) == (segment, offset) for p in catalogue.replicas(slot))
        if visible and not there and (entry := primary.state.moved.get((segment, offset))) is not None:
            # It has moved, but its old range stays in quarantine for those who read it there.
            there = primary.state.quarantine[entry].moved == oid
            if there:
                until = now + primary.rules.lease_ttl_ms
                primary.release_at[entry] = max(primary.release_at[entry], until)
        if there:
            # It is in use wherever it is read: none of its replicas is evicted or removed meanwhile (I8).
            given.append(_lease_one(primary, slot, client, now))
            renewed.append(slot)
        found.append(there)
    # One duration for all of them: if one got no lease, the reader relies on none, and asks again.
    ttl_ms = 0 if 0 in given else min(so_far.lease_ttl_ms, primary.rules.lease_ttl_ms)
    urgent = max(given, default=0) > _LEASED
    presence = q.Presence(bytes(found), ttl_ms)
    is_last = len(found) == SeenRow.count(rows)
    reply = presence if is_last else Unfinished(RenewalStep(step.request, presence))
    return Decision(reply, _renewal_of(primary, renewed, bytes(map(bool, given))), urgent)


def list_keys(primary: Primary, request: q.ListKeys, client: int, now: Instant) -> Decision:
    """Without a prefix, those of the default tenant: the prefix of a tenant's listing begins with its namespace."""
    named = primary.state.catalogue.keys
    stop = request.cursor + LIST_SLOTS
    slots = named.slots_with(request.prefix.encode(), request.cursor, stop) if request.cursor >= 0 else _NO_SLOTS
    keys = named.keys_of(slots)
    if primary.state.tenants and not request.prefix:
        keys = [key for key in keys if not is_reserved(key)]
    if primary.state.mask:
        keys = [key for key in keys if primary.state.mask.slot_of(key) < 0]
    return Decision(q.KeyList(keys, stop if stop < len(named) else 0))


class StatStep(NextStep, frozen=True, gc=False):
    request: q.Stat
    so_far: list[q.ObjectStat | None]


def stat(primary: Primary, request: q.Stat, client: int, now: Instant) -> Decision:
    check_keys(request.keys)
    return stat_step(primary, StatStep(request, []), client, now)


def stat_step(primary: Primary, step: StatStep, client: int, now: Instant) -> Decision:
    keys, done = step.request.keys, len(step.so_far)
    stats = step.so_far + [stat_of(primary, key, now) for key in keys[done : done + STEP_OBJECTS]]
    return Decision(q.Stats(stats) if len(stats) == len(keys) else Unfinished(StatStep(step.request, stats)))


def stat_of(primary: Primary, key: str, now: Instant) -> q.ObjectStat | None:
    state = primary.state
    catalogue = state.catalogue
    slot = catalogue.by_key.slot_of(key)
    if slot < 0:
        return None
    size = catalogue.size_at[slot]
    replicas = [
        q.Replica(
            "DISK" if place.kind == DISK else "MEMORY",
            state.segments[place.segment].name.node,
            place.segment,
            place.offset,
            extent_of(size),
        )
        for place in catalogue.replicas(slot)
    ]
    soft_until = catalogue.soft_pin_until.get(slot)
    if soft_until is not None:
        soft_until = max(soft_until, catalogue.used_at[slot] + state.soft_pin_ttl_ms)
    return q.ObjectStat(
        key=key,
        id=catalogue.id_at[slot],
        size_bytes=size,
        checksum=catalogue.checksum_at[slot],
        lease_left_ms=max(0, catalogue.lease_at[slot] - now),
        unused_ms=max(0, now - catalogue.used_at[slot]),
        soft_pin_left_ms=max(0, soft_until - now) if soft_until is not None else 0,
        hard_pin=bool(catalogue.flags_at[slot] & HARD_PIN),
        replicas=replicas,
    )


class ExplainStep(NextStep, frozen=True, gc=False):
    request: q.Explain
    so_far: q.Explanations


def explain(primary: Primary, request: q.Explain, client: int, now: Instant) -> Decision:
    check_keys(request.keys)
    return explain_step(primary, ExplainStep(request, q.Explanations([], [])), client, now)


def explain_step(primary: Primary, step: ExplainStep, client: int, now: Instant) -> Decision:
    keys, so_far = step.request.keys, step.so_far
    some = keys[len(so_far.stats) : len(so_far.stats) + STEP_OBJECTS]
    stats = [stat_of(primary, key, now) for key in some]
    reasons = [
        _why_kept(primary, known) if known is not None else [_why_gone(primary, key, now)]
        for key, known in zip(some, stats, strict=True)
    ]
    told = q.Explanations(so_far.stats + stats, so_far.reasons + reasons)
    return Decision(told if len(told.stats) == len(keys) else Unfinished(ExplainStep(step.request, told)))


def _why_kept(primary: Primary, known: q.ObjectStat) -> list[str]:
    reasons = [f"last used {known.unused_ms:,} ms ago; eviction takes the longest unused first"]
    if known.hard_pin:
        reasons.append("hard-pinned: never evicted, removed only with force")
    if known.lease_left_ms:
        reasons.append(f"leased to a reader for {known.lease_left_ms:,} ms more: not evicted or removed until then")
    if known.soft_pin_left_ms:
        allowed = "is evicted after all others" if primary.rules.evict_soft_pinned else "is not evicted"
        reasons.append(f"soft-pinned for {known.soft_pin_left_ms:,} ms more: {allowed}")
    if not (known.hard_pin or known.lease_left_ms or known.soft_pin_left_ms):
        watermark = primary.rules.high_watermark
        reasons.append(f"may be evicted when memory is over {watermark:.0%} full or a put finds no room")
    nodes = ", ".join(_where(primary, replica) for replica in known.replicas)
    reasons.append(f"{len(known.replicas)} replica(s), on {nodes}")
    return reasons


def _where(primary: Primary, replica: q.Replica) -> str:
    if replica.kind == "MEMORY":
        return replica.node
    away = primary.state.segments[replica.segment].away
    return f"the disk of {replica.node}" + (", which is away: it cannot be read until that is back" if away else "")


_GONE = {
    "REMOVE": "it was removed by its key",
    "REMOVE_BY_REGEX": "it was removed by a pattern",
    "REMOVE_ALL": "it was removed with all others",
    "UPSERT": "it was replaced by an upsert",
    "UNMOUNT_SEGMENT": "the node with its last replica went away",
    "EVICTED": "it was evicted to make room",
    "FILE_LOST": "its last replica was a file on a disk, which was found gone or spoiled",
    "MISMATCH": "after a restore its bytes were not the ones that were put",
}


def _why_gone(primary: Primary, key: str, now: Instant) -> str:
    last = primary.state.departed.last(key)
    if last is None:
        return "no object is stored under this key, and none that went recently had it"
    cause, when = last
    return f"{_GONE.get(cause, cause)}, {max(0, now - when):,} ms ago"


def list_segments(primary: Primary, request: q.ListSegments, client: int, now: Instant) -> Decision:
    segments = [
        SegmentPlace(
            handle=segment.handle,
            name=segment.name,
            size_bytes=segment.size_bytes,
            data_address=segment.data_address,
            socket_path=segment.socket_path,
            host=segment.host,
            used_bytes=primary.used_on(segment),
            available=primary.available(segment, now),
            kind=segment.kind,
            unverified=segment.handle in primary.state.unverified,
            attach=_attach_ticket(primary, request.attach, segment, client, now),
        )
        for segment in primary.state.segments.values()
        if not segment.away
    ]
    return Decision(q.SegmentList(primary.state.topology, segments, max(0, primary.trusted_at - now)))


def _attach_ticket(
    primary: Primary, right: MappingRight, segment: Segment, client: int, now: Instant
) -> AttachTicket | None:
    """A disk cannot be mapped; a client without the right is given no way to."""
    if segment.kind == DISK or right is MappingRight.NONE:
        return None
    return primary.tickets.to_attach(client, segment.handle, right is MappingRight.WRITE, now)
