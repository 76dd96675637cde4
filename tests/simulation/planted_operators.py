"""Bugs of pins, of nodes that are set aside and of settings that change, planted on purpose."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from holdfast.core import decide, promotion
from holdfast.core.catalogue.catalogue import DISK, HARD_PIN
from holdfast.core.objects import eviction, removals
from holdfast.core.primary.decision import Decision
from holdfast.core.primary.primary import Primary
from holdfast.messages.requests import ChangePins
from holdfast.replication import snapshot_store
from tests.simulation.planted import Patch, Planted, rests_on_nothing


def evict_under_a_hard_pin() -> Patch:
    return patch.object(eviction, "HARD_PIN", 0)


def remove_under_a_hard_pin() -> Patch:
    return patch.object(removals, "HARD_PIN", 0)


def forget_hard_pins_in_snapshots() -> Patch:
    real = snapshot_store.load

    def load(content: Any, now: int) -> Any:
        restored = real(content, now)
        restored.state.catalogue.flags &= ~np.uint8(HARD_PIN)
        return restored

    return patch.object(snapshot_store, "load", load)


def answer_a_pin_without_its_record() -> Patch:
    """The client is told that the object is pinned, and nothing of it is in the log."""
    real = decide._DECIDE[ChangePins]

    def change_pins(*given: Any) -> Decision:
        return Decision(real(*given).reply)

    return patch.dict(decide._DECIDE, {ChangePins: change_pins})


def answer_a_pin_before_it_is_durable() -> Patch:
    return rests_on_nothing(ChangePins)


def place_on_a_node_that_is_set_aside() -> Patch:
    def available(self: Primary, segment: Any, now: int) -> bool:
        return segment.kind != DISK and self.reachable(segment, now)

    return patch.object(Primary, "available", available)


def forget_longer_leases_of_before() -> Patch:
    """The guard of a promotion is as long as leases are now, not as they were before the setting was changed."""
    return patch.object(
        promotion,
        "guard_ms",
        lambda state, leader_ttl_ms, proven: state.lease_ttl_ms + (0 if proven else leader_ttl_ms),
    )


PLANTED_BY_OPERATORS = (
    Planted("evict under a hard pin", evict_under_a_hard_pin, ("I8",), 60),
    Planted("remove under a hard pin", remove_under_a_hard_pin, ("I8",), 60),
    Planted("forget hard pins in snapshots", forget_hard_pins_in_snapshots, ("I5",), 60),
    Planted("answer a pin without its record", answer_a_pin_without_its_record, ("I8",), 60, "changed pins"),
    Planted("answer a pin before it is durable", answer_a_pin_before_it_is_durable, ("I8",), 200, "changed pins"),
    Planted("place on a node that is set aside", place_on_a_node_that_is_set_aside, ("drain",), 60),
    Planted("forget longer leases of before", forget_longer_leases_of_before, ("I2", "I8"), 200, "shorter leases"),
)
