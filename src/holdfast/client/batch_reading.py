"""get_many: a batch of reads, in as few steps of the interpreter as there can be.

The leases of a batch come as columns and become plain tuples; the copies, the checksums and the answer are each made
in one pass in C. Whatever does not fit that (a checksum that differs, a node that is gone, a lease that ran out) is
looked at key by key, as `get` would.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import xxhash

from holdfast.client.core import Core
from holdfast.client.leases import Lease, LeaseRow
from holdfast.client.own_removals import guarded_read
from holdfast.client.reading import FreshBytes, get, locate, still_there, take_over
from holdfast.effects import BULK_FROM, Ahead, Begun, Operation, Reply, Work
from holdfast.errors import ReplyLost, TryAgain, Uncertain, UnknownSegment, Unreachable
from holdfast.messages.requests import Locate, Located
from holdfast.messages.shapes import SegmentPlace

ROUNDS = 3
"""Replicas that a batch asks for before its keys are looked at one by one."""

LEAST_PART = 128
MOST_PART = 512
"""Replies to two of these fit into the buffers of a connection that nobody reads at the moment."""

_digest = xxhash.xxh3_64_intdigest
_until = itemgetter(0)
_segment = itemgetter(1)
_start = itemgetter(2)
_stop = itemgetter(3)
_checksum = itemgetter(4)


@dataclass(slots=True)
class Part:
    """Some keys of a batch, and what is known of them."""

    keys: list[str]
    history: int
    leases: dict[str, LeaseRow]
    unknown: list[str]
    asked_at: float
    begun: Begun | None = None
    """The master was asked for the unknown ones."""


def get_many(core: Core, keys: list[str], deadline: float) -> Operation[dict[str, bytes]]:
    """The objects by key; keys that are not stored are left out."""
    return guarded_read(core.own_removals, keys, _get_many(core, keys, deadline), core.clock, deadline)


def _get_many(core: Core, keys: list[str], deadline: float) -> Operation[dict[str, bytes]]:
    """In parts: while one is copied, the master looks up the next."""
    if len(keys) < 2 * LEAST_PART:
        return (yield from _get_part(core, (yield from _ask_for(core, keys)), deadline)) if keys else {}
    result: dict[str, bytes] = {}
    size = min(MOST_PART, -(-len(keys) // 2))
    coming: Part | None = None
    try:
        for start in range(0, len(keys) + size, size):
            part, coming = coming, None
            if start < len(keys):
                coming = yield from _ask_for(core, keys[start : start + size], ahead=True)
            if part is not None:
                result.update((yield from _get_part(core, part, deadline)))
    finally:
        if coming is not None and coming.begun is not None:
            coming.begun.drop()
    return result


def _get_part(core: Core, part: Part, deadline: float) -> Operation[dict[str, bytes]]:
    keys, history = part.keys, part.history
    leases, asked = yield from _leases_on(core, part, deadline)
    maps = core.bytes.maps
    remote = not maps.keys() >= {*map(_segment, leases.values())}
    local = {key: row for key, row in leases.items() if row[1] in maps} if remote else leases
    size = sum(map(_stop, local.values())) - sum(map(_start, local.values()))
    result: dict[str, bytes]
    again: list[str]
    verify = core.verify or bool(core.segments.unverified)
    result, again = yield Work(lambda: _copy_mapped(maps, local, verify), bulk=size >= BULK_FROM)
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


def _ask_for(core: Core, keys: list[str], ahead: bool = False) -> Operation[Part]:
    """What is known of these keys, and, if it is to be sent ahead, the question for the others under way."""
    history = core.limits.log_id
    kept = [*map(core.leases.by_key.get, keys)]
    leases: dict[str, LeaseRow] = {}
    unknown = dict.fromkeys(keys)
    if any(kept):
        now = core.clock()
        leases = {key: row for key, row in zip(keys, kept, strict=True) if row is not None and now < row[0]}
        unknown = dict.fromkeys(key for key in keys if key not in leases)
    part = Part(keys, history, leases, list(unknown), core.clock())
    if ahead and unknown:
        # What cannot be sent now is asked for when its turn comes.
        with contextlib.suppress(Unreachable):
            part.begun = yield Ahead(Locate(part.unknown))
    return part


def _leases_on(core: Core, part: Part, deadline: float) -> Operation[tuple[dict[str, LeaseRow], bool]]:
    """Leases on those that are stored, and whether they are in another order than the keys."""
    leases, unknown = part.leases, part.unknown
    if not unknown:
        return leases, False
    found: dict[str, LeaseRow] | None = None
    if part.begun is not None:
        begun, part.begun = part.begun, None
        try:
            reply = yield Reply(begun)
        except (Unreachable, ReplyLost):
            reply = None
        if type(reply) is Located and core.limits.log_id == part.history:
            found = yield from take_over(core, unknown, reply, part.asked_at, part.history, deadline)
    if found is None:
        found = yield from locate(core, unknown, deadline)
    return {**leases, **found} if leases else found, bool(leases)


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


class Fetched(NamedTuple):
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
        by_node: dict[tuple[str, bool], list[Fetched]] = {}
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


def _best_replica(core: Core, key: str, lease: Lease) -> Fetched | None:
    """The first whose node did not fail a moment ago; None if there is none."""
    found: tuple[SegmentPlace, int] | None = None
    for segment, offset in ((lease.segment, lease.start), *lease.others):
        place = core.segments.places.get(segment)
        if place is None or core.bytes.is_bad(place):
            continue
        if found is not None:
            return Fetched(key, lease, *found, hurried=True)
        found = (place, offset)
    return None if found is None else Fetched(key, lease, *found, hurried=False)


def _read_node(core: Core, parts: Sequence[Fetched], result: dict[str, bytes], deadline: float) -> list[str]:
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
        if core.verifies(part.place.handle) and part.lease.checksum and (_digest(data) or 1) != part.lease.checksum:
            again.append(part.key)
        else:
            result[part.key] = data
    return again
