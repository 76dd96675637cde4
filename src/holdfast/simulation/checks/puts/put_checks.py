"""No put is acknowledged into memory that was lost before its commit was sent.

Two sides keep that. A writer on the node's machine sees the node's death by its life line, and then sends no commit. A
primary that has seen a node's connection end refuses commits to it until it is back. If a node dies while a commit is
under way, or behind a network that does not show it, the object is lost with it, which breaks no promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.primary.decision import NextStep
from holdfast.core.primary.primary import Primary
from holdfast.core.state.state import State
from holdfast.ids import GrantId, SegmentName
from holdfast.messages.records import HistoryRestored, ObjectsCommitted, RangesGranted, SegmentMounted
from holdfast.messages.requests import CommitPuts, Committed
from holdfast.messages.rows import PutRow
from holdfast.messages.shapes import Message, Record
from holdfast.simulation.checks.log_checks import Report
from holdfast.simulation.scripts.history import History
from holdfast.simulation.world.nodes import NodeMachine

PROMISE = "live put"


@dataclass(eq=False)
class PutChecks:
    _history: History
    _nodes: Mapping[str, NodeMachine]
    _report: Report
    _segments: dict[int, SegmentName] = field(default_factory=dict)
    _mapped: dict[GrantId, list[SegmentName]] = field(default_factory=dict)
    """The segments of each grant that are written through a map."""

    def appended(self, record: Record, state: State) -> None:
        """Check a record that was appended to the log."""
        match record:
            case HistoryRestored():
                self._segments = {handle: segment.name for handle, segment in state.segments.items()}
            case SegmentMounted():
                self._segments[record.handle] = record.name
            case RangesGranted():
                self._mapped[record.grant] = [self._segments[one.segment] for one in record.ranges if one.writer]
            case ObjectsCommitted():
                self._committed(record)

    def _committed(self, record: ObjectsCommitted) -> None:
        for key, (offset, _, _) in zip(record.keys, PutRow.iter_unpack(record.rows), strict=True):
            sent_ns = self._history.commits_sent.get((record.grant, offset), 0)
            for name in self._mapped.get(record.grant, ()):
                died_ns = self._nodes[name.node].died_ns.get(name.boot)
                if died_ns is not None and died_ns < sent_ns:
                    late_ms = (sent_ns - died_ns) // 1_000_000
                    self._report(PROMISE, f"{key} is stored on {name.node}, dead {late_ms} ms before its commit", key)

    def gone(self, primary: Primary, request: Message | NextStep) -> str:
        """A node of the commit's grant whose connection this primary has seen end. Called before the decision."""
        grant = primary.state.grants.get(request.grant) if isinstance(request, CommitPuts) else None
        for one in grant.ranges if grant is not None else ():
            node = primary.state.segments[one.segment].name.node
            session = primary.sessions.named(node)
            if session is not None and session.connection == 0:
                return node
        return ""

    def decided(self, gone: str, primary: Primary, before: int, reply: Message) -> None:
        """Check a commit that was decided. `before`: the next object's id before the decision. A commit that was made
        earlier is only confirmed, whatever else the request carries."""
        if gone and isinstance(reply, Committed) and primary.state.next_counter > before and 1 in reply.stored:
            self._report(PROMISE, f"a put is accepted on {gone}, whose connection has ended", gone)
