"""The whole state as bytes: a new standby starts from it, and the log before it may be trimmed.

Sections, each with its checksum: a head of small things, then one per column. Times are durations (I16): the time left
of a lease, the time since an object's last use. A torn or altered file is refused completely, and the next older one is
taken; an invalid entry costs only that entry, which is counted and reported, never the catalogue (I18).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from holdfast import __version__
from holdfast.core.catalogue.catalogue import COPYING, LIVE, MASKED, SEVERAL, SOFT_PIN, Catalogue, ReplicaAt, extents_of
from holdfast.core.catalogue.holdings import Holdings
from holdfast.core.catalogue.key_arena import READ_AT_ONCE
from holdfast.core.state.grants import Grant, Quarantined
from holdfast.core.state.state import Drain, NamedSuccessor, Origin, Segment, State
from holdfast.core.state.tenants import Tenant, Tenants
from holdfast.errors import MALFORMED, Refused
from holdfast.ids import MAX_KEY_BYTES, GrantId, SegmentHandle, extent_of
from holdfast.instant import Instant
from holdfast.messages.log_versions import LOG_VERSION, OLDEST_LOG_VERSION
from holdfast.messages.of_masters import HistoryFound
from holdfast.messages.shapes import Range, SettingValue
from holdfast.replication.batches import NO_HASH, Position

_NAME = b"HOLDFAST SNAPSHOT "
MAGIC = _NAME + b"1\n"
"""The digit, and what follows it in ASCII, is the log version that a reader needs (ADR 64)."""
_SECTION = struct.Struct("<16sQQ")
"""name, length, checksum"""
HEAD_PREFIX_BYTES = len(MAGIC) + _SECTION.size
"""The beginning of a snapshot that tells the length of its head."""


class CorruptSnapshot(Refused):
    """The file is torn or was altered: nothing of it was used."""

    code = "corrupt_snapshot"


class NewerSnapshot(CorruptSnapshot):
    """The file may be sound, and needs a newer master: nothing of it was used, and it stays where it is."""

    code = "newer_snapshot"


class Head(msgspec.Struct, array_like=True):
    """Everything but the columns. The order of fields is the format: add at the end, with a default."""

    log_id: int
    cluster: str
    secret: bytes
    epoch: int
    index: int
    batch: int
    hash: bytes
    lease_ttl_ms: int
    soft_pin_ttl_ms: int
    grant_timeout_ms: int
    topology: int
    next_segment: int
    next_counter: int
    next_quarantine: int
    segments: list[Segment]
    grants: list[tuple[GrantId, int, list[Range], list[tuple[int, int]], dict[int, int]]]
    quarantine: list[tuple[int, SegmentHandle, list[tuple[int, int]], GrantId | None, int]]
    answers: list[tuple[int, int, bytes]]
    others: list[tuple[int, list[ReplicaAt]]]
    """By object id."""
    soft_pins: list[tuple[int, int]]
    """(object id, ms left)"""
    sessions: dict[int, str] = {}
    session_epoch: int = 0
    session_lease_ms: int = 0
    session_jeopardy_ms: int = 0
    epoch_starts: list[tuple[int, int]] = []
    modes: dict[str, int] = {}
    copy_bytes_per_second: int = 0
    """Set by an earlier version; it is one of the changed settings now."""
    moved: list[tuple[int, int]] = []
    """(quarantine entry, id of the object that left it)"""
    longest_lease_ms: int = 0
    changed: dict[str, SettingValue] = {}
    continues: list[int] = []
    unsettled: list[SegmentHandle] = []
    unverified: list[SegmentHandle] = []
    origin: Origin = msgspec.field(default_factory=Origin)
    most_nodes: int = 0
    wanted: list[tuple[GrantId, int]] = []
    """Grants with fewer ranges than the replicas asked for: (grant, replicas asked for)."""
    drains: dict[str, Drain] = {}
    tenants: list[Tenant] = []
    next_tenant: int = 1
    session_owners: dict[int, str] = {}
    revoked: list[int] = []
    uncleared: list[GrantId] = []
    successor: NamedSuccessor = NamedSuccessor()


@dataclass(slots=True)
class Restored:
    state: State
    position: Position
    faults: list[str] = field(default_factory=list)
    """Entries that were left out, and why."""


_COLUMNS = ("ids", "sizes", "checksums", "segments", "offsets", "flags")
_OPTIONAL = {"wanted", "end"}
"""Snapshots of the first format have no column of wanted replicas."""
_NEEDED = {"head", *_COLUMNS, "lease_left", "unused", "key_lengths", "keys"}
_END = _SECTION.pack(b"end", 0, xxhash.xxh3_64_intdigest(b""))
_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode


def dump(state: State, position: Position, now: Instant) -> Iterator[bytes]:
    """The snapshot, in pieces. The state must not change while they are taken."""
    yield _NAME + bytes([ord("0") + state.log_version]) + b"\n"
    yield from _section("head", _encode(_head_of(state, position, now)))
    catalogue = state.catalogue
    slots = catalogue.live()
    for name in _COLUMNS:
        column = getattr(catalogue, name)[slots]
        if name == "flags":
            column &= ~np.uint8(MASKED | COPYING)
        yield from _section(name, column.astype(column.dtype.newbyteorder("<")).tobytes())
    yield from _section("wanted", catalogue.wanted(slots).astype(np.uint8).tobytes())
    yield from _section("lease_left", np.maximum(catalogue.lease_until[slots] - now, 0).astype("<i8").tobytes())
    yield from _section("unused", np.maximum(now - catalogue.last_used[slots], 0).astype("<i8").tobytes())
    parts = [catalogue.keys.bytes_of(slots[at : at + READ_AT_ONCE]) for at in range(0, len(slots), READ_AT_ONCE)]
    yield from _section("key_lengths", b"".join(lengths.astype("<u2").tobytes() for _, lengths in parts))
    yield from _section("keys", b"".join(names for names, _ in parts))
    yield from _section("end", b"")


def _section(name: str, content: bytes) -> Iterator[bytes]:
    yield _SECTION.pack(name.encode(), len(content), xxhash.xxh3_64_intdigest(content))
    yield content


def _head_of(state: State, position: Position, now: Instant) -> Head:
    by_slot = state.catalogue.id_at
    return Head(
        log_id=state.log_id,
        cluster=state.cluster,
        secret=state.secret,
        epoch=state.epoch,
        index=position.index,
        batch=position.batch,
        hash=position.hash,
        lease_ttl_ms=state.lease_ttl_ms,
        soft_pin_ttl_ms=state.soft_pin_ttl_ms,
        grant_timeout_ms=state.grant_timeout_ms,
        topology=state.topology,
        next_segment=state.next_segment,
        next_counter=state.next_counter,
        next_quarantine=state.next_quarantine,
        segments=list(state.segments.values()),
        grants=[(g.id, g.length, list(g.ranges), list(g.taken), g.commits) for g in state.grants.values()],
        quarantine=[(n, q.segment, list(q.pieces), q.grant, q.writer) for n, q in state.quarantine.items()],
        answers=[(client, serial, answer) for (client, serial), answer in state.answers.items()],
        others=[(by_slot[slot], list(places)) for slot, places in state.catalogue.others.items()],
        soft_pins=[(by_slot[slot], max(0, until - now)) for slot, until in state.catalogue.soft_pin_until.items()],
        sessions=state.sessions,
        session_owners=state.session_owners,
        session_epoch=state.session_epoch,
        session_lease_ms=state.session_lease_ms,
        session_jeopardy_ms=state.session_jeopardy_ms,
        epoch_starts=list(state.epoch_starts.items()),
        modes=state.modes,
        moved=[(entry, quarantined.moved) for entry, quarantined in state.quarantine.items() if quarantined.moved],
        longest_lease_ms=state.longest_lease_ms,
        changed=state.changed,
        continues=state.continues,
        unsettled=sorted(state.unsettled),
        unverified=sorted(state.unverified),
        origin=state.origin,
        most_nodes=state.most_nodes,
        wanted=[(grant.id, grant.wanted) for grant in state.grants.values() if grant.wanted],
        drains=state.drains,
        tenants=list(state.tenants.by_number.values()),
        next_tenant=state.tenants.next_number,
        revoked=list(state.revoked),
        uncleared=[grant.id for grant in state.grants.values() if grant.uncleared],
        successor=state.successor,
    )


def version_in(data: bytes | memoryview) -> int:
    """The log version that the snapshot's reader needs. NewerSnapshot if this master does not read it."""
    first = bytes(data[: len(MAGIC)])
    if len(first) < len(MAGIC) or not first.startswith(_NAME) or first[-1:] != b"\n":
        raise CorruptSnapshot("the file does not begin as a snapshot does")
    version = first[len(_NAME)] - ord("0")
    if version < OLDEST_LOG_VERSION:
        raise CorruptSnapshot("the file does not begin as a snapshot does")
    if version > LOG_VERSION:
        raise NewerSnapshot(
            f"it needs log version {version}, and this master (holdfast {__version__}) reads {OLDEST_LOG_VERSION} to "
            f"{LOG_VERSION}: upgrade this master"
        )
    return version


