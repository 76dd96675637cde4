"""Removal by key, by pattern, or of everything. A removal is logged as the ids it removed, never as a rule (I7).

Removing a leased object is refused without force, unless all of its leases are the remover's own and it has forgotten
them, or a revoked client's. With force, and where a revoked client leased it, its key is unbound at once, while its
memory waits in quarantine for the lease to end, so that its reader goes on seeing its bytes (I2, I8).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from holdfast.core.catalogue.catalogue import HARD_PIN, MASKED
from holdfast.core.objects.checks import check_keys
from holdfast.core.primary.decision import Decision, NextStep, Unfinished
from holdfast.core.primary.lessees import REVOKED_LESSEE, SEVERAL_LESSEES
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import REMOVAL_STEP_SLOTS, STEP_OBJECTS, VISIT_SLOTS
from holdfast.errors import BadPattern
from holdfast.ids import NAMESPACE_CHARACTERS, RESERVED, is_reserved
from holdfast.instant import Instant
from holdfast.messages import requests as q
from holdfast.messages.records import Cause, ObjectsRemoved, RemovalAnswered
from holdfast.messages.rows import RemovedRow, pack_ids
from holdfast.messages.shapes import Record

MAX_PATTERN_BYTES = 4_096


class RemovalStep(NextStep, frozen=True, gc=False):
    """Where a removal by key goes on: at the key whose place the cursor of the answer so far is."""

    request: q.Remove
    keys: list[str]
    """Each once."""
    so_far: q.Removed


def remove(primary: Primary, request: q.Remove, client: int, now: Instant) -> Decision:
    check_keys(request.keys)
    so_far = _answered(primary, request, client)
    if so_far is not None and not so_far.cursor:
        return Decision(so_far)
    keys = list(dict.fromkeys(request.keys)) if len(request.keys) > 1 else request.keys
    return removal_step(primary, RemovalStep(request, keys, so_far or q.Removed(0)), client, now)


def removal_step(primary: Primary, step: RemovalStep, client: int, now: Instant) -> Decision:
    """Remove the next keys. Each step that removed something is remembered with the answer so far: a retry at the next
    primary goes on where this one stopped, and counts nothing twice."""
    request, so_far = step.request, step.so_far
    stop = so_far.cursor + STEP_OBJECTS
    is_last = stop >= len(step.keys)
    keys = step.keys if is_last and not so_far.cursor else step.keys[so_far.cursor : stop]
    found = primary.state.catalogue.by_key.slots_of(keys)
    slots = [slot for slot in found if slot >= 0]
    hidden = primary.state.mask.slots_under(keys)
    removed, records = _remove(primary, slots + hidden, request, client, Cause.REMOVE, now)
    answer = _added(so_far, removed, 0 if is_last else stop, len(found) - len(slots))
    records = _remembered(answer, records, client, request.serial)
    return Decision(answer if is_last else Unfinished(RemovalStep(request, step.keys, answer)), records)


def _answered(primary: Primary, request: q.Remove | q.RemoveMatching, client: int) -> q.Removed | None:
    """The answer to this removal that is remembered. Its cursor says where it was cut short."""
    earlier = primary.state.answers.get((client, request.serial))
    return None if earlier is None else q.Removed(*RemovedRow.unpack_one(earlier))


def _added(so_far: q.Removed, more: q.Removed, cursor: int, missing: int = 0) -> q.Removed:
    return q.Removed(
        removed=so_far.removed + more.removed,
        leased=so_far.leased + more.leased,
        lease_left_ms=max(so_far.lease_left_ms, more.lease_left_ms),
        cursor=cursor,
        missing=so_far.missing + missing,
        pinned=so_far.pinned + more.pinned,
    )


class MatchingStep(NextStep, frozen=True, gc=False):
    """Where a removal by pattern goes on."""

    request: q.RemoveMatching
    cursor: int
    so_far: q.Removed


def remove_matching(primary: Primary, request: q.RemoveMatching, client: int, now: Instant) -> Decision:
    compiled(_within(request.pattern)[1])
    earlier = _answered(primary, request, client)
    if earlier is not None:
        return Decision(earlier)
    return matching_step(primary, MatchingStep(request, max(0, request.cursor), q.Removed(0)), client, now)


def matching_step(primary: Primary, step: MatchingStep, client: int, now: Instant) -> Decision:
    """Remove what matches in the next slots. Each step is remembered as those of a removal by key are."""
    request = step.request
    namespace, pattern = _within(request.pattern)
    matches = compiled(pattern).search if pattern else None
    named = primary.state.catalogue.keys
    until = max(0, request.cursor) + VISIT_SLOTS
    first, stop = step.cursor, min(step.cursor + REMOVAL_STEP_SLOTS, until)
    inside = named.slots_with(namespace.encode(), first, stop)
    slots = [
        slot
        for slot, key in zip(inside.tolist(), named.keys_of(inside), strict=True)
        if (namespace or not is_reserved(key)) and (matches is None or matches(key[len(namespace) :]))
    ]
    cause = Cause.REMOVE_BY_REGEX if pattern else Cause.REMOVE_ALL
    found, records = _remove(primary, slots, request, client, cause, now)
    answer = _added(step.so_far, found, stop if stop < len(named) else 0)
    records = _remembered(answer, records, client, request.serial)
    if answer.cursor and stop < until:
        return Decision(Unfinished(MatchingStep(request, stop, answer)), records)
    return Decision(answer, records)


def _within(pattern: str) -> tuple[str, str]:
    """(namespace whose keys are meant, the expression that they must match behind it). A master puts a tenant's
    namespace before the tenant's pattern; patterns of clients do not begin with the reserved character."""
    if pattern.startswith(RESERVED):
        return pattern[:NAMESPACE_CHARACTERS], pattern[NAMESPACE_CHARACTERS:]
    return "", pattern


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Any:
    """RE2 takes time linear in the key, whatever the pattern; `re` takes 15 s on `(a+)+$`."""
    if len(pattern.encode()) > MAX_PATTERN_BYTES:
        raise BadPattern(f"the pattern is longer than {MAX_PATTERN_BYTES:,} bytes; nothing was removed")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        text = error.args[0] if error.args else "invalid"
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        raise BadPattern(f"the pattern is no RE2 expression ({text}); nothing was removed") from None


