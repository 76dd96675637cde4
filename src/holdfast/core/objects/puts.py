"""Puts: memory is granted, filled by the client, and committed under a key; the first commit of a key wins.

A grant holds no key. Its client names it, so a repeated request gets the same grant, and a commit is idempotent by
(grant, offset). The memory that commits leave unused is free again when the writer says that it is done (I11).
"""

from __future__ import annotations

import msgspec
import numpy as np

from holdfast.core.catalogue.catalogue import Slots, aligns_of, extents_of
from holdfast.core.catalogue.key_index import ABSENT
from holdfast.core.objects.checks import check_keys, check_rows, check_sizes, checked_sizes
from holdfast.core.objects.placement import (
    Wanted,
    available_nodes,
    check_possible,
    copies_to_place,
    place,
    place_most,
    rounded,
)
from holdfast.core.objects.quotas import NOTHING, Coming, are_limited, check_grant, fits, make_way
from holdfast.core.objects.reads import readable_slots
from holdfast.core.objects.room import RoomSought, lengths_to_try, make_room
from holdfast.core.primary.decision import PARKED, Command, Decision
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import MAX_GRANTS_PER_CLIENT, NAMED_EVICTIONS, PREFETCH_SHARE, SCALAR_BELOW
from holdfast.core.state.apply import runs_of
from holdfast.core.state.grants import Grant
from holdfast.core.state.packed_numbers import pack_sorted_ids
from holdfast.core.state.row_tables import PUT_TABLE, table_of
from holdfast.core.state.state import State
from holdfast.errors import BadRequest, BadValue, GrantRefused, GrantTimedOut, NodeAway, Settling, WindowFull
from holdfast.ids import (
    FIRST_FREE,
    LARGE_ALIGN,
    LARGE_FROM,
    MAX_KEY_BYTES,
    MAX_REPLICAS,
    SMALL_ALIGN,
    GrantId,
    KeysOf,
    SegmentHandle,
    are_of,
    extent_of,
    is_reserved,
    object_id,
)
from holdfast.instant import Instant
from holdfast.messages import commands as c
from holdfast.messages import requests as q
from holdfast.messages.records import GrantCleared, GrantEnded, ObjectsCommitted, RangesFreed, RangesGranted
from holdfast.messages.rows import PutRow, unpack_sizes
from holdfast.messages.shapes import Range, Record
from holdfast.wire.mac import node_key, range_mac

DURABILITIES = ("", "durable", "standby", "memory")
_STORED = q.Committed(b"\1")


def _own(grant: GrantId, client: int) -> GrantId:
    if grant.client != client:
        raise GrantRefused("the grant belongs to another client; nothing was changed")
    return grant


def grant_ranges(primary: Primary, request: q.GrantRanges, client: int, now: Instant) -> Decision:
    state = primary.state
    sizes, taken = _checked(primary, request, client)
    records = _finish(primary, request.finished, client, settled=True)
    if not sizes:
        return Decision(q.Granted(0, [], state.topology, primary.rules.grant_timeout_ms, taken), records)
    length = _extent_of_all(sizes)
    wanted = _wanted(primary, request, sizes, length, now)
    known = state.grants.get(request.grant)
    if known is not None:
        if known.length < wanted.least:
            raise GrantRefused("the grant was given for less, and cannot grow; take another. Nothing was changed")
        if known.uncleared:
            clearance = primary.former_tenants.awaited.get(known.id)
            if clearance is None:
                raise GrantRefused("the memory of the grant cannot be cleared; take another grant. Nothing was changed")
            if clearance.left_bytes:
                return Decision(PARKED, records)
            records.append(GrantCleared(known.id))
        return Decision(_granted(primary, known.id, known.length, list(known.ranges), taken), records)
    check_possible(
        primary, wanted.least, extent_of(max(sizes)) if request.keys else wanted.least, request.replicas, now
    )
    if beyond := _beyond_window(primary, client, wanted.length * request.replicas, request.finished):
        raise WindowFull(beyond)
    if not primary.knows_clearance:
        raise Settling(
            "this master does not know yet which log version the others read, and so whether memory that another "
            "tenant had can be cleared; nothing was granted. Try again"
        )
    if are_limited(primary, request.keys):
        _check_quota(primary, request, length, taken, now)
    sought = _room(primary, request, wanted, now)
    if sought.room is None:
        # Parked until leases end, nodes come back, records become durable, or the next step has evicted more.
        goes_on = sought.freed or request.grant in primary.claims
        return Decision(PARKED, [*records, *sought.records], freed=goes_on, given_up=sought.given_up)
    granted, record = _give(primary, request, sought.room.length, sought.room.places, taken)
    ranges = primary.needs_clearance(record.ranges, record.length, client)
    told = _clearance(primary, record, ranges, client) if ranges else []
    return Decision(
        PARKED if ranges else granted,
        [*records, *sought.records, msgspec.structs.replace(record, uncleared=True) if ranges else record],
        freed=sought.freed,
        given_up=sought.given_up,
        commands=told,
    )