def _sections(data: memoryview) -> dict[str, memoryview]:
    version_in(data)
    at = len(MAGIC)
    found: dict[str, memoryview] = {}
    while "end" not in found:
        if at + _SECTION.size > len(data):
            raise CorruptSnapshot("the file is torn: its end is missing")
        name, length, checksum = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        content = data[at : at + length]
        label = name.rstrip(b"\0").decode("ascii", "replace")
        if len(content) != length or xxhash.xxh3_64_intdigest(content) != checksum:
            raise CorruptSnapshot(f"its section {label!r} is torn or was altered")
        found[label] = content
        at += length
    return found


def _whole(data: bytes | memoryview) -> dict[str, memoryview]:
    """Every section, verified. CorruptSnapshot also if one is missing: checksums do not cover names, and a section with
    an altered name is missing under its own."""
    sections = _sections(memoryview(data))
    missing = _NEEDED - sections.keys()
    if sections.keys() - _NEEDED - _OPTIONAL:
        missing |= _OPTIONAL - sections.keys()
    if missing:
        raise CorruptSnapshot(f"sections are missing or their names were altered ({', '.join(sorted(missing))})")
    return sections


def verify(data: bytes | memoryview) -> Head:
    """Verify every section and return the head; CorruptSnapshot if one is torn, altered or missing."""
    return _decoded_head(_whole(data))


