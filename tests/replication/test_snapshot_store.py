"""Snapshots on disk: whole or not there, the newest good one found, the log trimmed only behind two of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.catalogue.digest import digest
from holdfast.replication.batches import Position
from holdfast.replication.snapshot_store import KEPT, SnapshotFailed, SnapshotStore, file_name
from holdfast.replication.snapshots import CorruptSnapshot
from holdfast.replication.standby import Standby
from tests.core.world import World

HISTORY, OTHER = 0xA11CE, 0xB0B


def standby_at(batch: int, keys: int = 20, log_id: int = HISTORY) -> Standby:
    world = World()
    world.node("a", size=1 << 22)
    if keys:
        world.put(*[f"k{i}" for i in range(keys)])
    world.state.log_id = log_id
    return Standby(world.state, Position(batch, world.state.index, bytes([batch % 256]) * 16))


def newest(store: SnapshotStore, log_id: int = HISTORY) -> Standby | None:
    """The newest of the history that can be read."""
    return next((found for one in store.kept(log_id) if (found := store.read(one)) is not None), None)


def test_the_newest_is_restored_with_its_position(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    assert newest(store) is None
    for batch in (3, 8):
        standby = standby_at(batch, keys=batch)
        store.write(*store.take(standby))
    restored = newest(SnapshotStore(tmp_path))
    assert restored is not None
    assert restored.position == standby.position
    assert digest(restored.state.catalogue) == digest(standby.state.catalogue)


def test_an_empty_catalogue_is_restored_too(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    store.write(*store.take(standby_at(3, keys=0)))
    restored = newest(store)
    assert restored is not None
    assert restored.state.catalogue.count == 0
    assert restored.state.segments


def test_a_corrupt_one_is_passed_over_for_the_next_older(tmp_path: Path) -> None:
    """I18"""
    store = SnapshotStore(tmp_path)
    for batch in (3, 8):
        store.write(*store.take(standby_at(batch)))
    path = store.kept(HISTORY)[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    restored = newest(store)
    assert restored is not None
    assert restored.position.batch == 3


def test_what_is_not_a_snapshot_is_never_kept(tmp_path: Path) -> None:
    with pytest.raises(CorruptSnapshot):
        SnapshotStore(tmp_path).write(1, b"not a snapshot")
    assert list(tmp_path.iterdir()) == []


def test_the_log_is_trimmed_through_the_older_of_the_last_two(tmp_path: Path) -> None:
    """I13"""
    store = SnapshotStore(tmp_path)
    assert store.trim_through(HISTORY) == 0
    store.write(*store.take(standby_at(5)))
    assert store.trim_through(HISTORY) == 0
    for batch in (9, 12, 20, 31):
        store.write(*store.take(standby_at(batch)))
    assert store.trim_through(HISTORY) == 20
    assert [one.batch for one in store.kept(HISTORY)] == [31, 20, 12][:KEPT]


@pytest.mark.parametrize("spoiled", [9, 12])
def test_snapshots_spoiled_since_they_were_written_are_found_before_the_log_is_trimmed(
    tmp_path: Path, spoiled: int
) -> None:
    """I13, I18"""
    store = SnapshotStore(tmp_path)
    for batch in (5, 9, 12):
        store.write(*store.take(standby_at(batch)))
    assert store.are_sound(HISTORY, 9)
    path = tmp_path / file_name(HISTORY, spoiled)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert not store.are_sound(HISTORY, 9)
    assert [one.batch for one in store.kept(HISTORY)] == [batch for batch in (12, 9, 5) if batch != spoiled]
    assert store.trim_through(HISTORY) == 5


def test_one_whose_last_batch_is_not_durable_does_not_count_until_proven(tmp_path: Path) -> None:
    """I1, I7: after a crash it would hold what the log never did."""
    store = SnapshotStore(tmp_path)
    standby = standby_at(4)
    store.write(*store.take(standby), proven=False)
    assert store.kept(HISTORY) == []
    store.prove(HISTORY, 4)
    assert [one.batch for one in store.kept(HISTORY)] == [4]
    store.write(*store.take(standby_at(5)), proven=False)
    assert [one.batch for one in SnapshotStore(tmp_path).kept(HISTORY)] == [4], "a restart forgets the unproven"


def test_pieces_make_up_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.replication.snapshot_store.PIECE_BYTES", 1_000)
    store = SnapshotStore(tmp_path)
    assert store.piece(HISTORY, 0, 0).batch == 0
    batch, content = store.take(standby_at(5))
    store.write(batch, content)
    got = b""
    while len(got) < len(content):
        piece = store.piece(HISTORY, 5, len(got))
        assert (piece.batch, piece.size_bytes) == (5, len(content))
        got += piece.content
    assert got == content
    assert store.piece(HISTORY, 6, 0).batch == 0


def test_without_a_directory_it_is_said(tmp_path: Path) -> None:
    store = SnapshotStore(None)
    assert store.kept(HISTORY) == []
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
    assert newest(store) is None
    assert store.kept(HISTORY) == []
    assert [path.name for path in tmp_path.iterdir()] == ["spoiled-snapshot"]


def test_snapshots_of_another_history_neither_count_nor_are_used_nor_deleted(tmp_path: Path) -> None:
    """I19: a trim by another history's numbers once destroyed a log that had just begun."""
    store = SnapshotStore(tmp_path)
    for batch in (800, 900):
        store.write(*store.take(standby_at(batch, log_id=OTHER)))
    assert (store.trim_through(HISTORY), store.kept(HISTORY), newest(store)) == (0, [], None)
    for batch in range(2, 12):
        store.write(*store.take(standby_at(batch)))
    assert store.trim_through(HISTORY) == 10
    assert [one.batch for one in store.kept(OTHER)] == [900, 800]
    assert store.piece(HISTORY, 0, 0).batch == 11
    assert store.piece(HISTORY, 900, 0).batch == 0
    assert (store.piece(OTHER, 0, 0).batch, store.piece(OTHER, 0, 0).log_id) == (900, OTHER)
    assert sorted(store.histories()) == sorted([HISTORY, OTHER])


