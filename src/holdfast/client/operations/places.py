"""Learn where segments are, and map the ones on this machine."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.client.state.client import Core, ask
from holdfast.effects import Operation, Work
from holdfast.messages.requests import ListSegments, SegmentList

LOOK_AGAIN_SECONDS = 0.25
"""How often to ask for places while nodes are failing: a restarted node has other segments, or another address."""


def refresh(core: Core, deadline: float) -> Operation[None]:
    told = yield from ask(core, ListSegments(), SegmentList, deadline)
    before = core.segments.names_by_address()
    gone = core.segments.update(told, core.clock())
    core.bytes.reconsider()
    if core.bytes.failing:
        now = core.segments.names_by_address()
        core.bytes.failing.keep_only({address for address, names in now.items() if names == before.get(address)})
    if gone:
        # This drops leases on other segments too: it is rare, and one request gets them back.
        core.leases.clear()
        busy = core.grants.busy_segments()
        yield Work(lambda: core.bytes.forget(gone, told.segments, busy))


def look_for_failing(core: Core, deadline: float) -> Operation[None]:
    """While nodes are failing, ask the master whether they were restarted or have moved: every LOOK_AGAIN_SECONDS, and
    whenever its replies show that something has changed. A disk keeps its handle when its node gets a new address."""
    if not core.bytes.failing:
        return
    if core.segments.stale or core.clock() >= core.segments.told_at + LOOK_AGAIN_SECONDS:
        yield from refresh(core, deadline)


def ready_to_read(core: Core, handles: Iterable[int], deadline: float) -> Operation[None]:
    """Learn each of these segments that exists, and map it if it is local."""
    wanted = set(handles) - core.bytes.settled
    if not wanted:
        return
    if not wanted <= core.segments.places.keys():
        yield from refresh(core, deadline)
    places = [core.segments.places[handle] for handle in wanted if handle in core.segments.places]
    if places:
        yield Work(lambda: core.bytes.attach_reading(places, deadline))


def ready_to_write(core: Core, deadline: float) -> Operation[None]:
    """Map all local segments for writing, so that the master can grant memory in them."""
    if core.segments.stale:
        yield from refresh(core, deadline)
    places = core.bytes.unattached(core.segments.places.values())
    if places:
        yield Work(lambda: core.bytes.attach_writing(places, deadline))
