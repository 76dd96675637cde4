"""view: looking at an object in place, without a copy, under a lease that is renewed while the view is open."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from holdfast.client.core import Core, OpenView
from holdfast.client.leases import KEPT_SHARE, Lease
from holdfast.client.reading import FreshBytes, fetch, locate_one, still_there
from holdfast.effects import Operation
from holdfast.errors import LeaseLost, ObjectNotFound

RENEW_AT_LEFT = 2 / 3
"""Renewed when a third of the lease has passed."""


@dataclass(slots=True)
class Viewed:
    """What a view shows. `open` is None for a copy, which needs no lease."""

    key: str
    view: memoryview
    open: OpenView | None


def open_view(core: Core, key: str, deadline: float) -> Operation[Viewed]:
    core.check_open()
    history = core.limits.log_id
    lease = core.leases.live(key, core.clock())
    if lease is None:
        lease = yield from locate_one(core, key, deadline)
        if core.limits.log_id != history:
            # A master with another history was met on the way, and what is known now may be of either.
            return (yield from open_view(core, key, deadline))
    memory = core.bytes.maps.get(lease.segment) if lease is not None else None
    if lease is not None and memory is not None:
        viewed = _in_place(core, key, lease, memory)
        if viewed.open is not None and core.limits.log_id != history:
            viewed.open.lost = True
        return viewed
    fresh = FreshBytes()
    if lease is None or (yield from fetch(core, key, fresh, deadline)) is None:
        raise ObjectNotFound(f"no object is stored under {key!r}")
    return Viewed(key, memoryview(fresh.value), None)


def _in_place(core: Core, key: str, lease: Lease, memory: mmap.mmap) -> Viewed:
    ttl = core.limits.lease_ttl_ms * (KEPT_SHARE / 1000)
    held = OpenView(lease.id, lease.segment, lease.start, lease.until, lease.until - ttl * RENEW_AT_LEFT)
    view = memoryview(memory).toreadonly()[lease.start : lease.stop]
    core.views[held] = None
    core.keep(held.renew_at)
    return Viewed(key, view, held)


def close_view(core: Core, viewed: Viewed, deadline: float) -> Operation[None]:
    """Raises LeaseLost if the object may have left its place while it was looked at."""
    held = viewed.open
    if held is None:
        return
    # Another history would have marked it as lost, so until here it was this one.
    history = core.limits.log_id
    core.views.pop(held, None)
    if not held.lost:
        if core.clock() < held.until:
            return
        seen = Lease(held.until, held.segment, held.offset, held.offset, 0, held.id, ())
        if (yield from still_there(core, [seen], history, deadline))[0]:
            return
    core.leases.drop(viewed.key)
    raise LeaseLost(f"{viewed.key!r} left its place while it was viewed: the bytes seen may be wrong. Read it again")


def drop_view(core: Core, viewed: Viewed) -> None:
    """The block raised: nobody will use what was seen, so nothing is checked."""
    if viewed.open is not None:
        core.views.pop(viewed.open, None)
