"""Every call that both clients have, declared once: its arguments, their checks, and its documentation.

A call takes the client's state and its deadline, then the caller's arguments, and gives the operation to run. `Cache`
runs it on the caller's thread, and `AsyncCache` in its event loop; neither adds anything. So a new call is a function
here, and one line in each of the two (ADR 44). Its parameters are explained in `parameters`.

Every call declares `timeout`, for those who read or type-check it. None gets it: the client makes the deadline of it.

Not here: what is not one operation (views, reservations, `keys`), and overloads, which each client has to spell out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypedDict, Unpack

from holdfast.client.arguments import (
    checked_items,
    checked_key,
    checked_keys,
    checked_one_or_many,
    checked_sizes,
    checked_target,
    checked_targets,
    checked_text,
    checked_value,
    put_options,
)
from holdfast.client.buffers import BytesLike
from holdfast.client.operations import (
    batch_gets,
    batch_puts,
    batch_reservations,
    buffer_gets,
    gets,
    lookups,
    puts,
    verbs,
)
from holdfast.client.operations.reservations import Reserved
from holdfast.client.operations.verbs import Explanation
from holdfast.client.state.client import Core
from holdfast.client.targets import CallersRoom, Part
from holdfast.errors import BadPattern, HoldfastError, ObjectNotFound
from holdfast.messages.requests import NodeList, ObjectStat, Status
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Operation

PutValue: TypeAlias = BytesLike | Sequence[BytesLike]
PutMany: TypeAlias = Mapping[str, PutValue] | Iterable[tuple[str, PutValue]]


class PutKeywords(TypedDict, total=False):
    """How objects are to be stored."""

    replicas: int
    """The number of copies, each on another node. 1 unless given."""
    soft_pin: bool
    """Evict it last, as long as it is used now and then."""
    hard_pin: bool
    """Never evict it, and remove it by force only."""
    prefer: str | Sequence[str] | None
    """Nodes or segments to ask for memory first."""
    upsert: bool
    """Replace the object if the key is taken."""
    durability: str | None
    """'durable', 'standby' or 'memory': what a put or commit waits for. Unless given, as the masters are set."""


def put(
    core: Core,
    deadline: float,
    key: str,
    value: PutValue,
    *,
    replicas: int = 1,
    soft_pin: bool = False,
    hard_pin: bool = False,
    prefer: str | Sequence[str] | None = None,
    durability: str | None = None,
    upsert: bool = False,
    timeout: float | None = None,
) -> Operation[bool]:
    """Store it. False: the key was there already, and keeps its object (unless `upsert`). The value is a buffer,
    or a list of them, whose bytes are stored one after the other."""
    options = put_options(replicas, soft_pin, hard_pin, prefer, durability, upsert)
    return puts.put(core, checked_key(key), checked_value(value), options, deadline)


def put_many(
    core: Core, deadline: float, items: PutMany, *, timeout: float | None = None, **keywords: Unpack[PutKeywords]
) -> Operation[int]:
    """Store all of them. Returns the number stored."""
    return batch_puts.put_many(core, checked_items(items), put_options(**keywords), deadline)


def put_each(
    core: Core, deadline: float, items: PutMany, *, timeout: float | None = None, **keywords: Unpack[PutKeywords]
) -> Operation[list[bool | HoldfastError]]:
    """Store all of them. Returns per key True, False if it was there already, or its error."""
    return batch_puts.put_each(core, checked_items(items), put_options(**keywords), deadline)


def get_into(
    core: Core,
    deadline: float,
    key: str,
    target: BytesLike | Sequence[BytesLike | Part],
    *,
    timeout: float | None = None,
) -> Operation[int]:
    """Copy the object into the caller's buffer, or into several, one after the other, and return its size in bytes;
    or copy `Part`s of it into theirs, and return the size of those. BufferTooSmall: nothing was copied."""
    room = CallersRoom(checked_key(key), checked_target(target))
    lease = yield from gets.get_into(core, key, room, deadline)
    if lease is None:
        raise ObjectNotFound(f"no object is stored under {key!r}; nothing was copied")
    return room.taken(lease.size_bytes)


def get_many_into(
    core: Core,
    deadline: float,
    keys: Iterable[str],
    targets: Iterable[BytesLike | Sequence[BytesLike | Part]],
    *,
    verify: bool | None = None,
    timeout: float | None = None,
) -> Operation[list[int | HoldfastError]]:
    """Copy each object into its target, as `get_into` does. Returns per key the number of bytes, 0 if it is not
    stored, or its error. `verify`, unless None, overrides the client's own setting."""
    listed, rooms = checked_targets(keys, targets)
    checked = None if verify is None else bool(verify)
    return buffer_gets.get_many_into(core, listed, rooms, checked, deadline)


def get_many(
    core: Core,
    deadline: float,
    keys: Iterable[str],
    *,
    errors: dict[str, HoldfastError] | None = None,
    timeout: float | None = None,
) -> Operation[dict[str, bytes]]:
    """The objects by key; keys that are not stored are left out. So are those that cannot be read at the moment
    because no node that holds them answers or gives the right bytes: the error of each is put into `errors`."""
    return batch_gets.get_many(core, checked_keys(keys), errors, deadline)


def exists_many(
    core: Core, deadline: float, keys: Iterable[str], *, touch: bool = False, timeout: float | None = None
) -> Operation[list[bool]]:
    """As `exists`, per key."""
    listed = checked_keys(keys)
    if not touch and (there := core.each_in_key_table(listed)) is not None:
        return there
    return (yield from verbs.exists_many(core, listed, bool(touch), deadline))


