"""If several records of one decision name the same unlogged eviction, keep only the first mention.

A plan makes many grants before any is applied, and a masked object with two replicas may lie in the ranges of two of
them, or in the range of one and on a node that is being drained. By the second record it is gone already, and a record
that names an object that is not in the catalogue cannot be applied (I5).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.state.packed_numbers import pack_sorted_ids, unpack_sorted_ids
from holdfast.core.state.state import State
from holdfast.core.state.unlogged import lying_in
from holdfast.ids import ObjectId
from holdfast.messages.records import ObjectsEvicted, RangesGranted
from holdfast.messages.shapes import Record


def named_once(state: State, records: Sequence[Record]) -> Sequence[Record]:
    if not state.mask:
        return records
    gone: set[ObjectId] = set()
    found: list[Record] = []
    for record in records:
        if isinstance(record, RangesGranted):
            left = _not_yet(record.evicted, gone)
            record = msgspec.structs.replace(record, evicted=pack_sorted_ids(left))
            gone.update(left, _swept(state, record))
        elif isinstance(record, ObjectsEvicted):
            left = _not_yet(record.ids, gone)
            if not left:
                continue
            record = msgspec.structs.replace(record, ids=pack_sorted_ids(left))
            gone.update(left)
        found.append(record)
    return found


def _not_yet(packed: bytes, gone: set[ObjectId]) -> list[ObjectId]:
    return [oid for oid in unpack_sorted_ids(packed).tolist() if oid not in gone]


def _swept(state: State, record: RangesGranted) -> list[ObjectId]:
    if not record.sweeps:
        return []
    catalogue = state.catalogue
    slots = [slot for one in record.ranges for slot in lying_in(catalogue, one.segment, one.offset, record.length)]
    return [catalogue.id_at[slot] for slot in slots]
