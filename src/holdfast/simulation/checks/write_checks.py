"""Nobody gets memory that another may still write (I11), checked from the writers' side.

A live client holds a grant until it has committed or returned it. Until then, the uncommitted part of the grant goes to
nobody else, with two exceptions: over TCP, once the node refuses that grant; through a map, once the client has
unmapped the memory and hung up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from holdfast.core.state.grants import IntervalSet
from holdfast.core.state.state import State
from holdfast.ids import GrantId, SegmentName, extent_of
from holdfast.messages.records import ObjectsCommitted, RangesGranted
from holdfast.messages.rows import PutRow
from holdfast.messages.shapes import Range, Record
from holdfast.simulation.checks.log_checks import Report
from holdfast.simulation.world.clients import ClientMachine
from holdfast.simulation.world.nodes import NodeMachine


@dataclass(eq=False)
class WriteChecks:
    _clients: Mapping[str, ClientMachine]
    _nodes: Mapping[str, NodeMachine]
    _report: Report
    _committed: dict[GrantId, IntervalSet] = field(default_factory=dict)
    _granted_on: dict[GrantId, set[SegmentName]] = field(default_factory=dict)
    """Segments by name: handles begin again with a restored history, and a node may have other memory by then."""

    def appended(self, record: Record, state: State) -> None:
        """Check a record that was appended to the log; the state is the one after it."""
        if isinstance(record, ObjectsCommitted):
            self._commits(record)
        elif isinstance(record, RangesGranted):
            for place in record.ranges:
                self._granted(record, place, state)

    def _commits(self, record: ObjectsCommitted) -> None:
        taken = self._committed.setdefault(record.grant, IntervalSet())
        for offset, size, _ in PutRow.iter_unpack(record.rows):
            taken.add(offset, offset + extent_of(size))

    def _granted(self, record: RangesGranted, place: Range, state: State) -> None:
        segment = state.segments.get(place.segment)
        if segment is None:
            return
        self._granted_on.setdefault(record.grant, set()).add(segment.name)
        for client, grant, start, end in self._may_write(segment.handle, segment.name, state):
            if grant != record.grant and start < place.offset + record.length and place.offset < end:
                self._report(
                    "I11",
                    f"bytes {start}..{end} of {segment.name.node} are granted anew, while {client} holds them by its "
                    f"grant {grant.serial}",
                    f"grant {grant.serial}",
                )

    def _may_write(self, handle: int, name: SegmentName, state: State) -> Iterator[tuple[str, GrantId, int, int]]:
        """(client, grant, start, end): the ranges that live clients may still write on this segment."""
        for client, machine in self._clients.items():
            if machine.core is None or not machine.alive:
                continue
            known = machine.core.welcome.log_id if machine.core.welcome is not None else 0
            if known not in (state.log_id, *state.continues):
                continue  # Its grants are of another history, whose memory is void.
            for grant in machine.core.grants.by_id.values():
                for place in grant.ranges:
                    there = place.segment == handle and name in self._granted_on.get(grant.id, (name,))
                    if there and self._can(machine, name, grant.id, place.writer, known):
                        taken = self._committed.get(grant.id, IntervalSet())
                        for start, end in taken.gaps(grant.length):
                            yield client, grant.id, place.offset + start, place.offset + end

    def _can(self, machine: ClientMachine, name: SegmentName, grant: GrantId, writer: int, known: int) -> bool:
        """Can the client still write? `known` is the history of its grant: a node of a restored one refuses older
        grants."""
        node = self._nodes[name.node].alive
        if node is None or node.boot != name.boot:
            return False
        if writer:
            return machine.bytes is not None and machine.bytes.is_writer(name.node, writer)
        return node.history == known and not node.refuses(grant)