def lease_many(
    core: Core, deadline: float, keys: Iterable[str], *, timeout: float | None = None
) -> Operation[list[int]]:
    """Look up and lock: the size of each object that is leased now, 0 for a miss. The leases are kept alive until
    `release_many` has been called as often. A leased object is neither evicted nor removed without force."""
    return lookups.lease_many(core, checked_keys(keys), deadline)


def release_many(core: Core, deadline: float, keys: Iterable[str], *, timeout: float | None = None) -> Operation[None]:
    """Give up one lease of each; keys that are not leased are skipped."""
    core.held_leases.release(checked_keys(keys))
    yield from ()


def use_many(
    core: Core, deadline: float, keys: Iterable[str], *, timeout: float | None = None
) -> Operation[list[bool]]:
    """Mark these as used, for the order of eviction, without leasing them. Returns which of them are stored."""
    return lookups.use_many(core, checked_keys(keys), deadline)


def reserve(
    core: Core,
    deadline: float,
    key: str,
    size: int,
    *,
    timeout: float | None = None,
    **keywords: Unpack[PutKeywords],
) -> Operation[Reserved | None]:
    """Memory for one object, to be filled by parts. None: the key is there already (never with `upsert`)."""
    (outcome,) = yield from reserve_many(core, deadline, {key: size}, **keywords)
    if isinstance(outcome, HoldfastError):
        raise outcome
    return outcome


def reserve_many(
    core: Core,
    deadline: float,
    sizes: Mapping[str, int] | Iterable[tuple[str, int]],
    *,
    timeout: float | None = None,
    **keywords: Unpack[PutKeywords],
) -> Operation[list[Reserved | HoldfastError | None]]:
    """Memory for many, in one request: per key its reservation, None if the key is there already, or its error."""
    options = put_options(**keywords)
    keys, lengths = checked_sizes(sizes)
    return batch_reservations.reserve_many(core, keys, lengths, options, deadline)


def remove(
    core: Core, deadline: float, key: str, *, force: bool = False, timeout: float | None = None
) -> Operation[int]:
    """Remove it. Returns 1, or 0 if it was not there. ObjectLeased if it is being read, unless `force`."""
    return verbs.remove(core, checked_key(key), bool(force), deadline)


def remove_many(
    core: Core, deadline: float, keys: Iterable[str], *, force: bool = False, timeout: float | None = None
) -> Operation[list[bool]]:
    """Remove them. Returns per key whether it was there and is gone. Objects being read stay, unless `force`."""
    return verbs.remove_many(core, checked_keys(keys), bool(force), deadline)


def remove_matching(
    core: Core, deadline: float, regex: str, *, force: bool = False, timeout: float | None = None
) -> Operation[int]:
    """Remove the keys in which this RE2 expression is found; returns how many. Skips leased and pinned ones."""
    if not checked_text(regex, "the expression"):
        raise BadPattern("the expression is empty, which would match every key; use remove_all. Nothing was removed")
    return verbs.remove_matching(core, regex, bool(force), deadline)


def remove_all(core: Core, deadline: float, *, force: bool = False, timeout: float | None = None) -> Operation[int]:
    """Remove everything that is not leased or pinned, or with `force` really everything; returns how many."""
    return verbs.remove_matching(core, "", bool(force), deadline)


def pin(
    core: Core, deadline: float, which: str | Iterable[str], *, hard: bool = False, timeout: float | None = None
) -> Operation[list[bool]]:
    """Pin what is stored under these keys, in the place of the pins that it has. Returns per key whether it is."""
    return verbs.change_pins(core, checked_one_or_many(which), not hard, bool(hard), deadline)


def unpin(
    core: Core, deadline: float, which: str | Iterable[str], *, timeout: float | None = None
) -> Operation[list[bool]]:
    """Take the pins away. Returns per key whether it is stored."""
    return verbs.change_pins(core, checked_one_or_many(which), False, False, deadline)


def some_keys(
    core: Core, deadline: float, prefix: str = "", cursor: int = 0, *, timeout: float | None = None
) -> Operation[tuple[list[str], int]]:
    """Some of the keys that begin with `prefix`, maybe none, and the cursor to go on with: 0 at the end."""
    found = yield from verbs.some_keys(core, checked_text(prefix, "the prefix"), cursor, deadline)
    return found.keys, found.cursor


def stat(core: Core, deadline: float, key: str, *, timeout: float | None = None) -> Operation[ObjectStat]:
    """The master's knowledge of an object: its size, replicas, lease and pins."""
    return verbs.stat(core, checked_key(key), deadline)


def stat_many(
    core: Core, deadline: float, keys: Iterable[str], *, timeout: float | None = None
) -> Operation[list[ObjectStat | None]]:
    """As `stat`, per key; None for a key that is not stored."""
    return verbs.stat_many(core, checked_keys(keys), deadline)


def explain(core: Core, deadline: float, key: str, *, timeout: float | None = None) -> Operation[Explanation]:
    """Why an object is kept, or what removed it."""
    return verbs.explain(core, checked_key(key), deadline)


def status(core: Core, deadline: float, *, timeout: float | None = None) -> Operation[Status]:
    """The master's own view of the cluster."""
    return verbs.status(core, deadline)


def operate(core: Core, deadline: float, request: Message, *, timeout: float | None = None) -> Operation[int]:
    """For operators' tools: send `ChangeMode`, `ResizeNode`, `ChangeCopying` or `RevokeWrites`, all idempotent."""
    return verbs.operate(core, request, deadline)


def nodes(core: Core, deadline: float, *, timeout: float | None = None) -> Operation[NodeList]:
    """The nodes and how they stand."""
    return verbs.nodes(core, deadline)
