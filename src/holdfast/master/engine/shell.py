"""The process around an engine, as the engine sees it: what it asks, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.state.state import State
from holdfast.instant import Instant
from holdfast.master.engine.guard import UpkeepFailure
from holdfast.messages.shapes import Record

FOR_EVER: Instant = 1 << 62


@dataclass(frozen=True, slots=True)
class EngineShell:
    """Given to an engine when it is made. Without arguments: a primary alone, which leads for ever and is heard by
    nobody."""

    leads_until: Callable[[], Instant] = lambda: FOR_EVER
    """The end of the term: past this the primary decides nothing (I12)."""
    clients_wait_until: Callable[[], Instant] = lambda: FOR_EVER
    """Until when clients may usefully wait here for the log: the end of the term. A primary that hands over stops
    deciding earlier, but its decisions are still being written."""
    on_record: Callable[[], None] = lambda: None
    """Called when there is a record to write."""
    on_urgent: Callable[[], None] = lambda: None
    """Called when a lease that was about to end was renewed."""
    on_durable: Callable[[], None] = lambda: None
    """Called when records have become durable."""
    on_torn: Callable[[], None] = lambda: None
    """Called when a record was only partly applied: this primary decides nothing from then on."""
    on_upkeep_failure: Callable[[UpkeepFailure], None] = lambda failure: None
    """Called with each failure of upkeep: the engine writes no log lines."""
    on_lost_files: Callable[[str, int, Instant], None] = lambda node, count, now: None
    """Called with the number of replicas that were dropped because files on that node's disk were lost."""
    on_tenants_changed: Callable[[], None] = lambda: None
    """Called when an operator has changed or removed a tenant."""
    note: Callable[[State, Record, Instant], None] = lambda state, record, now: None
    """Called with records of sessions and segments before they are applied."""
