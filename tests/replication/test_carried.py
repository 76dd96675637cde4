"""A catalogue carried into a new history by the log alone: whole, or as if it had never begun."""

from __future__ import annotations

import pytest

from holdfast.core.catalogue.digest import digest
from holdfast.core.state.state import State
from holdfast.instant import Instant
from holdfast.messages.records import LogStarted
from holdfast.replication.batches import BrokenChain, Position, UnknownRecord, encode_batch, encode_record
from holdfast.replication.carried import PIECE_BYTES, batches_of
from holdfast.replication.snapshots import dump, load
from holdfast.replication.standby import Standby
from tests.core.world import World

NOW: Instant = 5_000_000
LARGEST_BATCH = 768 << 10
"""ZooKeeper's."""


def older(keys: int = 30) -> State:
    """A state of history 11 with objects, a session, an open grant, and one removed object in quarantine."""
    world = World()
    world.node("a", size=1 << 25)
    for first in range(0, keys, 8_000):  # As many as one request may name.
        world.put(*[f"k{i}" for i in range(first, min(first + 8_000, keys))])
    world.touch("k0")
    world.remove("k0", force=True)
    world.grant(4_096)
    assert world.state.quarantine
    assert world.state.grants
    return world.state


def content_of(state: State, position: Position | None = None) -> bytes:
    return b"".join(dump(state, position or Position(4, state.index, b"h" * 16), NOW))


def take_all(standby: Standby, batches: list[tuple[Position, bytes]]) -> None:
    for position, batch in batches:
        assert len(batch) <= LARGEST_BATCH
        standby.take(position.batch, batch, NOW)


def test_the_new_history_has_the_old_catalogue_and_none_of_its_promises() -> None:
    """I19: sessions, grants and quarantine are not carried over; I9: nothing of the memory may be granted yet."""
    state = older()
    standby = Standby()
    take_all(standby, list(batches_of(content_of(state), 77, b"new secret", Position())))
    new = standby.state
    assert digest(new.catalogue) == digest(state.catalogue)
    assert (new.log_id, new.secret, new.continues) == (77, b"new secret", [11])
    assert (new.sessions, new.grants, new.quarantine) == ({}, {}, {})
    assert new.unsettled == new.unverified == set(state.segments)
    assert new.index == standby.position.index
    assert (new.origin.log_id, new.origin.index, new.origin.objects) == (11, state.index, 29)
    assert not standby.carries


def test_a_large_catalogue_is_cut_into_batches_that_every_store_takes() -> None:
    state = older(keys=9_000)
    content = content_of(state)
    assert len(content) > PIECE_BYTES
    batches = list(batches_of(content, 77, b"s", Position()))
    assert len(batches) > 2
    standby = Standby()
    take_all(standby, batches)
    assert digest(standby.state.catalogue) == digest(state.catalogue)


def test_a_restore_that_broke_off_changes_nothing_and_another_begins_anew() -> None:
    """Pieces without the record behind them: the log still has no history, and a later restore is not confused."""
    standby = Standby()
    broken_off = list(batches_of(content_of(older(22_000)), 77, b"s", Position()))[:-1]
    take_all(standby, broken_off)
    assert standby.carries
    assert standby.state.log_id == 0
    assert standby.state.catalogue.count == 0
    take_all(standby, list(batches_of(content_of(older(5)), 78, b"s", standby.position)))
    assert (standby.state.log_id, standby.state.catalogue.count) == (78, 4)


def test_a_log_of_another_history_goes_on_with_the_restored_one() -> None:
    standby = Standby()
    batch, position = encode_batch(Position(), [encode_record(LogStarted(5, "test", b"x"))])
    standby.take(1, batch, NOW)
    take_all(standby, list(batches_of(content_of(older()), 77, b"s", position, replaces=[5])))
    assert standby.state.log_id == 77
    assert standby.state.continues == [11, 5]


def test_a_piece_out_of_order_and_pieces_that_were_altered_are_not_taken() -> None:
    """I13"""
    batches = list(batches_of(content_of(older(22_000)), 77, b"s", Position()))
    other = list(batches_of(content_of(older(5)), 78, b"s", batches[0][0]))
    standby = Standby()
    take_all(standby, batches[:1])
    with pytest.raises(UnknownRecord):
        standby.take(2, encode_batch(batches[0][0], [_last_record(other)])[0], NOW)
    assert standby.state.log_id == 0
    third = _record_of(batches[2][1])
    with pytest.raises(BrokenChain):
        standby.take(2, encode_batch(batches[0][0], [third])[0], NOW)


def _last_record(batches: list[tuple[Position, bytes]]) -> bytes:
    return _record_of(batches[-1][1])


def _record_of(batch: bytes) -> bytes:
    return batch[len(encode_batch(Position(), [])[0]) :]


def test_what_is_still_to_be_settled_and_verified_outlives_a_snapshot() -> None:
    standby = Standby()
    take_all(standby, list(batches_of(content_of(older()), 77, b"s", Position())))
    again = load(content_of(standby.state, standby.position), NOW).state
    assert (again.unsettled, again.unverified) == (standby.state.unsettled, standby.state.unverified)
    assert (again.continues, again.origin) == ([11], standby.state.origin)


def test_an_object_without_a_checksum_is_not_carried_over() -> None:
    """I2: nothing could tell whether the bytes in its range are still its own."""
    state = older()
    catalogue = state.catalogue
    catalogue.checksum_at[catalogue.by_key.slot_of("k3")] = 0
    standby = Standby()
    take_all(standby, list(batches_of(content_of(state), 77, b"s", Position())))
    assert standby.state.catalogue.by_key.slot_of("k3") < 0
    assert standby.state.catalogue.by_key.slot_of("k4") >= 0
    assert (standby.state.origin.objects, standby.state.origin.mismatched) == (29, 1)
