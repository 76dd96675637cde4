"""Pins that are changed after the put. The request says which pins the objects have from now on, so that a request that
is sent twice asks for nothing more; the record names the objects by id, so that it never pins a later one (I7).

All keys are looked up and changed by array operations, in one step: either all pins of the request change or none does.
"""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue.catalogue import HARD_PIN, SOFT_PIN
from holdfast.core.objects.checks import check_keys
from holdfast.core.objects.quotas import check_hard_pins
from holdfast.core.primary.decision import Decision
from holdfast.core.primary.primary import Primary
from holdfast.core.state.packed_numbers import pack_sorted_ids
from holdfast.instant import Instant
from holdfast.messages.records import PinsChanged
from holdfast.messages.requests import ChangePins, Presence


def change_pins(primary: Primary, request: ChangePins, client: int, now: Instant) -> Decision:
    check_keys(request.keys)
    catalogue = primary.state.catalogue
    found = np.array(catalogue.by_key.slots_of(request.keys), np.intp)
    slots = np.unique(found[found >= 0])
    flags = catalogue.flags[slots]
    if request.hard_pin:
        check_hard_pins(primary, slots[flags & HARD_PIN == 0])
    wanted = (HARD_PIN if request.hard_pin else 0) | (SOFT_PIN if request.soft_pin else 0)
    # A soft pin begins anew. Whatever else is as it should be needs no record.
    changing = slots if request.soft_pin else slots[flags & (HARD_PIN | SOFT_PIN) != wanted]
    reply = Presence((found >= 0).tobytes())
    if not len(changing):
        return Decision(reply)
    record = PinsChanged(pack_sorted_ids(catalogue.ids[changing]), request.soft_pin, request.hard_pin)
    # What was pinned hard may give way to puts that wait.
    return Decision(reply, [record], freed=not request.hard_pin)
