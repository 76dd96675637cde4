"""Verbs that only talk to the master: exists, remove, list, stat, explain, status."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.client.operations.places import look_for_failing
from holdfast.client.operations.views import let_go_of_ended
from holdfast.client.state.client import KEYS_A_REQUEST, Core, ask, ask_timed
from holdfast.errors import BadRequest, ObjectLeased, ObjectNotFound, Refused
from holdfast.messages.requests import (
    ChangePins,
    Done,
    Exists,
    Explain,
    Explanations,
    GetStatus,
    KeyList,
    ListKeys,
    ListNodes,
    NodeList,
    ObjectStat,
    Presence,
    Remove,
    Removed,
    RemoveMatching,
    Stat,
    Stats,
    Status,
)
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Operation


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an object is kept, or why it is gone."""

    key: str
    stat: ObjectStat | None
    """None if it is not stored."""
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.key}: {self.stat.size_bytes:,} bytes" if self.stat else f"{self.key}: not stored"
        return "\n".join([head, *(f"  {reason}" for reason in self.reasons)])


def exists(core: Core, key: str, touch: bool, deadline: float) -> Operation[bool]:
    """Is it stored? False also if it cannot be read because no node that holds it answers."""
    yield from look_for_failing(core, deadline)
    message = Exists([key], touch, without=core.unreachable_segments())
    presence, _ = yield from ask_timed(core, message, Presence, deadline)
    return presence.found == b"\1"


def exists_many(
    core: Core, keys: list[str], touch: bool, deadline: float, reachable: bool = True
) -> Operation[list[bool]]:
    """Which are stored? With `reachable`, False also for keys that cannot be read because no node that holds them
    answers."""
    found: list[bool] = []
    yield from look_for_failing(core, deadline)
    for start in range(0, len(keys), KEYS_A_REQUEST):
        some = keys[start : start + KEYS_A_REQUEST] if len(keys) > KEYS_A_REQUEST else keys
        message = Exists(some, touch, without=core.unreachable_segments() if reachable else [])
        presence = yield from ask(core, message, Presence, deadline)
        if len(presence.found) != len(some):
            raise BadRequest(f"the master answered for {len(presence.found)} keys, not for {len(some)}")
        found += map(bool, presence.found)
    return found


def remove(core: Core, key: str, force: bool, deadline: float) -> Operation[int]:
    core.leases.drop(key)
    let_go_of_ended(core)
    removal, forgotten = core.own_removals.announce([key])
    try:
        removed = yield from ask(core, Remove([key], core.next_serial(), force, forgotten), Removed, deadline)
    finally:
        core.leases.drop(key)
        core.own_removals.end_removal(removal)
    if removed.leased:
        raise ObjectLeased(
            f"{key!r} is being read: its lease goes on for {removed.lease_left_ms:,} ms. Nothing was removed; "
            "try again then, or use force=True"
        )
    if removed.pinned:
        raise Refused(f"{key!r} is pinned and was not removed; use force=True")
    return removed.removed


def remove_many(core: Core, keys: list[str], force: bool, deadline: float) -> Operation[list[bool]]:
    """Per key: was it there, and is it gone? At most three round trips: look up, remove, look up what stayed."""
    there = yield from exists_many(core, keys, False, deadline, reachable=False)
    wanted = [key for key, found in zip(keys, there, strict=True) if found]
    refused = 0
    for start in range(0, len(wanted), KEYS_A_REQUEST):
        removed = yield from _remove_some(core, wanted[start : start + KEYS_A_REQUEST], force, deadline)
        refused += removed.leased + removed.pinned
    if refused:
        stayed = yield from exists_many(core, wanted, False, deadline, reachable=False)
        wanted = [key for key, found in zip(wanted, stayed, strict=True) if not found]
    gone = set(wanted)
    return [key in gone for key in keys]


def _remove_some(core: Core, keys: list[str], force: bool, deadline: float) -> Operation[Removed]:
    for key in keys:
        core.leases.drop(key)
    let_go_of_ended(core)
    removal, forgotten = core.own_removals.announce(keys)
    try:
        return (yield from ask(core, Remove(keys, core.next_serial(), force, forgotten), Removed, deadline))
    finally:
        for key in keys:
            core.leases.drop(key)
        core.own_removals.end_removal(removal)


def change_pins(core: Core, keys: list[str], soft: bool, hard: bool, deadline: float) -> Operation[list[bool]]:
    """Per key: is it stored, and has it these pins now?"""
    found: list[bool] = []
    for start in range(0, len(keys), KEYS_A_REQUEST):
        some = keys[start : start + KEYS_A_REQUEST]
        presence = yield from ask(core, ChangePins(some, soft, hard), Presence, deadline)
        if len(presence.found) != len(some):
            raise BadRequest(f"the master answered for {len(presence.found)} keys, not for {len(some)}")
        found += map(bool, presence.found)
    return found


def remove_matching(core: Core, pattern: str, force: bool, deadline: float) -> Operation[int]:
    """Remove the keys that match; an empty pattern matches all. Leased and pinned ones are skipped unless forced."""
    total = cursor = 0
    try:
        while True:
            core.leases.clear()
            let_go_of_ended(core)
            removal, forgotten = core.own_removals.announce(None)
            try:
                message = RemoveMatching(pattern, core.next_serial(), cursor, force, forgotten)
                removed = yield from ask(core, message, Removed, deadline)
            finally:
                core.own_removals.end_removal(removal)
            total += removed.removed
            cursor = removed.cursor
            if cursor == 0:
                return total
    finally:
        core.leases.clear()


def some_keys(core: Core, prefix: str, cursor: int, deadline: float) -> Operation[KeyList]:
    return (yield from ask(core, ListKeys(prefix, cursor), KeyList, deadline))


def stat(core: Core, key: str, deadline: float) -> Operation[ObjectStat]:
    stats = yield from ask(core, Stat([key]), Stats, deadline)
    found = stats.stats[0] if stats.stats else None
    if found is None:
        raise ObjectNotFound(f"no object is stored under {key!r}")
    return found


def stat_many(core: Core, keys: list[str], deadline: float) -> Operation[list[ObjectStat | None]]:
    found: list[ObjectStat | None] = []
    for start in range(0, len(keys), KEYS_A_REQUEST):
        some = keys[start : start + KEYS_A_REQUEST]
        stats = (yield from ask(core, Stat(some), Stats, deadline)).stats
        if len(stats) != len(some):
            raise BadRequest(f"the master answered for {len(stats)} keys, not for {len(some)}")
        found += stats
    return found


def explain(core: Core, key: str, deadline: float) -> Operation[Explanation]:
    told = yield from ask(core, Explain([key]), Explanations, deadline)
    if not (told.stats and told.reasons):
        raise BadRequest("the master explained nothing")
    return Explanation(key, told.stats[0], tuple(told.reasons[0]))


def status(core: Core, deadline: float) -> Operation[Status]:
    return (yield from ask(core, GetStatus(), Status, deadline))


def operate(core: Core, request: Message, deadline: float) -> Operation[int]:
    """Send an operator's request. Returns how much it changed."""
    return (yield from ask(core, request, Done, deadline)).count


def nodes(core: Core, deadline: float) -> Operation[NodeList]:
    return (yield from ask(core, ListNodes(), NodeList, deadline))