def _clearance(primary: Primary, record: RangesGranted, ranges: list[Range], client: int) -> list[Command]:
    """What nodes must do before the client may have these ranges, because they were another tenant's."""
    segments = primary.state.segments
    issued = primary.tickets.issued() + 1  # All proofs so far were given before the record.
    orders = [c.Clear(segments[one.segment].name, one.offset, record.length, issued) for one in ranges]
    return primary.former_tenants.clear(record.grant, primary.tenant_of(client), orders)


def _check_quota(primary: Primary, request: q.GrantRanges, length: int, taken: bytes, now: Instant) -> None:
    keys = request.keys
    if any(taken):
        keys = [key for key, there in zip(keys, taken, strict=True) if not there]
    coming = Coming(keys, length * request.replicas, spared=request.keys)
    check_grant(primary, coming, _replaced(primary, keys) if request.upsert else NOTHING, now)


def _wanted(primary: Primary, request: q.GrantRanges, sizes: tuple[int, ...], length: int, now: Instant) -> Wanted:
    """The room to look for, of `length` for all of them. If the client accepts less, ask for at most what a segment can
    hold."""
    least = length
    if request.least_bytes > 0:
        limit = max((segment.usable_bytes for segment in primary.state.memory_segments()), default=length)
        least = min(length, max(extent_of(request.least_bytes), extent_of(max(sizes)) if request.keys else 0))
        length = max(least, min(length, rounded(limit)))
    copies = copies_to_place(primary, request.replicas, now)
    return Wanted(length, least, copies, request.prefer, bool(request.keys))


def _room(primary: Primary, request: q.GrantRanges, wanted: Wanted, now: Instant) -> RoomSought:
    """Find free memory, or evict to make some. Short pieces are taken only if there are no better ones."""
    if available_nodes(primary, now) < wanted.replicas:
        return RoomSought()  # Evictions would not help: there are too few nodes.
    if request.grant in primary.claims:
        return make_room(primary, request.grant, wanted, [wanted.least], now)
    if (room := place_most(primary, wanted, wanted.floor, now)) is not None:
        return RoomSought(room)
    lengths = lengths_to_try(primary, wanted)
    if wanted.least >= wanted.floor:
        return make_room(primary, request.grant, wanted, lengths, now)
    first = make_room(primary, request.grant, wanted, lengths, now, last_resort=False)
    if first.room is not None or first.records or primary.unlent or request.grant in primary.claims:
        return first  # Where windows are being emptied for it, there is its room, and nowhere else.
    if (room := place_most(primary, wanted, wanted.least, now)) is not None:
        return RoomSought(room, (), first.freed, first.given_up)
    last = make_room(primary, request.grant, wanted, [wanted.least], now)
    return RoomSought(last.room, last.records, first.freed or last.freed, [*first.given_up, *last.given_up])


