"""Checks of the log, at the moment that each batch is appended.

The checker is a follower that misses nothing: it applies every batch to a state of its own. So it knows the state of
every master at the same index, and can look into the clients to see which of them rely on memory that a batch frees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from holdfast.core.catalogue.catalogue import MASKED, MEMORY
from holdfast.core.catalogue.digest import digest
from holdfast.core.state.apply import apply, ranges_of
from holdfast.core.state.packed_numbers import unpack_sorted_ids
from holdfast.core.state.state import State
from holdfast.core.state.tenants import Tenant
from holdfast.core.state.unlogged import lying_in
from holdfast.ids import GrantId, extent_of
from holdfast.messages import records as r
from holdfast.messages.rows import PutRow, unpack_ids
from holdfast.messages.shapes import Record
from holdfast.replication.batches import BrokenChain, Position, UnknownRecord, decode_batch
from holdfast.replication.carried import Carried
from holdfast.simulation.checks.restore_checks import Fate, Past, RestoreChecks, name_of
from holdfast.simulation.world.clients import ClientMachine

Report = Callable[[str, str, str], None]
"""Promise, what is wrong, subject."""


LEFT_BY_ITSELF = ("EVICTED", "UNMOUNTED", "FILE_LOST", "MISMATCH")
"""Why an object may be gone though no client removed it."""


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A place that a client relies on now, by its own clock."""

    client: str
    id: int
    segment: int
    offset: int
    length: int


