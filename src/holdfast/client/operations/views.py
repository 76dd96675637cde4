"""view: an object in place, without a copy, under a lease that is renewed while the view is open.

The life of a view:

1. Opened: the object is located, and its bytes are shown as a read-only memoryview of the node's memory.
2. Open: the keeper renews its lease.
3. Ended: the `with` block is over. If nothing made from the view lives on, the lease is let go.
4. Lingering: an array or a slice made from the view outlives the block. A ResourceWarning names the key, and the
   lease is kept alive until the last of them is gone, so that their bytes do not change (I2).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
import warnings
import weakref
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.client.operations.gets import FreshBytes, fetch, still_there
from holdfast.client.operations.places import locate_one
from holdfast.client.state.client import Core, OpenView
from holdfast.client.state.leases import NO_LEASE, ReadLease
from holdfast.client.state.own_removals import wait_for_removals
from holdfast.errors import LeaseLost, ObjectNotFound, Refused
from holdfast.instant import relied_on
from holdfast.operations.effects import Operation
from holdfast.transport.bulk_copy import address_of

Shown_co = TypeVar("Shown_co", covariant=True)

RENEW_AT_LEFT = 2 / 3
"""A lease is renewed when this share of it is left: when a third of it has passed."""
_NAMED_ONCE = 3
"""The reference count of a view that only the caller's one name uses: that name, `Viewed`, and the counting itself."""


@dataclass(slots=True)
class Viewed:
    """The memory of a view. `open` is None for a copy, which needs no lease."""

    key: str
    view: memoryview
    open: OpenView | None


def open_view(core: Core, key: str, deadline: float) -> Operation[Viewed]:
    entry = core.own_removals.begin_read((key,))
    try:
        yield from wait_for_removals(core.own_removals, (key,), core.clock, deadline)
        viewed = yield from _open_view(core, key, deadline)
    except BaseException:
        core.own_removals.end_read(entry)
        raise
    if viewed.open is not None:
        viewed.open.read_entry = entry
    else:
        core.own_removals.end_read(entry)
    return viewed


def _open_view(core: Core, key: str, deadline: float) -> Operation[Viewed]:
    core.check_open()
    history = core.limits.log_id
    lease = core.leases.live(key, core.clock())
    if lease is None:
        located = yield from locate_one(core, key, deadline)
        lease = None if located is None else ReadLease._make(located)
        if core.limits.log_id != history:
            # The history changed on the way, and the lease may be of either history.
            return (yield from _open_view(core, key, deadline))
    memory = core.bytes.maps.get(lease.segment) if lease is not None else None
    if lease is not None and lease.until == NO_LEASE:
        memory = None  # Nothing keeps the object in its place.
    if lease is not None and memory is not None and not core.segments.doubts(lease.segment, lease.until):
        viewed = in_place(core, key, lease, memory)
        if viewed.open is not None and core.limits.log_id != history:
            viewed.open.lost = True
        return viewed
    fresh = FreshBytes()
    if lease is None or (yield from fetch(core, key, fresh, deadline, located=lease)) is None:
        raise ObjectNotFound(f"no object is stored under {key!r}")
    return Viewed(key, memoryview(fresh.value), None)


def in_place(core: Core, key: str, lease: ReadLease, memory: mmap.mmap) -> Viewed:
    ttl = relied_on(core.limits.lease_ttl_ms / 1000)
    view, window = _window(memory, lease.start, lease.size_bytes)
    renew_at = lease.until - ttl * RENEW_AT_LEFT
    open_view = OpenView(key, lease.id, lease.segment, lease.start, lease.history, lease.until, renew_at, window)
    core.views[open_view] = None
    core.keep(open_view.renew_at)
    return Viewed(key, view, open_view)


def _window(memory: mmap.mmap, start: int, size: int) -> tuple[memoryview, weakref.ref[object]]:
    """A read-only view of these bytes, and a weak reference that is dead once nothing made from the view is left.

    A memoryview cannot tell whether slices of it are alive; the object that exports its memory can."""
    pinned = memoryview(memory)
    exporter = _exporter_type(size.bit_length()).from_address(address_of(pinned) + start)
    exporter.pinned = pinned  # type: ignore[attr-defined]  # A reader that is still there keeps the map alive.
    return memoryview(exporter).cast("B").toreadonly()[:size], weakref.ref(exporter)