def _grant_prefetched(
    primary: Primary, request: q.GrantRanges, ending: list[GrantId], client: int, now: Instant
) -> tuple[q.Granted | None, list[Record]]:
    """Prefetched grant for expected puts, given only if it is a small part of the room under the watermark: nothing is
    evicted for it, and it takes next to nothing from current puts."""
    if request.keys or request.finished:
        raise BadRequest("what is asked for ahead names no keys and ends no grants; nothing was stored")
    sizes, _ = _checked(primary, request, client)
    length = extent_of(sizes[0])
    known = primary.state.grants.get(request.grant)
    if known is not None:
        fits_in = known.length >= length and not known.uncleared
        return (_granted(primary, known.id, known.length, list(known.ranges)) if fits_in else None), []
    if not primary.knows_clearance:
        return None, []
    if primary.state.mask:
        # The ranges may hold an unlogged eviction that the commit drops as well: two records would name it.
        return None, []
    room = primary.free_bytes - (1 - primary.rules.high_watermark) * primary.capacity_bytes
    everywhere = length * request.replicas
    if everywhere * PREFETCH_SHARE > room or _beyond_window(primary, client, everywhere, ending):
        return None, []
    places = place(primary, length, copies_to_place(primary, request.replicas, now), request.prefer, now)
    if places is None:
        return None, []
    granted, record = _give(primary, request, length, places)
    if primary.needs_clearance(record.ranges, length, client):
        columns = [(one.segment, np.array([one.offset]), np.array([length])) for one in record.ranges]
        primary.reclaim(columns)
        return None, []
    return granted, [record]


def _give(
    primary: Primary, request: q.GrantRanges, length: int, places: list[tuple[SegmentHandle, int]], taken: bytes = b""
) -> tuple[q.Granted, RangesGranted]:
    writers = {attached.segment: attached.writer for attached in request.attached}
    ranges = [Range(segment, offset, writers.get(segment, 0)) for segment, offset in places]
    wanted = request.replicas if len(ranges) < request.replicas else 0
    record = RangesGranted(request.grant, length, ranges, *evicted_there(primary, ranges, length), wanted)
    return _granted(primary, request.grant, length, ranges, taken), record


def evicted_there(primary: Primary, ranges: list[Range], length: int) -> tuple[bytes, bool]:
    """How the grant's record reports unlogged evictions in these ranges: (their packed ids, or all that lie there)."""
    mask, catalogue = primary.state.mask, primary.state.catalogue
    if not mask:
        return b"", False
    gone = {slot for one in ranges for slot in mask.over(catalogue, one.segment, one.offset, length)}
    if len(gone) > NAMED_EVICTIONS:
        return b"", True
    return pack_sorted_ids(sorted(catalogue.id_at[slot] for slot in gone)), False


def _checked(primary: Primary, request: q.GrantRanges, client: int) -> tuple[tuple[int, ...], bytes]:
    """(sizes to find room for, one byte per key: 1 if the key needs no put)"""
    _own(request.grant, client)
    if not 1 <= request.replicas <= MAX_REPLICAS:
        raise BadValue(f"{request.replicas} replicas: from 1 to {MAX_REPLICAS} are possible; nothing was stored")
    if not request.keys:
        return checked_sizes(request.sizes, 1), b""
    check_keys(request.keys)
    sizes = checked_sizes(request.sizes, len(request.keys))
    if request.upsert:
        return sizes, bytes(len(sizes))
    taken = there_already(primary, request.keys)
    if not any(taken):
        return sizes, taken
    return tuple(size for size, there in zip(sizes, taken, strict=True) if not there), taken


def there_already(primary: Primary, keys: list[str]) -> bytes:
    """One byte per key: 1 if it needs no put. An object that is only on disks that are away is unreadable, and gives
    way to a put."""
    if primary.state.away:
        return bytes([slot >= 0 for slot in readable_slots(primary.state, keys)])
    return primary.state.catalogue.by_key.presence(keys)


def _extent_of_all(sizes: tuple[int, ...]) -> int:
    if len(sizes) < SCALAR_BELOW:
        return sum(map(extent_of, sizes))
    return int(extents_of(np.array(sizes, np.int64)).sum())


def least_wanted_bytes(request: q.GrantRanges) -> int:
    """Bytes that must be granted on each node, as far as can be told without looking the keys up."""
    length = sum(map(extent_of, unpack_sizes(request.sizes)))
    return min(length, extent_of(request.least_bytes)) if request.least_bytes > 0 else length


