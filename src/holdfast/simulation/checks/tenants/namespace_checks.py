"""A tenant sees and changes only its own (I20): what clients read, list and store, and what the log says is removed.

Every value is marked with the number of its put, and so with a tenant. The log does not say who asked for a removal;
but a call of the object's own tenant must have asked for it, and not have been answered before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.messages.records import Cause, ObjectsCommitted, ObjectsRemoved
from holdfast.messages.rows import PutRow, unpack_ids
from holdfast.messages.shapes import Record
from holdfast.simulation.checks.log_checks import LogChecks, Report
from holdfast.simulation.scripts.history import ClientCall, History, number_of, tenant_in

BY_HAND = (Cause.REMOVE, Cause.REMOVE_BY_REGEX, Cause.REMOVE_ALL)
READS = ("get", "get_many", "view", "hold")


@dataclass(slots=True)
class NamespaceChecks:
    history: History
    log: LogChecks
    report: Report
    _puts: set[tuple[str, int]] = field(default_factory=set)
    """(name of the key, size) of every put so far: the size tells which put it is."""
    _read: int = 0
    """How many calls of the history are in it."""

    def appended(self, record: Record) -> None:
        """Check a record that was appended to the log, which the log's checker has applied."""
        match record:
            case ObjectsCommitted():
                self._committed(record)
            case ObjectsRemoved() if record.cause in BY_HAND:
                self._removed(unpack_ids(record.ids) + unpack_ids(record.leased))

    def _committed(self, record: ObjectsCommitted) -> None:
        for call in self.history.calls[self._read :]:
            self._puts |= {(key, call.operation.size_bytes) for key in call.operation.keys}
        self._read = len(self.history.calls)
        stored: set[str] = set()
        for oid, (_, size, _) in enumerate(PutRow.iter_unpack(record.rows), record.first_id):
            fate = self.log.fates.get(oid)
            if fate is not None:
                stored.add(fate.key)
                if (fate.key, size) not in self._puts:
                    self.report("I20", f"{fate.key} is stored, and no client of that tenant has put it", fate.key)
        for oid in unpack_ids(record.replaced) + unpack_ids(record.leased):
            fate = self.log.fates.get(oid)
            if fate is not None and fate.key not in stored:
                self.report("I20", f"{fate.key} gives way to a put of {', '.join(sorted(stored))}", fate.key)

    def _removed(self, ids: list[int]) -> None:
        for oid in ids:
            fate = self.log.fates.get(oid)
            if fate is not None and not any(_may_remove(call, fate.key) for call in self.history.calls):
                self.report("I20", f"{fate.key} is removed, and no client of its tenant has asked for that", fate.key)

    def at_end(self) -> None:
        puts = {call.operation.number: call.tenant for call in self.history.calls if call.operation.size_bytes}
        names = {key for key, _ in self._puts}
        for call in self.history.calls:
            self._values(call, puts)
            if call.operation.verb == "list" and isinstance(call.result, list):
                self._listed(call, call.result, names)
            elif call.operation.verb == "pry" and call.result:
                self.report("I20", f"client-{call.operation.client} reads {call.result[0]}", "")  # type: ignore[index]

    def _values(self, call: ClientCall, puts: dict[int, str]) -> None:
        if call.operation.verb not in READS or call.outcome != "done":
            return
        read = call.result if isinstance(call.result, dict) else {call.operation.keys[0]: call.result}
        for key, value in read.items():
            owner = puts.get(number_of(value) or 0, call.tenant) if isinstance(value, bytes) else call.tenant
            if owner != call.tenant:
                whose = f"{owner or 'the default tenant'}'s bytes"
                self.report("I20", f"call {call.operation.number} of {call.tenant!r} read {whose} under {key}", key)

    def _listed(self, call: ClientCall, listed: list[str], names: set[str]) -> None:
        for key in listed:
            if key not in names or listed.count(key) > 1:
                self.report("I20", f"call {call.operation.number} lists {key!r}, which its tenant never put", key)


def _may_remove(call: ClientCall, name: str) -> bool:
    if call.tenant != tenant_in(name) or call.outcome == "done":
        return False
    verb = call.operation.verb
    return verb == "remove_all" or (
        verb in ("remove", "force_remove", "remove_matching") and name in call.operation.keys
    )