@functools.cache
def _exporter_type(bits: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """Cached per number of bits and large enough for any size of that many bits: else each size would need its own."""
    return ctypes.c_ubyte * (1 << bits)


class Block(Protocol[Shown_co]):
    """The life of a `with` block that shows objects in place; a client runs its operations."""

    def open(self, deadline: float) -> Operation[Shown_co]:
        """Step 1."""

    def close(self, deadline: float) -> Operation[None]:
        """At the end of a block that raised nothing: raise LeaseLost if the bytes seen may have been wrong."""

    def end(self) -> None:
        """Step 3. Called by the method that ends the block: warnings name the line of the block."""


class ViewBlock:
    """The block of one `view`."""

    __slots__ = ("_core", "_key", "_viewed")

    def __init__(self, core: Core, key: str) -> None:
        self._core = core
        self._key = key
        self._viewed: Viewed | None = None

    @property
    def copied(self) -> bool:
        """Is it a copy, not the object in its place?"""
        return self._viewed is not None and self._viewed.open is None

    @property
    def revoked(self) -> bool:
        viewed = self._viewed
        return viewed is not None and viewed.open is not None and viewed.open.revoked

    def open(self, deadline: float) -> Operation[memoryview]:
        if self._viewed is not None:
            raise Refused(f"this view of {self._key!r} is open already; call view() again for another one")
        self._viewed = yield from open_view(self._core, self._key, deadline)
        return self._viewed.view

    def close(self, deadline: float) -> Operation[None]:
        if self._viewed is not None:
            yield from close_view(self._core, self._viewed, deadline)

    def end(self) -> None:
        viewed, self._viewed = self._viewed, None
        if viewed is not None and not end_quietly(self._core, viewed):
            warnings.warn(
                f"something made from the view of {viewed.key!r} outlives its block: its lease is kept alive, and its "
                "memory taken, until that is gone. Copy what you need for longer",
                ResourceWarning,
                stacklevel=3,
            )


def close_view(core: Core, viewed: Viewed, deadline: float) -> Operation[None]:
    """Close it. Raises LeaseLost if the object may have left its place while the view was open."""
    open_view = viewed.open
    if open_view is None:
        return
    if not open_view.lost:
        if core.clock() < open_view.until:
            return
        if (yield from still_there(core, [open_view.lease()], deadline))[0]:
            return
    core.leases.drop(viewed.key)
    raise LeaseLost(f"{viewed.key!r} left its place while it was viewed: the bytes seen may be wrong. Read it again")


def end_quietly(core: Core, viewed: Viewed) -> bool:
    """End the view: let its lease go. False: something made from it is alive, so its lease is kept."""
    if sys.getrefcount(viewed.view) <= _NAMED_ONCE:
        try:
            viewed.view.release()
        except BufferError:
            pass  # Its memory is in use.
    # Otherwise something besides the caller's name refers to it. PyTorch tensors do: they keep the view that they were
    # made from, and use its address even after it is released.
    del viewed.view
    open_view = viewed.open
    if open_view is None:
        return True  # A copy: its user keeps it alive.
    open_view.ended = True
    return _let_go(core, open_view)


def abandon_views(core: Core) -> None:
    """Stop keeping leases alive: the client closes."""
    let_go_of_ended(core)
    for open_view in list(core.views):
        warnings.warn(
            f"the client was closed while something made from the view of {open_view.key!r} is in use: its memory "
            "stays mapped, but its bytes may change from now on",
            ResourceWarning,
            stacklevel=3,
        )


def let_go_of_ended(core: Core) -> None:
    """End the leases of views that nothing uses any more."""
    for open_view in list(core.views):
        if open_view.ended:
            _let_go(core, open_view)


def _let_go(core: Core, open_view: OpenView) -> bool:
    """End this view's lease, unless something made from it is alive."""
    if open_view.window() is not None:
        return False
    core.views.pop(open_view, None)
    core.own_removals.end_read(open_view.read_entry)
    return True