def _granted(primary: Primary, grant: GrantId, length: int, ranges: list[Range], taken: bytes = b"") -> q.Granted:
    """The reply. It carries a MAC for each range that is written over TCP; the log need not hold the MAC."""
    state = primary.state
    vouched = [
        one
        if one.writer
        else Range(
            one.segment,
            one.offset,
            0,
            _mac(primary.state, grant, one, length, primary.tickets.issued()),
        )
        for one in ranges
    ]
    return q.Granted(length, vouched, state.topology, primary.rules.grant_timeout_ms, taken)


def _mac(state: State, grant: GrantId, one: Range, length: int, issued: int) -> bytes:
    name = state.segments[one.segment].name
    return range_mac(node_key(state.secret, name.node), name, grant, one.offset, length, issued)


def _beyond_window(primary: Primary, client: int, length: int, ending: list[GrantId]) -> str:
    """Why this client may not hold `length` more bytes, not counting the grants it ends now; empty if it may."""
    live = [grant for grant in primary.live_grants(client) if grant.id not in ending]
    left = sum(grant.left_bytes * len(grant.ranges) for grant in live)
    if left and left + length > primary.rules.write_window_bytes:
        return (
            f"this client holds {left:,} granted bytes that it has not committed, and may hold "
            f"{primary.rules.write_window_bytes:,}; nothing was granted. Finish or return some first"
        )
    if len(live) >= MAX_GRANTS_PER_CLIENT:
        return f"this client holds {len(live):,} grants, the most there may be; return some first"
    return ""


def extend_grants(primary: Primary, request: q.ExtendGrants, client: int, now: Instant) -> Decision:
    extended = 0
    for grant in request.grants:
        if _own(grant, client) in primary.grant_deadline:
            primary.grant_deadline[grant] = now + primary.rules.grant_timeout_ms
            extended += 1
    return Decision(q.Done(extended))


def return_grants(primary: Primary, request: q.ReturnGrants, client: int, now: Instant) -> Decision:
    return Decision(q.Done(len(request.grants)), _finish(primary, request.grants, client, request.settled))


def _finish(primary: Primary, grants: list[GrantId], client: int, settled: bool) -> list[Record]:
    """End grants as their writer asks. If settled, this also ends the quarantine of a grant that had timed out."""
    records: list[Record] = []
    ended: set[GrantId] = set()
    for grant in dict.fromkeys(grants):
        if (live := primary.state.grants.get(_own(grant, client))) is not None:
            records.append(GrantEnded(grant, [place.segment for place in live.ranges] if settled else []))
        else:
            ended.add(grant)
    if settled and ended and (entries := [e for e, one in primary.state.quarantine.items() if one.grant in ended]):
        records.append(RangesFreed(entries))
    return records


def commit_puts(primary: Primary, request: q.CommitPuts, client: int, now: Instant) -> Decision:
    plain = _plain_commit(primary, request, client) if len(request.keys) == 1 else None
    if plain is not None and request.ahead is None and not request.finished:
        return Decision(_STORED, (plain,))
    if plain is not None:
        committed, records = _STORED, [plain, *_finish(primary, request.finished, client, settled=True)]
    else:
        committed, records = _commit(primary, request, client, now)
    # If all keys were taken, the next ones may be too: the client had better ask by key before it writes anything.
    if request.ahead is None or 1 not in committed.stored:
        return Decision(committed, records)
    if request.ahead.grant in (request.grant, *request.finished):
        raise BadRequest("what is asked for ahead is a grant that is written to or ended by this; nothing was stored")
    granted, more = _grant_prefetched(primary, request.ahead, request.finished, client, now)
    return Decision(q.Committed(committed.stored, granted), [*records, *more])


