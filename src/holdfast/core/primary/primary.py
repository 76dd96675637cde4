"""The primary's own data beside the state: free space, deadlines, and the standing of its nodes.

All of it can be rebuilt from the state and a clock. `absorb` applies a record, keeps this data in step, and returns
what follows from it; `reclaim` lends freed ranges again, and is called once the record that freed them is durable (I9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.core.catalogue.catalogue import DISK, Slots
from holdfast.core.primary.claims import Claim
from holdfast.core.primary.copy_book import CopyBook
from holdfast.core.primary.decision import Command
from holdfast.core.primary.doubt import Doubt
from holdfast.core.primary.former_tenants import CLEAN, UNKNOWN, FormerTenants
from holdfast.core.primary.lessees import Lessees
from holdfast.core.primary.object_counts import ObjectCounts
from holdfast.core.primary.session_book import Book, SessionTimes
from holdfast.core.primary.tenant_book import TenantBook
from holdfast.core.primary.tickets import Tickets
from holdfast.core.rules import Rules, in_force
from holdfast.core.space.allocator import Allocator
from holdfast.core.state.applied import Applied, Freed, bytes_of
from holdfast.core.state.apply import apply
from holdfast.core.state.grants import Grant
from holdfast.core.state.packed_numbers import unpack_sorted_ids
from holdfast.core.state.state import Segment, State
from holdfast.errors import Busy, LogHeldBack
from holdfast.ids import COPIES, GrantId, ProcessName, SegmentHandle, tenant_of
from holdfast.instant import Instant
from holdfast.messages.commands import TicketTerms, encode_body
from holdfast.messages.log_versions import CLEARANCES, LOG_VERSION, OLDEST_LOG_VERSION, version_of
from holdfast.messages.of_nodes import Damage
from holdfast.messages.records import (
    EpochStarted,
    GrantCleared,
    GrantEnded,
    LogStarted,
    ObjectsCommitted,
    ObjectsEvicted,
    ObjectsRemoved,
    RangesGranted,
    ReplicaDropped,
    SegmentLimited,
    SegmentMounted,
    SegmentUnmounted,
    SettingsChanged,
    TenantChanged,
    TenantRemoved,
)
from holdfast.messages.rows import PlaceRow, unpack_ids
from holdfast.messages.shapes import Range, Record, SettingValue

NEVER: Instant = 1 << 62


@dataclass(slots=True)
class Member:
    """A node as the primary sees it: the memory it has mounted, under the session of its name."""

    name: str
    boot: int
    session: int
    """0 for a node that is in the log without a session; it is unmounted at `given_up_at` unless it comes back."""
    given_up_at: Instant = 0
    handles: list[SegmentHandle] = field(default_factory=list)
    clean: dict[GrantId, None] = field(default_factory=dict)
    """Grants whose writers this node must close, in the order of asking."""
    clean_untold: dict[GrantId, None] = field(default_factory=dict)
    """Those of `clean` that no command names yet."""
    figures: dict[str, int] = field(default_factory=dict)
    """Its last usage report."""
    fenced: bool = False
    """It has reported that no writer of an older history is left in its memory."""


class NoWindow(NamedTuple):
    """A choice that found no window (see `room`)."""

    again_at: Instant
    """The choice is not repeated before this."""
    looked_at: Instant
    log_index: int
    """Of the state at that time."""
    length: int
    replicas: int
    segments: frozenset[SegmentHandle]
    """The segments it looked at. A node that is reachable again adds others, without a record."""
    unlent_bytes: int
    """Bytes that were not available then. They are once their records are durable, again without a record."""
    tenant: int = 0
    """Whose put it was: others may evict other objects."""


class Absorbed(msgspec.Struct, frozen=True, gc=False):
    """A record was applied, and the primary's own data follows it."""

    applied: Applied
    freed: Freed = ()
    """The freed ranges that lie in no claim: pass them to `reclaim` once the record is durable."""
    commands: Sequence[Command] = ()


