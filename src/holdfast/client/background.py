"""A client's background work: renew the leases of open views and those that are held, extend grants in use, return
idle ones, probe nodes that do not answer.

Nothing runs while there is nothing to keep. The next round retries what fails here; the call that needs a lease or a
grant which ran out notices and handles it.
"""

from __future__ import annotations

import logging

from holdfast.client.operations.lookups import renew_held
from holdfast.client.operations.reservations import any_forgotten, give_up_forgotten
from holdfast.client.operations.views import RENEW_AT_LEFT, let_go_of_ended
from holdfast.client.state.client import Core, OpenView, ask, ask_timed
from holdfast.client.state.grants import CARRIED_WITHIN_SECONDS
from holdfast.client.state.leases import NO_LEASE, lease_until
from holdfast.errors import ClientClosed, HoldfastError
from holdfast.instant import relied_on
from holdfast.messages.requests import Done, ExtendGrants, Presence, RenewLeases, ReturnGrants
from holdfast.messages.rows import SeenRow
from holdfast.operations.effects import Operation, Work

log = logging.getLogger("holdfast.client")
ROUND_SECONDS = 5.0
SHORTEST_PAUSE = 0.02
LINGER_SECONDS = 5.0
"""How long the shell's keeper waits for something new to keep before it ends."""


def next_due(core: Core, now: float) -> float | None:
    """When the next work is due; None while there is nothing to keep."""
    due = core.grants.next_due(now)
    for view in list(core.views):
        if not view.lost and (due is None or view.renew_at < due):
            due = view.renew_at
    probe = core.bytes.failing.next_probe()
    others = [core.held_leases.renew_at if core.held_leases else None, probe.probe_at if probe is not None else None]
    if core.shares:
        # Also after its grant has run out: the memory is not free until this client gives it back.
        others.append(now if any_forgotten(core) else now + CARRIED_WITHIN_SECONDS)
    return min((each for each in (due, *others) if each is not None), default=None)


def pause_until(due: float | None, now: float) -> float:
    """How long the shell's keeper may sleep. Capped at CARRIED_WITHIN_SECONDS while there is something to keep, so that
    puts, each of which may take a grant, never have to wake the keeper."""
    if due is None:
        return LINGER_SECONDS
    return max(SHORTEST_PAUSE, min(due - now, CARRIED_WITHIN_SECONDS))


def keep_once(core: Core) -> Operation[None]:
    """Do one round of all work that is due."""
    now = core.clock()
    deadline = now + ROUND_SECONDS
    let_go_of_ended(core)
    give_up_forgotten(core)
    yield from _try(_renew_views(core, now, deadline))
    yield from _try(renew_held(core, now, deadline))
    yield from _try(_extend(core, now, deadline))
    core.grants.retire_idle(core.clock())
    yield from _try(return_grants(core, deadline))
    busy = core.grants.busy_segments()
    yield Work(lambda: core.bytes.sweep(busy))
    probe = core.bytes.failing.next_probe()
    # One probe per round, because the leases and grants of the next round wait for it.
    if probe is not None and probe.probe_at <= core.clock():
        yield Work(lambda: core.bytes.probe(probe.place))


def _try(operation: Operation[None]) -> Operation[None]:
    try:
        yield from operation
    except ClientClosed:
        raise
    except HoldfastError:
        # The next round tries again; the call that needs what was not kept reports it.
        return


def _renew_views(core: Core, now: float, deadline: float) -> Operation[None]:
    due: list[OpenView] = [view for view in list(core.views) if view.renew_at <= now and not view.lost]
    if not due:
        return
    ttl = relied_on(core.limits.lease_ttl_ms / 1000)
    for view in due:
        view.renew_at = now + ttl / 10
    rows = SeenRow.pack_rows((view.id, view.segment, view.offset) for view in due)
    presence, sent_at = yield from ask_timed(core, RenewLeases(rows), Presence, deadline)
    # With the TTL of this reply: it may have changed since the master welcomed us.
    until = lease_until(sent_at, presence.lease_ttl_ms)
    for view, there in zip(due, presence.found, strict=False):
        if there and until == NO_LEASE:
            # One of them got no lease, and the reply does not say which: ask again soon. A view that has run out by its
            # end asks whether its object was still there.
            continue
        if there:
            view.until = until
            view.renew_at = until - ttl * RENEW_AT_LEFT
        else:
            view.lost = True
            if view.ended:
                log.warning("the memory of %r, which something made from a view still uses, may change now", view.key)


def _extend(core: Core, now: float, deadline: float) -> Operation[None]:
    due = core.grants.to_extend(now)
    if not due:
        return
    for grant in due:
        grant.extend_at = now + grant.timeout / 10
    done, sent_at = yield from ask_timed(core, ExtendGrants([grant.id for grant in due]), Done, deadline)
    if done.count == len(due):
        for grant in due:
            grant.extended(sent_at)
        return
    # One of them has ended. The master does not say which, and the others must not end too, so extend them one by one.
    for grant in due:
        done, sent_at = yield from ask_timed(core, ExtendGrants([grant.id]), Done, deadline)
        if done.count:
            grant.extended(sent_at)
        else:
            grant.until = now


def return_grants(core: Core, deadline: float) -> Operation[None]:
    """Give back finished grants, in case no other request carries them soon."""
    finished, torn = core.grants.take_finished(), core.grants.take_torn()
    try:
        if finished:
            yield from ask(core, ReturnGrants(finished, settled=True), Done, deadline)
            finished = []
        if torn:
            yield from ask(core, ReturnGrants(torn, settled=False), Done, deadline)
            torn = []
    finally:
        core.grants.put_back(core.clock(), finished, torn)