def _commit(primary: Primary, request: q.CommitPuts, client: int, now: Instant) -> tuple[q.Committed, list[Record]]:
    state = primary.state
    grant = state.grants.get(_own(request.grant, client))
    check_keys(request.keys)
    _check_namespace(primary, request.keys, client)
    check_rows(PutRow, request.rows, len(request.keys))
    if request.durability not in DURABILITIES:
        raise BadValue(
            f"durability {request.durability!r} is none of 'durable', 'standby' and 'memory'; nothing was stored"
        )
    if grant is None:
        raise GrantTimedOut("the grant has ended; nothing was stored. Put again with a new grant")
    if grant.uncleared:
        raise GrantRefused("the memory of the grant is not cleared, and nobody was given it; nothing was stored")
    if not request.keys:
        return q.Committed(b""), _finish(primary, request.finished, client, settled=True)
    _check_row_sizes(request.rows)
    fresh, stored = _sort_out(primary, grant, request)
    records: list[Record] = []
    if fresh:
        # Only for new objects: the first attempt of a retried commit was made while the node was there.
        _check_nodes(primary, grant)
        whole = len(fresh) == len(request.keys)
        rows = request.rows if whole else PutRow.select(request.rows, fresh)
        keys = request.keys if whole else [request.keys[i] for i in fresh]
        gives_way = request.upsert or state.mask or state.away
        if are_limited(primary, keys, request.hard_pin):
            size = int(extents_of(table_of(PUT_TABLE, rows)["size"]).sum()) * max(grant.wanted, len(grant.ranges))
            leaving = _replaced(primary, keys) if gives_way else NOTHING
            records += make_way(primary, Coming(keys, size, request.hard_pin, request.keys), leaving, now)
        replaced, leased = _giving_way(primary, keys, now) if gives_way else (b"", b"")
        primary.counts.stored += len(keys)
        primary.counts.stored_bytes += _bytes_in(rows)
        records.append(
            ObjectsCommitted(
                grant=grant.id,
                first_id=object_id(state.epoch, state.next_counter),
                keys=keys,
                rows=rows,
                soft_pin=request.soft_pin,
                hard_pin=request.hard_pin,
                replaced=replaced,
                leased=leased,
            )
        )
    if request.finished:
        records += _finish(primary, request.finished, client, settled=True)
    return q.Committed(bytes(stored)), records


def _check_nodes(primary: Primary, grant: Grant) -> None:
    """Refuse a put into memory that this primary knows to be lost."""
    if gone := primary.seen_gone(grant.ranges):
        raise NodeAway(
            f"the connection of node {gone!r}, where the bytes were written, has ended; nothing was stored. Put again "
            "with a grant elsewhere"
        )


