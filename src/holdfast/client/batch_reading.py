"""get_many: a batch of reads, in as few steps of the interpreter as there can be.

The leases of a batch come as columns and become plain tuples; the copies, the checksums and the answer are each made
in one pass in C. Whatever does not fit that (a checksum that differs, a node that is gone, a lease that ran out) is
looked at key by key, as `get` would.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import xxhash

from holdfast.client.core import KEYS_A_REQUEST, Core
from holdfast.client.leases import Lease, LeaseRow
from holdfast.client.reading import FreshBytes, get, locate, still_there
from holdfast.effects import BULK_FROM, Operation, Work
from holdfast.errors import TryAgain, Uncertain, UnknownSegment
from holdfast.messages.shapes import SegmentPlace

ROUNDS = 3
"""Replicas that a batch asks for before its keys are looked at one by one."""

_digest = xxhash.xxh3_64_intdigest
_until = itemgetter(0)
_segment = itemgetter(1)
_start = itemgetter(2)
_stop = itemgetter(3)
_checksum = itemgetter(4)


def get_many(core: Core, keys: list[str], deadline: float) -> Operation[dict[str, bytes]]:
    result: dict[str, bytes] = {}
    if len(keys) > KEYS_A_REQUEST:
        for start in range(0, len(keys), KEYS_A_REQUEST):
            result.update((yield from _get_some(core, keys[start : start + KEYS_A_REQUEST], deadline)))
        return result
    return (yield from _get_some(core, keys, deadline)) if keys else result


def _get_some(core: Core, keys: list[str], deadline: float) -> Operation[dict[str, bytes]]:
    history = core.limits.log_id
    leases, asked = yield from _leases_on(core, keys, deadline)
    maps = core.bytes.maps
    remote = not maps.keys() >= {*map(_segment, leases.values())}
    local = {key: row for key, row in leases.items() if row[1] in maps} if remote else leases
    size = sum(map(_stop, local.values())) - sum(map(_start, local.values()))
    result: dict[str, bytes]
    again: list[str]
    result, again = yield Work(lambda: _copy_mapped(maps, local, core.verify), bulk=size >= BULK_FROM)
    if remote:
        others = [(key, Lease._make(row)) for key, row in leases.items() if key not in local]
        again += yield from _fetch_remote(core, others, leases, result, deadline)
    now = core.clock()
    another = core.limits.log_id != history
    if another or (leases and min(map(_until, leases.values())) <= now):
        ended = [key for key in result if another or leases[key][0] <= now]
        seen = [Lease._make(leases[key]) for key in ended]
        there = (yield from still_there(core, seen, history, deadline)) if seen else []
        again += [key for key, is_there in zip(ended, there, strict=True) if not is_there]
    for key in again:
        result.pop(key, None)
        core.leases.drop(key)
        data = yield from get(core, key, deadline)
        if data is not None:
            result[key] = data
    if again or remote or asked:
        return {key: result[key] for key in keys if key in result}
    return result


def _leases_on(core: Core, keys: list[str], deadline: float) -> Operation[tuple[dict[str, LeaseRow], bool]]:
    """Leases on those that are stored, and whether they are in another order than the keys."""
    kept = [*map(core.leases.by_key.get, keys)]
    if not any(kept):
        return (yield from locate(core, list(dict.fromkeys(keys)), deadline)), False
    now = core.clock()
    leases: dict[str, LeaseRow] = {}
    unknown: dict[str, None] = {}
    for key, row in zip(keys, kept, strict=True):
        if row is not None and now < row[0]:
            leases[key] = row
        else:
            unknown[key] = None
    if unknown:
        leases.update((yield from locate(core, list(unknown), deadline)))
    return leases, bool(unknown)


def _copy_mapped(
    maps: dict[int, mmap.mmap], leases: dict[str, LeaseRow], verify: bool
) -> tuple[dict[str, bytes], list[str]]:
    """The bytes of objects on this machine, and the keys that need a closer look."""
    rows = leases.values()
    try:
        copies = [maps[segment][start:stop] for _, segment, start, stop, _, _, _ in rows]
    except (KeyError, ValueError):
        # Unmapped meanwhile, because a node is gone.
        return {}, list(leases)
    if not verify or [*map(_digest, copies)] == [*map(_checksum, rows)]:
        return dict(zip(leases, copies, strict=True)), []
    result: dict[str, bytes] = {}
    again: list[str] = []
    for (key, row), data in zip(leases.items(), copies, strict=True):
        if row[4] and (_digest(data) or 1) != row[4]:
            again.append(key)
        else:
            result[key] = data
    return result, again


class Part(NamedTuple):
    """An object of a batch, and the replica that it is read from now."""

    key: str
    lease: Lease
    place: SegmentPlace
    offset: int
    hurried: bool
    """There is another one to turn to."""


def _fetch_remote(
    core: Core,
    items: Sequence[tuple[str, Lease]],
    leases: dict[str, LeaseRow],
    result: dict[str, bytes],
    deadline: float,
) -> Operation[list[str]]:
    """One pipelined read a node; what a node could not give, in the same way from other replicas. Keys that need a
    closer look are named in the answer. Where something was read is noted in `leases`."""
    again: list[str] = []
    for _ in range(ROUNDS):
        by_node: dict[tuple[str, bool], list[Part]] = {}
        for key, lease in items:
            part = _best_replica(core, key, lease)
            if part is None:
                again.append(key)
            else:
                leases[key] = lease._replace(
                    segment=part.place.handle, start=part.offset, stop=part.offset + lease.size_bytes
                )
                by_node.setdefault((part.place.data_address, part.hurried), []).append(part)
        items = []
        for some in by_node.values():
            try:
                again += yield Work(lambda some=some: _read_node(core, some, result, deadline))  # type: ignore[misc]
            except UnknownSegment:
                again += [part.key for part in some]
            except (TryAgain, Uncertain):
                # The node counts as bad now, so the next round asks others.
                items += [(part.key, part.lease) for part in some]
        if not items:
            break
    return again + [key for key, _ in items]


def _best_replica(core: Core, key: str, lease: Lease) -> Part | None:
    """The first whose node did not fail a moment ago; None if there is none."""
    found: tuple[SegmentPlace, int] | None = None
    for segment, offset in ((lease.segment, lease.start), *lease.others):
        place = core.segments.places.get(segment)
        if place is None or core.bytes.is_bad(place):
            continue
        if found is not None:
            return Part(key, lease, *found, hurried=True)
        found = (place, offset)
    return None if found is None else Part(key, lease, *found, hurried=False)


def _read_node(core: Core, parts: Sequence[Part], result: dict[str, bytes], deadline: float) -> list[str]:
    wanted = []
    values = []
    for part in parts:
        fresh = FreshBytes()
        wanted.append((part.place, part.offset, fresh(part.lease.size_bytes)))
        values.append(fresh)
    core.bytes.read_many(parts[0].place, wanted, deadline, parts[0].hurried)
    again = []
    for part, fresh in zip(parts, values, strict=True):
        data = fresh.value
        if core.verify and part.lease.checksum and (_digest(data) or 1) != part.lease.checksum:
            again.append(part.key)
        else:
            result[part.key] = data
    return again
