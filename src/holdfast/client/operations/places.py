"""Learning where segments are, and mapping the ones on this machine."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.client.state.client import Core, ask
from holdfast.effects import Operation, Work
from holdfast.messages.requests import ListSegments, SegmentList

LOOK_AGAIN_SECONDS = 0.25
"""While nodes are failing: a node that was started again has other segments, or another address."""


def refresh(core: Core, deadline: float) -> Operation[None]:
    told = yield from ask(core, ListSegments(), SegmentList, deadline)
    before = core.segments.names_by_address()
    gone = core.segments.update(told, core.clock())
    core.bytes.reconsider()
    if core.bytes.failing:
        now = core.segments.names_by_address()
        core.bytes.failing.keep_only({address for address, names in now.items() if names == before.get(address)})
    if gone:
        # Leases on other segments go with them: this is rare, and they cost one request to get back.
        core.leases.clear()
        busy = core.grants.busy_segments()
        yield Work(lambda: core.bytes.forget(gone, told.segments, busy))


def look_for_failing(core: Core, deadline: float) -> Operation[None]:
    """While nodes are failing, ask the master whether they were started again, or are elsewhere: now and then, and
    whenever its replies say that something has changed. A disk keeps its handle where its node gets a new address."""
    if not core.bytes.failing:
        return
    if core.segments.stale or core.clock() >= core.segments.told_at + LOOK_AGAIN_SECONDS:
        yield from refresh(core, deadline)


def ready_to_read(core: Core, handles: Iterable[int], deadline: float) -> Operation[None]:
    """Afterwards each of these segments that exists is known, and mapped if it is local."""
    wanted = set(handles) - core.bytes.settled
    if not wanted:
        return
    if not wanted <= core.segments.places.keys():
        yield from refresh(core, deadline)
    places = [core.segments.places[handle] for handle in wanted if handle in core.segments.places]
    if places:
        yield Work(lambda: core.bytes.attach_reading(places, deadline))


def ready_to_write(core: Core, deadline: float) -> Operation[None]:
    """Afterwards all local segments are mapped for writing, so that the master can grant memory in them."""
    if core.segments.stale:
        yield from refresh(core, deadline)
    places = core.bytes.unattached(core.segments.places.values())
    if places:
        yield Work(lambda: core.bytes.attach_writing(places, deadline))
