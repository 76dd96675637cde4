"""lease_many and use_many: look up which of these keys are there, and keep them from being evicted.

A key whose every replica is on a node that does not answer is a miss: a caller that reads it would only wait.
"""

from __future__ import annotations

from holdfast.client.operations.places import locate, look_for_failing
from holdfast.client.state.client import KEYS_A_REQUEST, Core, ask
from holdfast.client.state.held_leases import RENEW_AFTER, TRY_AGAIN_AFTER
from holdfast.client.state.leases import NO_LEASE, LeaseRow
from holdfast.client.state.own_removals import guarded_read
from holdfast.errors import BadRequest
from holdfast.instant import relied_on
from holdfast.messages.requests import Exists, Presence
from holdfast.operations.effects import Operation


def lease_many(core: Core, keys: list[str], deadline: float) -> Operation[list[int]]:
    """The size of each that is leased now, 0 for those that are not stored, cannot be read, or got no lease."""
    core.check_open()
    unique = dict.fromkeys(keys)
    core.held_leases.check_room(unique)
    return guarded_read(core.own_removals, unique, _lease_many(core, keys, unique, deadline), core.clock, deadline)


def _lease_many(core: Core, keys: list[str], unique: dict[str, None], deadline: float) -> Operation[list[int]]:
    while True:
        history = core.limits.log_id
        found = yield from locate_all(core, list(unique), deadline)
        # Otherwise the history changed on the way, and the leases found may be of either history.
        if core.limits.log_id == history:
            break
    found = {key: row for key, row in found.items() if row[0] != NO_LEASE}
    if core.bytes.failing:
        yield from look_for_failing(core, deadline)
        found = {key: row for key, row in found.items() if core.reachable(row)}
    core.held_leases.take(keys, found, core.limits.lease_ttl_ms)
    if found:
        core.keep(core.held_leases.renew_at)
    return [row[3] - row[2] if (row := found.get(key)) is not None else 0 for key in keys]


def locate_all(core: Core, keys: list[str], deadline: float) -> Operation[dict[str, LeaseRow]]:
    """Leases on those that are stored, however many there are."""
    if len(keys) <= KEYS_A_REQUEST:
        return (yield from locate(core, keys, deadline)) if keys else {}
    found: dict[str, LeaseRow] = {}
    for start in range(0, len(keys), KEYS_A_REQUEST):
        found.update((yield from locate(core, keys[start : start + KEYS_A_REQUEST], deadline)))
    return found


def renew_held(core: Core, now: float, deadline: float) -> Operation[None]:
    """Renew all held leases, and drop those whose objects are gone."""
    leases = core.held_leases
    if now < leases.renew_at:
        return
    ttl = relied_on(core.limits.lease_ttl_ms / 1000)
    leases.renew_at = now + ttl * TRY_AGAIN_AFTER
    before, history = leases.held(), core.limits.log_id
    # A concurrent removal by this client must not free objects that this leases and keeps for reads.
    locating = locate_all(core, list(before), deadline)
    found = yield from guarded_read(core.own_removals, before, locating, core.clock, deadline)
    if core.limits.log_id != history:
        return  # Ids of either may be among them; the next round asks again.
    leases.renewed(before, found)
    if leases:
        leases.renew_at = now + ttl * RENEW_AFTER


def use_many(core: Core, keys: list[str], deadline: float) -> Operation[list[bool]]:
    """Mark these as used. Returns which are stored."""
    found: list[bool] = []
    for start in range(0, len(keys), KEYS_A_REQUEST):
        some = keys[start : start + KEYS_A_REQUEST]
        presence = yield from ask(core, Exists(some, use=True), Presence, deadline)
        if len(presence.found) != len(some):
            raise BadRequest(f"the master answered for {len(presence.found)} keys, not for {len(some)}")
        found += map(bool, presence.found)
    return found
