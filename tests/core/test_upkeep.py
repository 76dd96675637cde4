"""What was evicted without a record is named by one record of a decision, and by no second one."""

from __future__ import annotations

import numpy as np

from holdfast.core.state.packed_numbers import pack_sorted_ids
from holdfast.core.upkeep import named_once
from holdfast.ids import GrantId
from holdfast.messages import records as r
from holdfast.messages.shapes import Range, Record
from tests.core.world import World


def test_a_hidden_object_in_the_way_of_two_copies_is_named_once() -> None:
    """I5, found by simulation: by the second record it is gone, and what names it cannot be applied."""
    world = World()
    for i, name in enumerate("ab"):
        world.node(name, size=1 << 20, boot=5 + i, connection=100 + i)
    world.put("k", "other", replicas=2)
    catalogue = world.state.catalogue
    slot = catalogue.by_key.slot_of("k")
    oid, places = catalogue.id_at[slot], catalogue.replicas(slot)
    world.state.mask.add(catalogue, np.array([slot]))
    names_it = pack_sorted_ids([oid])
    grants: list[Record] = [
        r.RangesGranted(GrantId(0, i), 64, [Range(place.segment, place.offset)], names_it)
        for i, place in enumerate(places)
    ]
    both = catalogue.id_at[catalogue.by_key.slot_of("other")]
    first, second, rest = named_once(world.state, [*grants, r.ObjectsEvicted(pack_sorted_ids([oid, both]))])
    assert isinstance(first, r.RangesGranted)
    assert isinstance(second, r.RangesGranted)
    assert isinstance(rest, r.ObjectsEvicted)
    assert (first.evicted, second.evicted, rest.ids) == (names_it, b"", pack_sorted_ids([both]))
    assert named_once(world.state, [grants[0], r.ObjectsEvicted(names_it)]) == [grants[0]]
