"""view_many: many objects in place, each as `view` would show it, with one request to the master.

An object that is not in memory of this machine, or got no lease, is copied, over one connection per node. A key that
fails does not affect the others. At the end of the block, one request asks about all leases that ran out.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypeAlias

from holdfast.client.operations import batch_gets
from holdfast.client.operations.gets import still_there
from holdfast.client.operations.lookups import locate_all
from holdfast.client.operations.views import Viewed, end_quietly, in_place
from holdfast.client.state.client import Core
from holdfast.client.state.leases import NO_LEASE, LeaseRow, ReadLease
from holdfast.client.state.own_removals import wait_for_removals
from holdfast.errors import ClientClosed, HoldfastError, LeaseLost, Refused
from holdfast.operations.effects import Operation

Opened: TypeAlias = Viewed | HoldfastError | None
"""A view, the error of its key, or None for a key that is not stored."""


def open_views(core: Core, keys: list[str], deadline: float) -> Operation[list[Opened]]:
    core.check_open()
    entries = [core.own_removals.begin_read((key,)) for key in keys]
    opened: list[Opened] = []
    try:
        yield from wait_for_removals(core.own_removals, frozenset(keys), core.clock, deadline)
        opened = yield from _open_views(core, keys, deadline)
    finally:
        for entry, viewed in zip(entries, opened or [None] * len(keys), strict=True):
            if isinstance(viewed, Viewed) and viewed.open is not None:
                viewed.open.read_entry = entry
            else:
                core.own_removals.end_read(entry)
    return opened


def _open_views(core: Core, keys: list[str], deadline: float) -> Operation[list[Opened]]:
    while True:
        history = core.limits.log_id
        now = core.clock()
        leases: dict[str, LeaseRow] = {key: kept for key in keys if (kept := core.leases.live(key, now)) is not None}
        unknown = dict.fromkeys(key for key in keys if key not in leases)
        leases.update((yield from locate_all(core, list(unknown), deadline)))
        # Otherwise the history changed on the way, and the leases found may be of either history.
        if core.limits.log_id == history:
            break
    maps, doubts = core.bytes.maps, core.segments.doubts
    elsewhere = [
        key for key, row in leases.items() if row[1] not in maps or row[0] == NO_LEASE or doubts(row[1], row[0])
    ]
    copies = (yield from _copies(core, elsewhere, deadline)) if elsewhere else {}
    opened: list[Opened] = []
    for key in keys:
        row = leases.get(key)
        memory = maps.get(row[1]) if row is not None else None
        if row is None:
            opened.append(None)
        elif key in copies or memory is None:
            copy = copies.get(key)
            opened.append(Viewed(key, memoryview(copy), None) if isinstance(copy, bytes) else copy)
        else:
            opened.append(in_place(core, key, ReadLease._make(row), memory))
    if core.limits.log_id != history:
        for viewed in _in_place(opened):
            assert viewed.open is not None
            viewed.open.lost = True
    return opened


def _copies(core: Core, keys: list[str], deadline: float) -> Operation[dict[str, bytes | HoldfastError | None]]:
    """Copies of all of them at once. If no master could be asked, each gets that error."""
    errors: dict[str, HoldfastError] = {}
    try:
        found = yield from batch_gets.get_many(core, keys, errors, deadline)
    except ClientClosed:
        raise
    except HoldfastError as error:
        return dict.fromkeys(keys, error)
    return {key: errors.get(key, found.get(key)) for key in keys}


def _in_place(opened: Sequence[Opened]) -> list[Viewed]:
    return [viewed for viewed in opened if isinstance(viewed, Viewed) and viewed.open is not None]


def close_views(core: Core, opened: Sequence[Opened], deadline: float) -> Operation[None]:
    """Close them. Raises LeaseLost if an object may have left its place while its view was open."""
    lost: list[str] = []
    ended: list[tuple[str, ReadLease]] = []
    now = core.clock()
    for viewed in _in_place(opened):
        open_view = viewed.open
        assert open_view is not None
        if open_view.lost:
            lost.append(viewed.key)
        elif now >= open_view.until:
            ended.append((viewed.key, open_view.lease()))
    if ended:
        there = yield from still_there(core, [lease for _, lease in ended], deadline)
        lost += [key for (key, _), is_there in zip(ended, there, strict=True) if not is_there]
    if lost:
        core.leases.drop_many(lost)
        raise LeaseLost(
            f"{len(lost):,} of {len(opened):,} objects left their places while they were viewed, {lost[0]!r} among "
            "them: the bytes seen may be wrong. Read them again"
        )


class ViewsBlock:
    """The block of one `view_many`."""

    __slots__ = ("_core", "_keys", "_opened")

    def __init__(self, core: Core, keys: list[str]) -> None:
        self._core = core
        self._keys = keys
        self._opened: list[Opened] | None = None

    def open(self, deadline: float) -> Operation[list[memoryview | HoldfastError | None]]:
        if self._opened is not None:
            raise Refused("these views are open already; call view_many() again for others")
        self._opened = yield from open_views(self._core, self._keys, deadline)
        return [each.view if isinstance(each, Viewed) else each for each in self._opened]

    def close(self, deadline: float) -> Operation[None]:
        yield from close_views(self._core, self._opened or (), deadline)

    def end(self) -> None:
        opened, self._opened = self._opened or (), None
        living = [each.key for each in opened if isinstance(each, Viewed) and not end_quietly(self._core, each)]
        if living:
            warnings.warn(
                f"something made from {len(living):,} views, of {living[0]!r} among them, outlives their block (a loop "
                "variable does, too): their leases are kept alive, and their memory taken, until that is gone",
                ResourceWarning,
                stacklevel=3,
            )