@dataclass(slots=True)
class LogChecks:
    clients: Mapping[str, ClientMachine]
    restores: RestoreChecks
    report: Report
    state: State = field(default_factory=State)
    position: Position = field(default_factory=Position)
    fates: dict[int, Fate] = field(default_factory=dict)
    """Objects of the history that the store holds now."""
    granted: set[GrantId] = field(default_factory=set)
    """All grants of that history."""
    may_begin: Callable[[], bool] = lambda: True
    """May a history begin at this moment?"""
    session_closed: Callable[[r.SessionClosed], None] = lambda record: None
    digests: dict[int, str] = field(default_factory=dict)
    """By index."""
    tenants: dict[int, dict[int, Tenant]] = field(default_factory=dict)
    """By index; only where there are tenants."""
    _carried: Carried = field(default_factory=Carried)
    _granted_over: set[int] = field(default_factory=set)
    """Slots of the objects that the grant being checked replaces."""

    def appended(self, number: int, epoch: int, leading: int, batch: bytes) -> list[Record]:
        if epoch != leading:
            self.report("I3", f"epoch {epoch} wrote batch {number} while epoch {leading} leads", f"batch {number}")
        try:
            records, self.position = decode_batch(self.position, number, batch)
        except (BrokenChain, UnknownRecord) as error:
            self.report("I13", f"batch {number} does not continue the log: {error}", f"batch {number}")
            return []
        for record in records:
            if isinstance(record, r.HistoryRestored):
                self._restored(record)
                continue
            if self._carried.takes(record):
                self.state.index += 1
                continue
            self._check(record)
            try:
                apply(self.state, record, 0)
            except (KeyError, AssertionError, ValueError) as error:
                self.report("I5", f"{type(record).__name__} cannot be applied: {error!r}", f"batch {number}")
                return records
        self._note_digest()
        return records

    def _note_digest(self) -> None:
        self.digests[self.state.index] = digest(self.state.catalogue)
        if self.state.tenants:
            self.tenants[self.state.index] = dict(self.state.tenants.by_number)

    def wiped(self) -> None:
        """Start over: the store has lost everything, and the next history is another one."""
        self._end()
        self.state, self.position, self._carried = State(), Position(), Carried()

    def _end(self) -> None:
        if self.state.log_id:
            self.restores.ended(Past(self.state, self.fates, self.digests))
        self.fates, self.digests, self.granted, self.tenants = {}, {}, set(), {}

    def _restored(self, record: r.HistoryRestored) -> None:
        """I19: the log is another history from here on."""
        self._end()
        try:
            self.state = self._carried.restored(record, self.position.index, 0)
        except UnknownRecord as error:
            self.report("I13", f"a restored history is not in its own log: {error}", f"{record.log_id:x}")
            return
        self.fates = self.restores.restored(self.state)

    def all_fates(self) -> Iterator[Fate]:
        yield from self.restores.all_fates()
        yield from self.fates.values()

    def _begins(self, record: r.LogStarted) -> None:
        if self.state.log_id:
            self.report("I13", f"history {record.log_id:x} begins in the middle of a log", f"{record.log_id:x}")
        if not self.may_begin():
            what = "a history began empty, though masters know another and the operator has not spoken"
            self.report("I19", what, f"{record.log_id:x}")

    def _check(self, record: Record) -> None:
        match record:
            case r.LogStarted():
                self._begins(record)
            case r.ObjectsCommitted():
                self._commits(record)
            case r.ObjectsRemoved():
                self._leaves(unpack_ids(record.ids) + unpack_ids(record.leased), record.cause.name)
                self._not_leased(unpack_ids(record.ids), f"removed ({record.cause.name}) without quarantine")
                if record.cause is r.Cause.MISMATCH:
                    self.restores.differs(unpack_ids(record.ids) + unpack_ids(record.leased), self.fates)
            case r.ObjectsEvicted():
                evicted = unpack_sorted_ids(record.ids).tolist()
                self._leaves(evicted, "EVICTED")
                if not record.leased:
                    self._not_leased(evicted, "evicted")
            case r.SegmentUnmounted():
                alone = [s for s in self.state.catalogue.on_segment(record.handle)
                         if all(p.segment == record.handle for p in self.state.catalogue.replicas(s))]  # fmt: skip
                self._leaves([self.state.catalogue.id_at[slot] for slot in alone], "UNMOUNTED")
            case r.SegmentMounted():
                self._one_boot(record)
                if record.kind == MEMORY:
                    self.restores.mounted(record.name.node, record.name.boot, self.state)
            case r.RangesGranted():
                self._granted(record)
            case r.SessionClosed():
                self.session_closed(record)

    def _commits(self, record: r.ObjectsCommitted) -> None:
        rows = zip(record.keys, PutRow.iter_unpack(record.rows), strict=True)
        for oid, (key, (_, size, _)) in enumerate(rows, record.first_id):
            self.fates[oid] = Fate(name_of(self.state, key), size)
        self._leaves(unpack_ids(record.replaced) + unpack_ids(record.leased), "UPSERT")
        self._not_leased(unpack_ids(record.replaced), "replaced without quarantine")

    def _leaves(self, ids: list[int], why: str) -> None:
        for oid in ids:
            fate = self.fates.get(oid)
            if fate is None:
                self.report("I7", f"{why} names object {oid:x}, which the log does not know", f"{oid:x}")
            elif fate.left and why != "UNMOUNTED":
                self.report("I7", f"{fate.key} ({oid:x}) leaves again by {why}, after {fate.left}", fate.key)
            else:
                fate.left = why

    def _not_leased(self, ids: list[int], how: str) -> None:
        gone = set(ids)
        for lease in self.leases():
            if lease.id in gone:
                key = self.fates[lease.id].key if lease.id in self.fates else ""
                self.report("I8", f"{key} ({lease.id:x}) was {how} while {lease.client} holds a lease on it", key)

    def _one_boot(self, record: r.SegmentMounted) -> None:
        name = record.name
        for segment in self.state.segments.values():
            # A disk has an identity of its own, which outlives the node's boots. A disk that is away stays known for an
            # hour while its node lends another: nobody reads it, and it comes back only under its own identity. The
            # same happens after a restore over a history that began empty, for which the node emptied its disk and gave
            # it a new identity.
            if segment.kind != record.kind or segment.away:
                continue
            if segment.name.node == name.node and segment.name.boot != name.boot:
                self.report("I14", f"{name} is mounted while {segment.name} is", name.node)

    def _granted(self, record: r.RangesGranted) -> None:
        """No client relies on these bytes, and according to the log everything that was there is gone."""
        self.granted.add(record.grant)
        for place in record.ranges:
            start, end = place.offset, place.offset + record.length
            for lease in self.leases():
                if lease.segment == place.segment and lease.offset < end and start < lease.offset + lease.length:
                    key = self.fates[lease.id].key if lease.id in self.fates else ""
                    self.report(
                        "I2", f"the range of {key} ({lease.id:x}) is granted while {lease.client} may read it", key
                    )
        self._gone_unlogged(record)
        for place in record.ranges:
            start, end = place.offset, place.offset + record.length
            for taken_start, taken_end, what in self._occupied(place.segment):
                if taken_start < end and start < taken_end:
                    self.report("I9", f"granted {start}..{end} on segment {place.segment}, where {what} is", what)

    def _gone_unlogged(self, record: r.RangesGranted) -> None:
        """Note objects of unlogged evictions: they leave by the grant that takes their memory."""
        by_id = self.state.catalogue.by_id
        slots = set(by_id.slots_of(unpack_sorted_ids(record.evicted).tolist()))
        if record.sweeps:
            for place in record.ranges:
                slots.update(lying_in(self.state.catalogue, place.segment, place.offset, record.length))
        self._leaves(sorted(self.state.catalogue.id_at[slot] for slot in slots), "EVICTED")
        self._granted_over = slots

    def _occupied(self, handle: int) -> Iterator[tuple[int, int, str]]:
        state = self.state
        catalogue = state.catalogue
        for slot in catalogue.on_segment(handle):
            if slot in self._granted_over:
                continue
            for replica in catalogue.replicas(slot):
                if replica.segment == handle:
                    end = replica.offset + extent_of(catalogue.size_at[slot])
                    yield replica.offset, end, str(catalogue.keys[slot])
        for grant in state.grants.values():
            for place in grant.ranges:
                if place.segment == handle:
                    for start, end in grant.taken.gaps(grant.length):
                        yield place.offset + start, place.offset + end, f"grant {grant.id.serial}"
        for entry, quarantined in state.quarantine.items():
            if quarantined.segment == handle:
                for offset, length in quarantined.pieces:
                    yield offset, offset + length, f"quarantine entry {entry}"

    def leases(self) -> Iterator[SeenLease]:
        """The leases that clients rely on at this moment."""
        for name, client in self.clients.items():
            process, core = client.process, client.core
            if process is None or process.dead or core is None:
                continue
            if core.welcome is None or core.welcome.log_id not in (self.state.log_id, *self.state.continues):
                continue  # Handles and ids of another history name other memory.
            now = process.now_ns() / 1e9
            for key in core.leases.by_key:
                if (lease := core.leases.live(key, now)) is not None:
                    for segment, offset in ((lease.segment, lease.start), *lease.others):
                        if self.is_same(client, segment):
                            yield SeenLease(name, lease.id, segment, offset, extent_of(lease.size_bytes))
            for view in core.views:
                fate = self.fates.get(view.id)
                if view.until > now and not view.lost and fate is not None and self.is_same(client, view.segment):
                    yield SeenLease(name, view.id, view.segment, view.offset, extent_of(fate.size_bytes))

    def is_same(self, client: ClientMachine, handle: int) -> bool:
        """Does the segment's number name the same memory for the client as for the log? For a client of the history
        that this one was restored from, it may be another segment, mounted since the snapshot."""
        core = client.core
        assert core is not None, "it lives"
        place, segment = core.segments.places.get(handle), self.state.segments.get(handle)
        return place is None or segment is None or place.name == segment.name

    def same_as(self, state: State, who: str) -> None:
        """Check that this catalogue equals the checker's at the same index."""
        if state.log_id != self.state.log_id:
            return  # It has not noticed yet that the store was emptied.
        expected = self.digests.get(state.index)
        if expected is not None and digest(state.catalogue) != expected:
            self.report("I5", f"{who} holds another catalogue than the log at index {state.index}", who)
        if expected is not None and state.tenants.by_number != self.tenants.get(state.index, {}):
            self.report("I5", f"{who} knows other tenants or quotas than the log at index {state.index}", who)


def spans_of(state: State) -> dict[int, list[tuple[int, int]]]:
    """The ranges that objects, grants and quarantine occupy, by segment; also in segments that are not there."""
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    live = state.catalogue.live()
    live = live[(state.catalogue.flags[live] & MASKED) == 0]
    for handle, offsets, lengths in ranges_of(state, live) if len(live) else []:
        taken[handle] += zip(offsets.tolist(), (offsets + lengths).tolist(), strict=True)
    for grant in state.grants.values():
        for place in grant.ranges:
            gaps = grant.taken.gaps(grant.length)
            taken[place.segment] += [(place.offset + start, place.offset + end) for start, end in gaps]
    for quarantined in state.quarantine.values():
        taken[quarantined.segment] += [(offset, offset + length) for offset, length in quarantined.pieces]
    return taken
