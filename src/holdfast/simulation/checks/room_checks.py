"""Room is made for puts at the least cost: none waits while a window exists (I10), a put that waits evicts nothing, one
that is served evicts about as much as it gets, and soft-pinned objects go last.

The checker sees every decision about a grant, before and after it, and finds windows in the simplest way: it goes
through everything in a segment that must stay, and measures the gaps between. ADR 28 promises of soft pins: for a put
they go only if no window of its least length is without them; for the watermark only if nothing else is left. Where
there are tenants, objects of those with a guarantee are taken to stay, except for their own puts: some of them may go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.catalogue.catalogue import COPYING, HARD_PIN, LIVE, MASKED, MEMORY, SOFT_PIN
from holdfast.core.objects.puts import least_wanted_bytes
from holdfast.core.objects.surplus import NOBODY
from holdfast.core.primary.decision import NextStep, Parked
from holdfast.core.primary.primary import Primary
from holdfast.core.state.grants import Grant
from holdfast.core.state.state import Segment
from holdfast.ids import LARGE_ALIGN, LARGE_FROM, SMALL_ALIGN, extent_of, tenant_of
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine, Reply
from holdfast.messages.requests import Granted, GrantRanges
from holdfast.messages.shapes import Message
from holdfast.simulation.checks.log_checks import Report

Decide = Callable[[Message | NextStep, int, Instant], tuple[Reply, int]]


class RoomChecks:
    def __init__(self, report: Report) -> None:
        self._report = report

    def watch(self, name: str, engine: Engine) -> None:
        engine._decide = partial(self._decide, name, engine, engine._decide)  # type: ignore[method-assign]

    def _decide(
        self, name: str, engine: Engine, decide: Decide, request: Message | NextStep, caller: int, now: Instant
    ) -> tuple[Reply, int]:
        if type(request) is not GrantRanges:
            return decide(request, caller, now)
        primary = engine.primary
        before = memory_of(primary)
        soft = soft_pinned(primary, now)
        spare, largest = _spare_bytes(primary), max(before.values(), default=0)
        plain = bool(soft) and has_window(primary, request, now, soft_too=False, own=NOBODY)
        reply, after = decide(request, caller, now)
        left = memory_of(primary)
        gone = {oid: size for oid, size in before.items() if oid not in left}
        if plain and (lost := soft & gone.keys()):
            self._report("soft pins", f"{name} evicts {min(lost):x} for a put that has a window without it", name)
        given: Granted | Grant | None = reply if isinstance(reply, Granted) else None
        if request.grant in primary.former_tenants.awaited:  # It has its memory, which is being cleared.
            given = primary.state.grants[request.grant]
        elif isinstance(reply, Parked):
            self._waits(name, engine, request, sum(gone.values()), primary.tenant_of(caller), now)
        if given is not None and gone:
            # Two objects may reach beyond a window's ends, and with each its other replicas leave.
            window = (given.length + 2 * largest) * request.replicas
            if sum(gone.values()) > (window + (window + spare if spare else 0)) * request.replicas:
                what = f"{name} evicts {sum(gone.values()):,} bytes for a grant of {given.length:,}"
                self._report("I10", f"{what} x {request.replicas}, with {spare:,} to spare", name)
        return reply, after

    def _waits(self, name: str, engine: Engine, request: GrantRanges, gone: int, own: int, now: Instant) -> None:
        primary = engine.primary
        if gone:
            self._report("I10", f"{name} evicts {gone:,} bytes for a put that goes on waiting", name)
        elif not primary.unlent and has_window(primary, request, now, primary.rules.evict_soft_pinned, own):
            length = least_wanted_bytes(request)
            self._report("I10", f"{name} lets a put of {length:,} bytes wait although there is a window", name)

    def tick(self, name: str, engine: Engine, tick: Callable[[Instant], bool], now: Instant) -> bool:
        """Check eviction by watermark. When nodes come, go or are emptied, objects leave for other reasons; so do those
        of a tenant with a limit."""
        primary, state = engine.primary, engine.state
        soft, topology = soft_pinned(primary, now), state.topology
        waited = engine.parked  # A window is emptied for these, which may hold soft-pinned objects.
        more = tick(now)
        limited = any(one.limit_bytes or one.max_objects for one in state.tenants.by_number.values())
        other = state.modes or state.disks() or waited or engine.parked or limited
        if soft and state.topology == topology and not other:
            lost = soft - memory_of(primary).keys()
            live = state.catalogue.live().tolist()
            others = [slot for slot in live if _may_go(primary, slot, now, soft_too=False, own=NOBODY)]
            if lost and others:
                self._report("soft pins", f"{name} evicts {min(lost):x} before others that nothing keeps", name)
        return more


def memory_of(primary: Primary) -> dict[int, int]:
    """The bytes of all replicas in memory, for every visible object."""
    catalogue = primary.state.catalogue
    return {
        catalogue.id_at[slot]: extent_of(catalogue.size_at[slot])
        * sum(place.kind == MEMORY for place in catalogue.replicas(slot))
        for slot in catalogue.live().tolist()
        if not catalogue.flags_at[slot] & MASKED
    }


def soft_pinned(primary: Primary, now: Instant) -> set[int]:
    """Ids of objects whose soft pin has not ended."""
    state = primary.state
    return {
        state.catalogue.id_at[slot]
        for slot, until in state.catalogue.soft_pin_until.items()
        if (until > now or state.catalogue.used_at[slot] > now - state.soft_pin_ttl_ms)
        and state.catalogue.flags_at[slot] & (LIVE | MASKED | SOFT_PIN) == LIVE | SOFT_PIN
    }


def _may_go(primary: Primary, slot: int, now: Instant, soft_too: bool, own: int) -> bool:
    catalogue = primary.state.catalogue
    stays = MASKED | HARD_PIN | COPYING | (0 if soft_too else SOFT_PIN)
    if catalogue.flags_at[slot] & stays or catalogue.lease_at[slot] > now:
        return False
    tenant = tenant_of(str(catalogue.keys[slot])) if catalogue.holdings is not None else own
    return tenant == own or not primary.state.tenants.of(tenant).guaranteed_bytes


def has_window(primary: Primary, request: GrantRanges, now: Instant, soft_too: bool, own: int) -> bool:
    """Is there a range as long as the request needs on enough nodes, with nothing in it that must stay? `own`: the
    tenant whose put it is."""
    length = least_wanted_bytes(request)
    segments = [one for one in primary.state.segments.values() if primary.available(one, now)]
    nodes = {one.name.node for one in segments if _longest_gap(primary, one, length, now, soft_too, own) >= length}
    return len(nodes) >= request.replicas


def _longest_gap(primary: Primary, segment: Segment, length: int, now: Instant, soft_too: bool, own: int) -> int:
    state, handle = primary.state, segment.handle
    catalogue = state.catalogue
    stays = [
        (place.offset, place.offset + extent_of(catalogue.size_at[slot]))
        for slot in catalogue.live().tolist()
        if not catalogue.flags_at[slot] & MASKED and not _may_go(primary, slot, now, soft_too, own)
        for place in catalogue.replicas(slot)
        if place.segment == handle
    ]
    for grant in state.grants.values():
        for place in grant.ranges:
            if place.segment == handle:
                gaps = grant.taken.gaps(grant.length)
                stays += [(place.offset + start, place.offset + end) for start, end in gaps]
    for quarantined in state.quarantine.values():
        if quarantined.segment == handle:
            stays += [(offset, offset + size) for offset, size in quarantined.pieces]
    for freed in primary.unlent.values():
        for one, offsets, sizes in freed:
            if one == handle:
                stays += zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True)
    align = LARGE_ALIGN if length >= LARGE_FROM else SMALL_ALIGN
    longest = at = 0
    for start, end in sorted([*stays, (segment.usable_bytes, segment.usable_bytes)]):
        longest = max(longest, min(start, segment.usable_bytes) - -(-at // align) * align)
        at = max(at, end)
    return longest


def _spare_bytes(primary: Primary) -> int:
    """How much a choice of windows may evict for the puts behind it."""
    rules, capacity = primary.rules, primary.capacity_bytes
    kept = int((rules.high_watermark - 1.5 * rules.eviction_margin) * capacity)
    return max(0, capacity - primary.free_bytes - primary.unlent_bytes - kept)