def head_bytes(prefix: bytes) -> int:
    """The length of a snapshot through its head, by its first `HEAD_PREFIX_BYTES`."""
    version_in(prefix)
    if len(prefix) < HEAD_PREFIX_BYTES:
        raise CorruptSnapshot("the file does not begin as a snapshot does")
    return HEAD_PREFIX_BYTES + int(_SECTION.unpack_from(prefix, len(MAGIC))[1])


def head_of(data: bytes | memoryview) -> Head:
    """The verified head alone; the rest is not read, and need not be there."""
    beginning = memoryview(data)[: head_bytes(bytes(data[:HEAD_PREFIX_BYTES]))]
    return _decoded_head(_sections(memoryview(bytes(beginning) + _END)))


def position_of(head: Head) -> Position:
    """The position in the log through which the snapshot holds its records."""
    return Position(head.batch, head.index, head.hash or NO_HASH)


def _decoded_head(sections: dict[str, memoryview]) -> Head:
    try:
        return _decode_head(sections["head"])
    except MALFORMED as error:
        raise CorruptSnapshot(f"its head cannot be read ({error})") from None


def found_in(data: bytes | memoryview, where: str) -> HistoryFound:
    """Describe the history that could be restored from this snapshot. CorruptSnapshot unless all of it is sound."""
    sections = _whole(data)
    head = _decoded_head(sections)
    try:
        sizes = np.frombuffer(sections["sizes"], "<i8")
    except (KeyError, ValueError) as error:
        raise CorruptSnapshot(f"its sizes cannot be read ({error})") from None
    return HistoryFound(head.log_id, where, head.epoch, head.index, len(sizes), int(sizes.sum()))


def _changed(head: Head) -> dict[str, SettingValue]:
    if head.copy_bytes_per_second:
        return {"copy_bytes_per_second": max(0, head.copy_bytes_per_second), **head.changed}
    return head.changed


def load(data: bytes | memoryview, now: Instant) -> Restored:
    """The state that the snapshot holds. CorruptSnapshot: nothing of it can be used."""
    sections = _whole(data)
    try:
        restored = _restore(_decoded_head(sections), sections, now)
        restored.state.log_version = version_in(data)
        return restored
    except MALFORMED as error:
        raise CorruptSnapshot(f"its content contradicts itself ({type(error).__name__}: {error})") from error


def _check_numbers(head: Head) -> None:
    """Durations and counters that fit no column would fail a promotion later, again and again."""
    durations = [head.lease_ttl_ms, head.soft_pin_ttl_ms, head.grant_timeout_ms, head.longest_lease_ms]
    durations += [head.session_lease_ms, head.session_jeopardy_ms]
    counters = [head.epoch, head.index, head.batch, head.topology, head.next_segment, head.next_counter]
    counters += [head.next_quarantine, head.session_epoch]
    if not all(0 <= value < 1 << 40 for value in durations) or not all(0 <= value < 1 << 63 for value in counters):
        raise CorruptSnapshot("its head holds an impossible duration or number")
    places = [number for _, _, pieces, _, _ in head.quarantine for piece in pieces for number in piece]
    for _, length, ranges, taken, _ in head.grants:
        places += [length, *(place.offset for place in ranges), *(number for piece in taken for number in piece)]
    # Half of what a column holds, so that the end of a range fits, too; promotion asks whether it is in its segment.
    if not all(0 <= number < 1 << 62 for number in places):
        raise CorruptSnapshot("a grant or a range in quarantine lies at an impossible place")