def test_files_of_an_earlier_version_get_the_name_of_their_history(tmp_path: Path) -> None:
    """I19: their names said the batch only."""
    for batch, log_id in ((7, HISTORY), (9, OTHER)):
        _, content = SnapshotStore(None).take(standby_at(batch, log_id=log_id))
        (tmp_path / f"snapshot-{batch:015d}.hfs").write_bytes(content)
    (tmp_path / f"snapshot-{11:015d}.hfs").write_bytes(b"HOLDFAST SNAPSHOT 1\nhead" + b"\xff" * 40)
    store = SnapshotStore(tmp_path)
    assert {log_id: [one.batch for one in kept] for log_id, kept in store.histories().items()} == {
        HISTORY: [7],
        OTHER: [9],
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [file_name(HISTORY, 7), file_name(OTHER, 9), "spoiled-snapshot"]
    )


def test_a_file_whose_head_says_another_history_than_its_name_is_spoiled(tmp_path: Path) -> None:
    """I19."""
    store = SnapshotStore(tmp_path)
    kept = store.write(*store.take(standby_at(5, log_id=OTHER)))
    kept.path.rename(tmp_path / file_name(HISTORY, 5))
    (found,) = store.kept(HISTORY)
    assert store.position(found) is None
    assert store.kept(HISTORY) == []


def test_what_the_log_has_lost_counts_no_more_and_stays(tmp_path: Path) -> None:
    """I13, I19: a log that was brought back from a backup goes on from before this snapshot, with other batches."""
    store = SnapshotStore(tmp_path)
    for batch in (5, 9):
        store.write(*store.take(standby_at(batch)))
    lost = store.kept(HISTORY)[0]
    position = store.position(lost)
    assert position == Position(9, position.index if position else 0, bytes([9]) * 16)
    store.set_astray(lost, position)
    assert [one.batch for one in store.kept(HISTORY)] == [5]
    assert f"stray-{HISTORY:016x}-{9:015d}-09090909.hfs" in {path.name for path in tmp_path.iterdir()}


def test_which_history_was_followed_is_known_at_the_next_start(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    assert (store.followed, store.known()) == (0, {})
    store.note_followed(HISTORY)
    store.note_followed(HISTORY)
    again = SnapshotStore(tmp_path)
    assert (again.followed, again.known()) == (HISTORY, {HISTORY: 0})
    again.write(*again.take(standby_at(5)))
    again.write(*again.take(standby_at(8, log_id=OTHER)))
    assert again.known() == {HISTORY: 5, OTHER: 8}
    assert SnapshotStore(None).known() == {}