def _plain_commit(primary: Primary, request: q.CommitPuts, client: int) -> ObjectsCommitted | None:
    """Fast path for the common case: one object, a new key, an aligned and unused piece of a live grant. None if the
    general path is needed."""
    state = primary.state
    key = request.keys[0]
    grant = state.grants.get(request.grant)
    if grant is None or grant.id.client != client or len(request.rows) != PutRow.size_bytes:
        return None
    offset, size, _ = PutRow.unpack_one(request.rows)
    align = SMALL_ALIGN if size < LARGE_FROM else LARGE_ALIGN
    end = offset - (-size // align) * align
    if (
        request.upsert
        or request.durability not in DURABILITIES
        or state.mask
        or state.away
        or not 0 < len(key) <= MAX_KEY_BYTES // 4
        or (key < FIRST_FREE and not key.startswith(primary.namespaces.get(client, FIRST_FREE)) and is_reserved(key))
        or size == 0
        or offset % align
        or grant.uncleared
        or end > grant.length
        or grant.taken.overlaps(offset, end)
        or primary.seen_gone(grant.ranges)
        or state.catalogue.by_key.slot_of(key) != ABSENT
        or (
            state.tenants.any_limits
            and not fits(primary, key, (end - offset) * max(grant.wanted, len(grant.ranges)), request.hard_pin)
        )
    ):
        return None
    counts = primary.counts
    counts.stored += 1
    counts.stored_bytes += size
    first_id = object_id(state.epoch, state.next_counter)
    return ObjectsCommitted(grant.id, first_id, request.keys, request.rows, request.soft_pin, request.hard_pin)


def _check_namespace(primary: Primary, keys: list[str], client: int) -> None:
    """Refuse to store anything in a namespace that is not the client's own, whoever asks for it (I20)."""
    if type(keys) is KeysOf or (keys and min(keys) < FIRST_FREE):
        own = primary.namespaces.get(client, FIRST_FREE)
        if keys and not are_of(own, keys) and any(is_reserved(key) and not key.startswith(own) for key in keys):
            raise BadValue("a key begins with \\x01, which is reserved; nothing was stored")


def _bytes_in(rows: bytes) -> int:
    if PutRow.count(rows) < SCALAR_BELOW:
        return sum(size for _, size, _ in PutRow.iter_unpack(rows))
    return int(table_of(PUT_TABLE, rows)["size"].sum())


def _check_row_sizes(rows: bytes) -> None:
    if PutRow.count(rows) < SCALAR_BELOW:
        check_sizes([size for _, size, _ in PutRow.iter_unpack(rows)])
    else:
        sizes = table_of(PUT_TABLE, rows)["size"]
        check_sizes((int(sizes.min()), int(sizes.max())))


def _sort_out(primary: Primary, grant: Grant, request: q.CommitPuts) -> tuple[list[int], bytearray]:
    """(indices to commit now, one byte per key for the reply)"""
    keys = request.keys
    if len(set(keys)) != len(keys):
        raise BadRequest("a key is named twice in one commit; nothing was stored")
    stored = bytearray(b"\1") * len(keys)
    commits = grant.commits
    if request.upsert or not any(there := there_already(primary, keys)):
        there = b""
    # Earlier commits took their part of the grant, so objects that overlap nothing are not retries.
    if not there and not _misplaced(grant, request.rows):
        return list(range(len(keys))), stored
    fresh: list[int] = []
    for i, (key, (offset, _, _)) in enumerate(zip(keys, PutRow.iter_unpack(request.rows), strict=True)):
        if offset in commits:
            # A retry: it was stored then, whatever became of it since. Another object's offset is an error.
            slot = primary.state.catalogue.by_id.slot_of(commits[offset])
            if slot >= 0 and primary.state.catalogue.keys[slot] != key:
                raise BadRequest(f"offset {offset} of the grant holds another object; nothing was stored")
        elif there and there[i]:
            stored[i] = 0
        else:
            fresh.append(i)
    if wrong := _misplaced(grant, PutRow.select(request.rows, fresh)):
        raise BadRequest(wrong)
    return fresh, stored


def _misplaced(grant: Grant, rows: bytes) -> str:
    """The error text, or empty if every object lies inside the grant, is aligned, and overlaps no other."""
    if PutRow.count(rows) < SCALAR_BELOW:
        spans = sorted((offset, offset + extent_of(size), size) for offset, size, _ in PutRow.iter_unpack(rows))
        for start, _, size in spans:
            if start % (LARGE_ALIGN if size >= LARGE_FROM else SMALL_ALIGN):
                return f"offset {start} of the grant is not aligned for {size:,} bytes; nothing was stored"
        runs = [(start, end) for start, end, _ in spans]
    else:
        table = table_of(PUT_TABLE, rows)
        starts = table["offset"].astype(np.int64)
        if (starts[1:] <= starts[:-1]).any():  # Most batches are written front to back.
            table = table[np.argsort(table["offset"], kind="stable")]
            starts = table["offset"].astype(np.int64)
        if (starts & (aligns_of(table["size"]) - 1)).any():
            return "an offset in the grant is not aligned for its object; nothing was stored"
        runs = runs_of(starts, starts + extents_of(table["size"]))
    before = 0
    for start, end in runs:
        if start < before or end > grant.length or end <= start or grant.taken.overlaps(start, end):
            return (
                f"[{start}, {end}) of the grant lies outside it (it has {grant.length} bytes) or over another object; "
                "nothing was stored"
            )
        before = end
    return ""


def _replaced(primary: Primary, keys: list[str]) -> Slots:
    return np.array([slot for slot in primary.state.catalogue.by_key.slots_of(keys) if slot >= 0], np.intp)


def _giving_way(primary: Primary, keys: list[str], now: Instant) -> tuple[bytes, bytes]:
    """Packed ids of the objects that an upsert replaces: those whose memory is free at once, and those under a lease.
    Unlogged evictions under these keys are included: any put drops them for good (I7)."""
    catalogue = primary.state.catalogue
    slots = [slot for slot in catalogue.by_key.slots_of(keys) if slot >= 0]
    slots += primary.state.mask.slots_under(keys)
    at = np.array(slots, np.intp)
    ids, is_leased = catalogue.ids[at], catalogue.lease_until[at] > now
    return ids[~is_leased].tobytes(), ids[is_leased].tobytes()