def _restore(head: Head, sections: dict[str, memoryview], now: Instant) -> Restored:
    _check_numbers(head)
    state = State(
        log_id=head.log_id,
        cluster=head.cluster,
        secret=head.secret,
        epoch=head.epoch,
        index=head.index,
        lease_ttl_ms=head.lease_ttl_ms,
        soft_pin_ttl_ms=head.soft_pin_ttl_ms,
        grant_timeout_ms=head.grant_timeout_ms,
        topology=head.topology,
        next_segment=head.next_segment,
        next_counter=head.next_counter,
        next_quarantine=head.next_quarantine,
        sessions=head.sessions,
        session_owners=head.session_owners,
        session_epoch=head.session_epoch,
        session_lease_ms=head.session_lease_ms,
        session_jeopardy_ms=head.session_jeopardy_ms,
        modes=head.modes,
        longest_lease_ms=max(head.longest_lease_ms, head.lease_ttl_ms),
        changed=_changed(head),
        continues=head.continues,
        origin=head.origin,
        unsettled={segment.handle for segment in head.segments} & {*head.unsettled},
        unverified={segment.handle for segment in head.segments} & {*head.unverified},
        drains=head.drains,
        tenants=Tenants(head.tenants, head.next_tenant),
        revoked=dict.fromkeys(head.revoked),
        successor=head.successor,
    )
    state.epoch_starts.update(head.epoch_starts)
    state.segments = {segment.handle: segment for segment in head.segments}
    state.away = {segment.handle for segment in head.segments if segment.away}
    state.most_nodes = max(head.most_nodes, state.lending_nodes())
    state.answers.update({(client, serial): answer for client, serial, answer in head.answers})
    restored = Restored(state, position_of(head))
    _restore_grants(restored, head)
    _restore_objects(restored, head, sections, now)
    if state.tenants:
        state.catalogue.holdings = Holdings(state.catalogue)
    return restored


def _restore_grants(restored: Restored, head: Head) -> None:
    state = restored.state
    wanted, uncleared = dict(head.wanted), set(head.uncleared)
    for grant, length, ranges, taken, commits in head.grants:
        if any(place.segment not in state.segments for place in ranges):
            restored.faults.append(f"grant {grant} lies on a segment that is not there")
            continue
        made = Grant(grant, length, tuple(ranges), commits=commits, wanted=wanted.get(grant, 0))
        made.uncleared = grant in uncleared
        for start, end in taken:
            made.taken.add(start, end)
        state.grants[grant] = made
    moved = dict(head.moved)
    for entry, segment, pieces, holder, writer in head.quarantine:
        if segment in state.segments:
            state.quarantine[entry] = Quarantined(segment, tuple(pieces), holder, writer, moved.get(entry, 0))
            if entry in moved:
                state.moved[segment, pieces[0][0]] = entry
        else:
            restored.faults.append(f"quarantine entry {entry} lies on a segment that is not there")


def _restore_objects(restored: Restored, head: Head, sections: dict[str, memoryview], now: Instant) -> None:
    try:
        columns = {
            name: np.frombuffer(sections[name], getattr(Catalogue(), name).dtype.newbyteorder("<")) for name in _COLUMNS
        }
        lease_left = np.frombuffer(sections["lease_left"], "<i8")
        unused = np.frombuffer(sections["unused"], "<i8")
        lengths = np.frombuffer(sections["key_lengths"], "<u2")
        blob = sections["keys"]
    except (KeyError, ValueError) as error:
        raise CorruptSnapshot(f"a column is missing or torn ({error})") from None
    count = len(lengths)
    # Snapshots of the first format have no column of wanted replicas.
    wanted = np.frombuffer(sections.get("wanted", b"\1" * count), np.uint8)
    every = (*columns.values(), wanted, lease_left, unused)
    if any(len(column) != count for column in every) or lengths.sum() != len(blob):
        raise CorruptSnapshot("its columns differ in length")
    good = _sensible(restored.state, columns, lengths)
    keys, named = _keys(bytes(blob), lengths)
    good &= named
    catalogue = restored.state.catalogue
    _drop_repeated(keys, columns["ids"], good, restored.faults)
    for index in np.flatnonzero(~good).tolist()[:100]:
        restored.faults.append(f"object {columns['ids'][index]:#x} ({keys[index][:60]!r}) makes no sense")
    chosen = np.flatnonzero(good)
    rows = {name: column[chosen] for name, column in columns.items()}
    if (wanted > 1).any():  # Otherwise the column takes no memory.
        rows["further_wanted"] = np.maximum(wanted[chosen], 1) - 1
    slots = catalogue.insert_rows([keys[i] for i in chosen.tolist()], rows)
    at = np.array(slots, np.intp)
    catalogue.lease_until[at] = np.where(lease_left[chosen] > 0, now + lease_left[chosen], 0)
    catalogue.last_used[at] = now - unused[chosen]
    _restore_extras(restored, head, now)