def _remove(
    primary: Primary, slots: list[int], request: q.Remove | q.RemoveMatching, client: int, cause: Cause, now: Instant
) -> tuple[q.Removed, list[Record]]:
    catalogue = primary.state.catalogue
    lease_at, flags_at, lessee_at = catalogue.lease_at, catalogue.flags_at, catalogue.lessee_at
    force = request.force
    forgetful = primary.lessees.number_of(client) if request.forgotten else SEVERAL_LESSEES
    free: list[int] = []
    leased_ids: list[int] = []
    leased = pinned = lease_left = hidden = 0
    for slot in slots:
        # A client that has forgotten its own leases no longer reads anything under them.
        is_leased = lease_at[slot] > now and (not forgetful or lessee_at[slot] != forgetful)
        if flags_at[slot] & MASKED:
            # It was already hidden from readers; but another master may hold it, and must not bring it back (I7).
            free.append(catalogue.id_at[slot])
            hidden += 1
        elif not force and flags_at[slot] & HARD_PIN:
            pinned += 1
        elif not force and is_leased and lessee_at[slot] != REVOKED_LESSEE:
            leased += 1
            lease_left = max(lease_left, lease_at[slot] - now)
        elif is_leased:
            leased_ids.append(catalogue.id_at[slot])
        else:
            free.append(catalogue.id_at[slot])
    records: list[Record] = [ObjectsRemoved(pack_ids(free), pack_ids(leased_ids), cause)] if free or leased_ids else []
    return q.Removed(len(free) - hidden + len(leased_ids), leased, lease_left, pinned=pinned), records


def _remembered(answer: q.Removed, records: list[Record], client: int, serial: int) -> list[Record]:
    """Log the reply for retries. One that reports no removal need not be: a retry would remove nothing twice."""
    if records:
        packed = RemovedRow.pack(
            answer.removed, answer.leased, answer.lease_left_ms, answer.cursor, answer.missing, answer.pinned
        )
        records.append(RemovalAnswered(client, serial, packed))
    return records
