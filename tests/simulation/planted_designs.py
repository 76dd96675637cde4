"""Bugs that are other designs: plausible ways to keep standbys that the simulator must show to be wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgspec

from holdfast.core import decide
from holdfast.core.primary.decision import Planned
from holdfast.core.state.apply import apply
from holdfast.master.engine.engine import Engine
from holdfast.messages.records import Cause, ObjectsEvicted, ObjectsRemoved, RemovalAnswered
from holdfast.messages.requests import Locate, Located
from holdfast.messages.rows import pack_ids
from holdfast.replication import standby
from tests.simulation.planted import Patch, Planted, lease_until_by


def evaluate_a_removal_again() -> Patch:
    """The standby removes whatever matches there, by its own idea of leases."""

    def again(state: Any, record: Any, now: int) -> Any:
        if isinstance(record, ObjectsRemoved) and record.cause == Cause.REMOVE_ALL:
            everything = pack_ids(state.catalogue.id_at[slot] for slot in state.catalogue.live())
            record = ObjectsRemoved(everything, b"", record.cause)
        return apply(state, record, now)

    return patch.object(standby, "apply", again)


def lose_deletes_while_away() -> Patch:
    """Removals are kept for two seconds for standbys to see, and no longer."""
    real = standby.Standby.take

    def take(self: standby.Standby, number: int, batch: bytes, now: int, note: Any = None) -> None:
        away_ms = now - getattr(self, "_heard", now)
        self._heard = now  # type: ignore[attr-defined]

        def kept(state: Any, record: Any, when: int) -> Any:
            if away_ms > 2_000 and isinstance(record, ObjectsRemoved):
                record = RemovalAnswered(0, 0, b"")
            return apply(state, record, when)

        with patch.object(standby, "apply", kept):
            real(self, number, batch, now, note)

    return patch.object(standby.Standby, "take", take)


@contextlib.contextmanager
def send_absolute_times() -> Iterator[None]:
    """A lease ends at an instant of the master's clock, which the client takes for its own (I16)."""
    real = decide._DECIDE[Locate]

    def locate(primary: Any, request: Any, client: int, now: int) -> Any:
        decision = real(primary, request, client, now)
        answer = decision.reply
        absolute = Located(answer.rows, now + answer.lease_ttl_ms, answer.topology, answer.others)
        return msgspec.structs.replace(decision, reply=absolute)

    absolute = lease_until_by(
        lambda sent_at, ttl_ms, now: ttl_ms / 1000 if ttl_ms > 10_000 else sent_at + ttl_ms / 1000
    )
    with patch.dict(decide._DECIDE, {Locate: locate}), absolute:
        yield


def purge_by_lease_at_promotion() -> Patch:
    """What no lease holds, as far as the standby knows, is dropped by the new primary."""
    real = Engine.start_epoch

    def start_epoch(self: Engine, epoch: int, now: int) -> None:
        real(self, epoch, now)
        ids = pack_ids(self.state.catalogue.id_at[slot] for slot in self.state.catalogue.live())
        if ids:
            self.carry_out(Planned([ObjectsEvicted(ids)]), now)

    return patch.object(Engine, "start_epoch", start_epoch)


PLANTED_DESIGNS = (
    Planted("evaluate a removal again", evaluate_a_removal_again, ("I5", "I10"), 60),
    Planted("lose deletes while away", lose_deletes_while_away, ("I5", "I10"), 60),
    Planted("send absolute times", send_absolute_times, ("I16",), 60),
    Planted("purge by lease at promotion", purge_by_lease_at_promotion, ("I8", "I10"), 60),
)