def _sensible(state: State, columns: dict[str, npt.NDArray[Any]], lengths: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which rows lie inside a mounted segment and have a valid size, key and flags."""
    # The last handle is nobody's: rows of unknown segments are looked up there, and have no room.
    handles = np.array([*sorted(state.segments), -1], np.int64)
    capacity = np.array([state.segments[handle].size_bytes for handle in handles[:-1].tolist()] + [0], np.int64)
    at = np.searchsorted(handles[:-1], columns["segments"])
    known = handles[at] == columns["segments"]
    sizes, offsets = columns["sizes"].astype(np.int64), columns["offsets"].astype(np.int64)
    room = capacity[np.where(known, at, -1)]
    possible = (sizes > 0) & (offsets >= 0) & (lengths > 0) & (lengths <= MAX_KEY_BYTES) & (columns["ids"] > 0)
    inside = (sizes <= room) & (offsets <= room - np.where(sizes <= room, extents_of(np.maximum(sizes, 1)), 0))
    flagged = (columns["flags"] & (LIVE | MASKED)) == LIVE
    return np.asarray(known & possible & inside & flagged)


def _keys(blob: bytes, lengths: npt.NDArray[Any]) -> tuple[list[str], npt.NDArray[np.bool_]]:
    ends = np.cumsum(lengths.astype(np.int64))
    good = np.ones(len(lengths), np.bool_)
    if blob.isascii():
        text, places = blob.decode("ascii"), ends.tolist()
        return [text[start:end] for start, end in zip([0, *places], places, strict=False)], good
    keys: list[str] = []
    start = 0
    for i, end in enumerate(ends.tolist()):
        try:
            keys.append(blob[start:end].decode())
        except UnicodeDecodeError:
            keys.append("")
            good[i] = False
        start = end
    return keys, good


def _drop_repeated(keys: list[str], ids: npt.NDArray[Any], good: npt.NDArray[np.bool_], faults: list[str]) -> None:
    """Of two objects with the same key or id, keep the one with the later id."""
    chosen = np.flatnonzero(good)
    chosen = chosen[np.argsort(ids[chosen], kind="stable")]
    in_order = ids[chosen]
    if (in_order[1:] != in_order[:-1]).all() and len({keys[i] for i in chosen.tolist()}) == len(chosen):
        return
    latest = {keys[i]: i for i in chosen.tolist()}
    unique = {int(ids[i]): i for i in latest.values()}
    kept = np.zeros(len(good), np.bool_)
    kept[list(unique.values())] = True
    faults.append(f"{int((good & ~kept).sum())} objects share a key or an id with another")
    good &= kept


def _is_inside(state: State, place: ReplicaAt, length: int) -> bool:
    segment = state.segments.get(place.segment)
    return segment is not None and place.kind == segment.kind and 0 <= place.offset <= segment.size_bytes - length


def _restore_extras(restored: Restored, head: Head, now: Instant) -> None:
    state = restored.state
    catalogue = state.catalogue
    for oid, places in head.others:
        slot = catalogue.by_id.slot_of(oid)
        if slot < 0:
            continue
        length = extent_of(catalogue.size_at[slot])
        there = tuple(place for place in places if _is_inside(state, place, length))
        if len(there) < len(places):
            restored.faults.append(f"object {oid:#x} has a further replica where nothing can lie")
        if there:
            catalogue.set_replicas(slot, (catalogue.replicas(slot)[0], *there))
    for oid, left in head.soft_pins:
        slot = catalogue.by_id.slot_of(oid)
        if slot >= 0:
            catalogue.soft_pin_until[slot] = now + left
    catalogue.find_lacking()
    # A soft pin without a known end is dropped, and so is the flag of copies that a primary made at that time.
    flags = catalogue.flags[: catalogue.top]
    flags &= ~np.uint8(SOFT_PIN | COPYING | SEVERAL)
    flags[list(catalogue.others)] |= SEVERAL
    flags[list(catalogue.soft_pin_until)] |= SOFT_PIN
