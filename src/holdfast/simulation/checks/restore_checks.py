"""Checks of a restored history against the one that the store lost.

From a master that held the log to its end: no durable object is missing (I1), no removed object is back (I7), and no
range turns out to hold other bytes. From an older snapshot: the catalogue is that of the log at its record; objects put
since are gone and objects removed since are back, as the runbook says. From any source: it is of a real history (I19),
and a node that kept its memory throughout does not void it (I14).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.core.catalogue.digest import digest
from holdfast.core.state.state import State
from holdfast.errors import MemoryVoid
from holdfast.ids import NAMESPACE_CHARACTERS, namespace_of, tenant_of
from holdfast.messages.of_nodes import MountDisk
from holdfast.simulation.scripts.history import key_in, named, tenant_in
from holdfast.simulation.world.nodes import NodeMachine, ServedNode

if TYPE_CHECKING:
    from holdfast.simulation.checks.log_checks import Report

NOT_RESTORED = "NOT_RESTORED"
"""Why an object is gone: it went with its history, or a restored history does not have it."""
NOTED_NS = 1_500_000_000
"""A history that was served for a shorter time may be unknown to the master that restores over it."""
SOON_NS = 3_000_000_000
"""A node that comes back within this time was not given up."""


@dataclass(slots=True)
class Fate:
    """One object of the log."""

    key: str
    size_bytes: int
    left: str = ""
    """Why it is gone; empty while it is there."""


@dataclass(frozen=True, slots=True)
class Past:
    """A history that is no longer in the store, as its log ended."""

    state: State
    fates: dict[int, Fate]
    digests: dict[int, str]
    """By index."""


@dataclass(frozen=True, slots=True)
class Setback:
    """A restore from less than the log held: from then on the older catalogue counts."""

    at_ns: int
    sizes: dict[str, int]
    """The size of the object under each key, which identifies its put."""


@dataclass(slots=True)
class RestoreChecks:
    report: Report
    nodes: Mapping[str, NodeMachine]
    now_ns: Callable[[], int]
    pasts: dict[int, Past] = field(default_factory=dict)
    continued: set[int] = field(default_factory=set)
    """Those of these histories whose objects all went over into a later one."""
    setbacks: list[Setback] = field(default_factory=list)
    changed_ns: list[int] = field(default_factory=list)
    """When a history was over."""
    newest: int = 0
    """The history that was in the store last."""
    is_trusted: bool = False
    """The store's history was restored from everything that it held before, and that memory had been verified."""
    emptied: dict[int, int] = field(default_factory=dict)
    """Disks that a master had their nodes empty, by the id that they had: the history which that master served."""
    _restored_ns: int = 0
    _lived: dict[str, tuple[ServedNode, int]] = field(default_factory=dict)
    """Nodes that had the memory named by the restored catalogue: their life, and its boot."""

    def ended(self, past: Past) -> None:
        """Remember a history that the store has lost, or that another one replaces."""
        self.pasts[past.state.log_id] = past
        self.changed_ns.append(self.now_ns())
        self.newest = past.state.log_id
        self.is_trusted = False
        self._lived.clear()

    def restored(self, state: State) -> dict[int, Fate]:
        """The fates of the objects in the first state of a restored history."""
        origin = state.origin
        past = self.pasts.get(origin.log_id)
        if past is None:
            self.report("I19", f"a history was restored from {origin.log_id:x}, which never was", f"{origin.log_id:x}")
            return dict(_fates_of(state))
        if state.grants or state.quarantine or state.sessions:
            self.report("I19", "a restored history begins with promises of the one before", f"{origin.log_id:x}")
        # A deposed primary may hold records that are in no log, in place of those of later epochs.
        strays = origin.epoch < _epoch_at(past.state, origin.index)
        if not strays:
            self._same_as_the_log(past, state)
        whole = origin.log_id == self.newest and origin.index >= past.state.index and not strays
        self.is_trusted = whole and not past.state.unverified
        noted = self._restored_ns == 0 or self.now_ns() - self._restored_ns > NOTED_NS
        self._restored_ns = self.now_ns()
        self._lived = dict(self._kept_memory(state)) if noted else {}
        if not whole:
            self.setbacks.append(Setback(self.now_ns(), {fate.key: fate.size_bytes for _, fate in _fates_of(state)}))
            return dict(_fates_of(state))
        # For clients the same history goes on.
        self.continued.add(origin.log_id)
        there = dict(_fates_of(state))
        went = {oid: replace(fate, left=fate.left or NOT_RESTORED) for oid, fate in past.fates.items()}
        return {**went, **there}

    def _same_as_the_log(self, past: Past, state: State) -> None:
        index, subject = state.origin.index, f"{state.origin.log_id:x}"
        there = dict(_fates_of(state))
        for oid, fate in there.items():
            known = past.fates.get(oid)
            if known is not None and known.left and index >= past.state.index:
                self.report("I7", f"{fate.key} ({oid:x}) left by {known.left}, and is back by a restore", fate.key)
        if index == past.state.index:
            for oid, fate in _fates_of(past.state):
                if oid not in there:
                    self.report("I1", f"{fate.key} ({oid:x}) was durable, and a restore has lost it", fate.key)
        expected = past.digests.get(index)
        if expected is not None and not state.origin.mismatched and digest(state.catalogue) != expected:
            self.report("I5", f"the restored catalogue is not the log's at record {index}", subject)
        if state.origin.mismatched:
            self.report("I1", f"{state.origin.mismatched} objects were restored without a checksum", subject)

    def _kept_memory(self, state: State) -> Iterator[tuple[str, tuple[ServedNode, int]]]:
        for segment in state.memory_segments():
            served = self.nodes[segment.name.node].alive
            if served is not None and served.boot == segment.name.boot:
                yield segment.name.node, (served, served.boot)

    def mounted(self, node: str, boot: int, state: State) -> None:
        """Check a segment that is about to be mounted. A node that lived through a restore offers the memory it had."""
        served, before = self._lived.get(node, (None, 0))
        if served is None or boot == before or served is not self.nodes[node].alive:
            return
        if self.now_ns() - self._restored_ns < SOON_NS:
            self.report("I14", f"{node} lived through a restore, and has voided its memory", node)

    def disk_refused(self, request: MountDisk, code: str, log_id: int) -> None:
        """A master of this history did not mount a disk. One that is void its node empties and renames."""
        if code == MemoryVoid.code:
            self.emptied.setdefault(request.disk, log_id)

    def is_lost_with_its_disk(self, state: State, key: str) -> bool:
        """Nothing of the object is left but files that a disk had before another history had it emptied. A restore
        that names that disk again does not bring them back: they are away until it is given up, and the object is a
        miss (ADR 16). A disk that the restored history itself has emptied is no excuse (I14)."""
        catalogue = state.catalogue
        slot = catalogue.by_key.slot_of(inside(state, key))
        if slot < 0:
            return False
        disks = [state.segments[place.segment] for place in catalogue.replicas(slot)]
        return all(disk.away and self.emptied.get(disk.name.boot, state.log_id) != state.log_id for disk in disks)

    def differs(self, ids: list[int], fates: Mapping[int, Fate]) -> None:
        """Check objects that were dropped because their ranges hold other bytes."""
        for oid in ids if self.is_trusted else ():
            key = fates[oid].key if oid in fates else ""
            self.report("I1", f"{key} ({oid:x}) was restored from the newest state, and its range differs", key)

    def all_fates(self) -> Iterator[Fate]:
        """The fates in all histories that are over."""
        for log_id, past in self.pasts.items():
            for fate in past.fates.values() if log_id not in self.continued else ():
                yield Fate(fate.key, fate.size_bytes, fate.left or NOT_RESTORED)


def _epoch_at(state: State, index: int) -> int:
    """The epoch of the log's record with this index."""
    return max((epoch for epoch, start in state.epoch_starts.items() if start < index), default=0)


def _fates_of(state: State) -> Iterator[tuple[int, Fate]]:
    catalogue = state.catalogue
    for slot in catalogue.live().tolist():
        yield catalogue.id_at[slot], Fate(name_of(state, str(catalogue.keys[slot])), catalogue.size_at[slot])


def name_of(state: State, key: str) -> str:
    """A key from inside a master, named with its tenant as the history of calls has it."""
    number = tenant_of(key)
    return named(state.tenants.of(number).name, key[NAMESPACE_CHARACTERS:]) if number else key


def inside(state: State, name: str) -> str:
    """The key inside a master of this state; the name itself if the tenant is unknown there."""
    number = state.tenants.number_of(tenant_in(name))
    return namespace_of(number) + key_in(name) if number else name