class Primary:
    def __init__(self, state: State, rules: Rules) -> None:
        self.state = state
        self.own_rules = rules
        """The rules that this master was started with."""
        self.rules = rules
        self.longest_until: Instant = 0
        """When the last lease granted under an earlier, longer lease time ends; 0 if not computed yet."""
        self.allocators: dict[SegmentHandle, Allocator] = {}
        self.grant_deadline: dict[GrantId, Instant] = {}
        self.grants_of: dict[int, set[GrantId]] = {}
        self.release_at: dict[int, Instant] = {}
        """Quarantine entry -> when the leases on its objects have ended."""
        self.members: dict[str, Member] = {}
        times = SessionTimes(rules.session_lease_ms, rules.session_reply_left_ms, rules.session_jeopardy_ms)
        self.sessions = Book(times, state.epoch, state.session_epoch, state.log_id)
        self.sessions.continues = state.continues
        self.tickets = Tickets(state)
        self.sessions.add_to_answer = lambda session, now: encode_body(self.ticket_terms(now))
        self.unlent: dict[int, Freed] = {}
        """Ranges freed by records that are not durable yet, and so about to be lent again; by `release` number."""
        self.unlent_bytes = 0
        self._next_unlent = 0
        self.claims: dict[GrantId, Claim] = {}
        self.coming_length = 0
        """A piece of this length is known to be free as soon as the next records are durable."""
        self.in_vain = NoWindow(0, 0, 0, NEVER, 0, frozenset(), 0)
        """The last choice that found no window."""
        self.remembered_order: dict[SegmentHandle, Slots] = {}
        """The objects of a segment in order of offset, as of the last layout: only to sort them faster."""
        self.counts = ObjectCounts()
        self.lessees = Lessees()
        self.process: ProcessName | None = None
        """The process that this primary runs in, if others may need to know whether it lives."""
        self.doubt = Doubt()
        self.read_by_all: Callable[[], int] = lambda: LOG_VERSION
        """The newest log version that all masters read (ADR 64); 0: that is not known yet."""
        self.copies = CopyBook()
        self.old_leases_end_at: Instant = 0
        """If this history was restored: when the last lease of an older one has ended."""
        self.trusted_at: Instant = 0
        """If this history was restored: when the last lease given before its segment was verified has ended."""
        self.disk_kept_until: dict[SegmentHandle, Instant] = {}
        """Disk that is away -> when its replicas are given up."""
        self.namespaces: dict[int, str] = {}
        """Client -> the prefix of its tenant's keys, for the clients of tenants that are connected."""
        self.tenants = TenantBook()
        self.former_tenants = FormerTenants(UNKNOWN if state.tenants.were_there else 0)
        self.lost_files: Counter[tuple[str, Damage]] = Counter()
        """Lost files since this primary began, by the disk's node and the kind of damage."""

    @property
    def log_version(self) -> int:
        """Records of this version may be written: every master that is known reads it, or the log holds it already."""
        return max(self.state.log_version, self.read_by_all())

    def check_log_version(self, records: Sequence[Record]) -> None:
        """Raise `LogHeldBack` if one of these is too new to be written now, or `Busy` before this master has looked
        once what the others read. Decisions that would have changed something by then ask `log_version` first."""
        needed = OLDEST_LOG_VERSION
        for record in records:
            needed = max(needed, version_of(record))
        if needed > OLDEST_LOG_VERSION and needed > self.log_version:
            if not self.read_by_all():
                raise Busy(
                    "it is not known yet which log version the other masters read; nothing was changed. Try again"
                )
            raise LogHeldBack(
                f"this needs log version {needed}, and not every master reads it: {self.log_version} is in force; "
                "nothing was changed. Upgrade the masters that `holdfast status` names under `log version`"
            )

    def adopt(self, changed: dict[str, SettingValue]) -> None:
        """Put these settings into force, now that they are durable: no lease is given for longer than the log says."""
        self.rules = in_force(self.own_rules, changed)
        self.longest_until = 0

    def ticket_terms(self, now: Instant) -> TicketTerms:
        """How old a ticket may be, which nodes must know without asking."""
        return self.tickets.terms(self.rules.lease_ttl_ms, now)

    def absorb(self, record: Record, now: Instant) -> Absorbed:
        state = self.state
        if type(record) is ObjectsCommitted and not (record.replaced or record.leased):
            return Absorbed(apply(state, record, now))  # It adds objects, and nothing else changes.
        held_until = self._longest_lease(record)
        obsolete = self.copies.obsolete_files(state, record)
        audits = self.copies.disks_released(state, record)
        hints = self.copies.hints_to_readers(state, record)
        if type(record) is ObjectsEvicted and state.catalogue.holdings is not None:
            self.count_by_tenant(state.catalogue.by_id.slots_of(unpack_sorted_ids(record.ids).tolist()))
        applied = apply(state, record, now)
        self.copies.forget_files(obsolete)
        self.copies.audits.update(dict.fromkeys(audits))
        freed = self.unclaimed(applied.freed)
        match record:
            case RangesGranted():
                self.claims.pop(record.grant, None)
                self.note_grant(record.grant, now)
                if not record.uncleared:
                    client = record.grant.client
                    mixed = client == COPIES and state.tenants.were_there
                    self._note_tenant(record.grant, UNKNOWN if mixed else self.tenant_of(client))
            case GrantCleared():
                self._note_tenant(record.grant, self.former_tenants.awaited.pop(record.grant).tenant)
            case GrantEnded():
                self._forget_grant(record.grant)
            case SegmentMounted():
                # A disk that comes back keeps its allocator: it is as full as it was.
                if record.handle not in self.allocators:
                    self.allocators[record.handle] = Allocator(record.size_bytes)
                    if not state.continues:
                        self.former_tenants.put(record.handle, 0, record.size_bytes, CLEAN)
            case SegmentLimited():
                self.allocators[record.handle].cut_off(record.limit_bytes)
            case SegmentUnmounted():
                self._forget_segment(record.handle)
            case SettingsChanged():
                self.longest_until = NEVER
            case TenantChanged() | TenantRemoved():
                self.tenants.lease_room.count_at = 0  # Shares are others now.
            case EpochStarted():
                self.sessions.epoch = record.epoch
                self.tickets.began_at = now
            case LogStarted():
                self.sessions.history = record.log_id
        if applied.quarantined:
            self.note_quarantine(applied.quarantined, held_until)
        return Absorbed(applied, freed, hints)

    def _note_tenant(self, grant: GrantId, tenant: int) -> None:
        known = self.state.grants[grant]
        for one in known.ranges:
            self.former_tenants.put(one.segment, one.offset, known.length, tenant)

    def needs_clearance(self, ranges: Iterable[Range], length: int, client: int) -> list[Range]:
        """Those of these ranges that may have been another tenant's, which may have kept tickets and grants for them,
        and whose bytes may still be there (I20)."""
        if not self.state.tenants.were_there or self.log_version < CLEARANCES:
            return []  # As the release before: a master of it, which may lead next, could not read of the clearance.
        tenant, former = self.tenant_of(client), self.former_tenants
        return [one for one in ranges if former.differ(one.segment, one.offset, length, tenant)]

    @property
    def knows_clearance(self) -> bool:
        """Is it known whether memory is cleared between tenants? Not before this master has looked once which log
        version the others read; without tenants it does not matter."""
        return not self.state.tenants.were_there or self.log_version >= CLEARANCES or bool(self.read_by_all())

    def count_by_tenant(self, slots: Sequence[int] | Slots) -> None:
        """Count objects that are about to be evicted."""
        holdings = self.state.catalogue.holdings
        if holdings is not None and len(slots):
            self.tenants.evicted.update(holdings.column[np.asarray(slots, np.intp)].tolist())

    def note_grant(self, grant: GrantId, now: Instant) -> None:
        self.grant_deadline[grant] = now + self.rules.grant_timeout_ms + self.copies.patience_ms(grant)
        self.grants_of.setdefault(grant.client, set()).add(grant)

    def note_quarantine(self, entries: Iterable[int], held_until: Instant) -> None:
        for entry in entries:
            quarantined = self.state.quarantine.get(entry)
            if quarantined is None:  # It was on the segment that this record unmounts.
                continue
            if quarantined.grant is None:
                self.release_at[entry] = held_until
            elif not quarantined.writer:
                self._ask_to_clean(self.state.segments[quarantined.segment], quarantined.grant)

    def unclaimed(self, freed: Freed) -> Freed:
        """The parts of these ranges that lie in no claim; the other parts are added to their claims."""
        for claim in self.claims.values():
            if not freed:
                break
            inside, freed = claim.split(freed)
            claim.pieces += inside
        return freed

    def give_up(self, grant: GrantId) -> Freed:
        """Abandon the claim of this grant: nobody waits for it, or its windows can no longer be emptied. Returns its
        memory, to be lent again once all records so far are durable."""
        claim = self.claims.pop(grant, None)
        return () if claim is None else claim.freed()

    def withhold(self, freed: Freed) -> int:
        """Keep these ranges until their record is durable; return the number to `release` them by."""
        self._next_unlent += 1
        self.unlent[self._next_unlent] = freed
        self.unlent_bytes += bytes_of(freed)
        return self._next_unlent

    def release(self, number: int) -> Freed:
        freed = self.unlent.pop(number)
        self.coming_length = 0
        self.unlent_bytes -= bytes_of(freed)
        return freed

    def ask_to_clean_again(self, segment: Segment) -> None:
        """Ask the segment's node once more to close writers: it is another process than the one that was asked before,
        if any was, and quarantines that an earlier copy left there wait for its report (I11)."""
        for quarantined in self.state.quarantine.values():
            if quarantined.segment == segment.handle and quarantined.grant is not None and not quarantined.writer:
                self._ask_to_clean(segment, quarantined.grant)

    def reclaim(self, freed: Freed) -> None:
        for handle, offsets, lengths in freed:
            allocator = self.allocators.get(handle)
            if allocator is None:  # Unmounted since: the range is gone with its segment.
                continue
            if (limit := self.state.segments[handle].limit_bytes) and int((offsets + lengths).max()) > limit:
                lengths = (offsets + lengths).clip(max=limit) - offsets
                offsets, lengths = offsets[lengths > 0], lengths[lengths > 0]
            if len(offsets) == 1:
                allocator.free(int(offsets[0]), int(lengths[0]))
            else:
                allocator.free_many(offsets, lengths)

    def _longest_lease(self, record: Record) -> Instant:
        if not isinstance(record, ObjectsRemoved | ObjectsCommitted | ObjectsEvicted | ReplicaDropped):
            return 0
        if not record.leased:
            return 0
        catalogue = self.state.catalogue
        if isinstance(record, ReplicaDropped):
            leased = [oid for oid, _, _ in PlaceRow.iter_unpack(record.leased)]
        elif isinstance(record, ObjectsEvicted):
            leased = unpack_sorted_ids(record.ids).tolist()
        else:
            leased = unpack_ids(record.leased)
        return max(catalogue.lease_at[slot] for slot in catalogue.by_id.slots_of(leased))

    def _forget_grant(self, grant: GrantId) -> None:
        self.copies.ended(self.state, grant)
        self.former_tenants.awaited.pop(grant, None)
        self.grant_deadline.pop(grant, None)
        mine = self.grants_of.get(grant.client)
        if mine is not None:
            mine.discard(grant)
            if not mine:
                del self.grants_of[grant.client]

    def _forget_segment(self, handle: SegmentHandle) -> None:
        del self.allocators[handle]
        self.former_tenants.forget(handle)
        self.remembered_order.pop(handle, None)
        for grant in [g for g in self.grant_deadline if g not in self.state.grants]:
            self._forget_grant(grant)
        for entry in [e for e in self.release_at if e not in self.state.quarantine]:
            del self.release_at[entry]

    def _ask_to_clean(self, segment: Segment, grant: GrantId) -> None:
        member = self.members.get(segment.name.node)
        if member is not None and (segment.kind == DISK or member.boot == segment.name.boot):
            member.clean[grant] = member.clean_untold[grant] = None

    def tenant_of(self, client: int) -> int:
        """The tenant of a client that is connected."""
        prefix = self.namespaces.get(client)
        return tenant_of(prefix) if prefix else 0

    def live_grants(self, client: int) -> list[Grant]:
        return [self.state.grants[grant] for grant in self.grants_of.get(client, ())]

    @property
    def capacity_bytes(self) -> int:
        """Memory only: disks are counted separately."""
        return sum(segment.usable_bytes for segment in self.state.memory_segments())

    @property
    def free_bytes(self) -> int:
        return sum(self.allocators[segment.handle].free_bytes for segment in self.state.memory_segments())

    def used_on(self, segment: Segment) -> int:
        return max(0, segment.usable_bytes - self.allocators[segment.handle].free_bytes)

    def available(self, segment: Segment, now: Instant) -> bool:
        """May a client put something there? Not while its node's lease is over, its connection closed or the node
        cordoned or draining, nor while a client of an older history may use it, and never on a disk."""
        if segment.kind == DISK or segment.name.node in self.state.modes or segment.handle in self.state.unsettled:
            return False
        return self.reachable(segment, now)

    def reachable(self, segment: Segment, now: Instant) -> bool:
        """Can its bytes be read and written, as far as this primary knows?"""
        member = self.members.get(segment.name.node)
        if member is None or not self.is_live(member, now):
            return False
        return not segment.away if segment.kind == DISK else member.boot == segment.name.boot

    def seen_gone(self, ranges: Iterable[Range]) -> str:
        """A node of one of these ranges whose connection this primary has seen end, and that is not back; empty if
        there is none. A newly promoted primary has seen none end, so a failover causes no refusal by this check."""
        for one in ranges:
            segment = self.state.segments[one.segment]
            member = self.members.get(segment.name.node)
            if member is None or member.boot != segment.name.boot or self.sessions.is_gone(member.session):
                return segment.name.node
        return ""

    def is_live(self, member: Member, now: Instant) -> bool:
        session = self.sessions.get(member.session)
        return session is not None and session.is_live(now)
