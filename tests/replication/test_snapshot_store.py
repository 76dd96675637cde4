"""Snapshots on disk: whole or not there, the newest good one found, the log trimmed only behind two of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.digest import digest
from holdfast.replication.batches import Position
from holdfast.replication.snapshot_store import KEPT, SnapshotFailed, SnapshotStore
from holdfast.replication.snapshots import CorruptSnapshot
from holdfast.replication.standby import Standby
from tests.core.world import World


def standby_at(batch: int, keys: int = 20) -> Standby:
    world = World()
    world.node("a", size=1 << 22)
    if keys:
        world.put(*[f"k{i}" for i in range(keys)])
    return Standby(world.state, Position(batch, world.state.index, bytes([batch]) * 16))


def test_the_newest_is_restored_with_its_position(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    assert store.newest() is None
    for batch in (3, 8):
        standby = standby_at(batch, keys=batch)
        store.write(*store.take(standby))
    restored = SnapshotStore(tmp_path).newest()
    assert restored is not None
    assert restored.position == standby.position
    assert digest(restored.state.catalogue) == digest(standby.state.catalogue)


def test_an_empty_catalogue_is_restored_too(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    store.write(*store.take(standby_at(3, keys=0)))
    restored = store.newest()
    assert restored is not None
    assert restored.state.catalogue.count == 0
    assert restored.state.segments


def test_a_corrupt_one_is_passed_over_for_the_next_older(tmp_path: Path) -> None:
    """I18"""
    store = SnapshotStore(tmp_path)
    for batch in (3, 8):
        store.write(*store.take(standby_at(batch)))
    newest = store.kept()[0].path
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    restored = store.newest()
    assert restored is not None
    assert restored.position.batch == 3


def test_what_is_not_a_snapshot_is_never_kept(tmp_path: Path) -> None:
    with pytest.raises(CorruptSnapshot):
        SnapshotStore(tmp_path).write(1, b"not a snapshot")
    assert list(tmp_path.iterdir()) == []


def test_the_log_is_trimmed_through_the_older_of_the_last_two(tmp_path: Path) -> None:
    """I13"""
    store = SnapshotStore(tmp_path)
    assert store.trim_through() == 0
    store.write(*store.take(standby_at(5)))
    assert store.trim_through() == 0
    for batch in (9, 12, 20, 31):
        store.write(*store.take(standby_at(batch)))
    assert store.trim_through() == 20
    assert [one.batch for one in store.kept()] == [31, 20, 12][:KEPT]


def test_one_whose_last_batch_is_not_durable_does_not_count_until_proven(tmp_path: Path) -> None:
    """I1, I7: after a crash it would hold what the log never did."""
    store = SnapshotStore(tmp_path)
    standby = standby_at(4)
    store.write(*store.take(standby), proven=False)
    assert store.kept() == []
    store.prove(4)
    assert [one.batch for one in store.kept()] == [4]
    store.write(*store.take(standby_at(5)), proven=False)
    assert [one.batch for one in SnapshotStore(tmp_path).kept()] == [4], "a restart forgets the unproven"


def test_pieces_make_up_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.replication.snapshot_store.PIECE_BYTES", 1_000)
    store = SnapshotStore(tmp_path)
    assert store.piece(0, 0).batch == 0
    batch, content = store.take(standby_at(5))
    store.write(batch, content)
    got = b""
    while len(got) < len(content):
        piece = store.piece(5, len(got))
        assert (piece.batch, piece.size_bytes) == (5, len(content))
        got += piece.content
    assert got == content
    assert store.piece(6, 0).batch == 0


def test_without_a_directory_it_is_said(tmp_path: Path) -> None:
    store = SnapshotStore(None)
    assert store.kept() == []
    with pytest.raises(SnapshotFailed, match="data-dir"):
        store.write(*store.take(standby_at(5)))


def test_a_corrupt_one_counts_no_more(tmp_path: Path) -> None:
    """I18, found by simulation: while it counted, no other was fetched, and the log was trimmed past this master."""
    store = SnapshotStore(tmp_path)
    standby = standby_at(3)
    kept = store.write(*store.take(standby))
    content = bytearray(kept.path.read_bytes())
    content[len(content) // 2] ^= 1
    kept.path.write_bytes(content)
    assert store.newest() is None
    assert store.kept() == []
    assert [path.name for path in tmp_path.iterdir()] == ["spoiled-snapshot"]
