"""Snapshots that all masters share, in S3 and in a directory: found by a master with an empty disk, trimmed behind only
where both hold them (I13), and passed over when they are unsound (I18)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import BadValue
from holdfast.replication.batches import Position
from holdfast.replication.depots import Depot, DepotFailed, open_depot
from holdfast.replication.shared_snapshots import SharedSnapshotStore
from holdfast.replication.snapshot_store import file_name
from holdfast.replication.snapshots import dump
from holdfast.replication.standby import Standby
from tests.core.world import World
from tests.replication.s3_server import ACCESS_KEY, S3Server, s3_server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    pytest.importorskip("boto3", reason="snapshots in S3 are an extra")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with s3_server() as server:
        yield server


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return f"file://{tmp_path}/shared"
    server: S3Server = request.getfixturevalue("s3")
    return f"s3://bucket/some/prefix?endpoint={server.endpoint}&region=here"


@pytest.fixture
def depot(place: str) -> Depot:
    return open_depot(place, "c")


@pytest.fixture
def earlier(place: str) -> Depot:
    return open_depot(place, "holdfast")


HISTORY, OTHER = 0xA11CE, 0xB0B


def content(batch: int, log_id: int = HISTORY) -> bytes:
    world = World()
    world.state.log_id = log_id
    world.node()
    world.put(f"key of {batch}")
    return b"".join(dump(world.state, Position(batch, world.state.index, b"h" * 16), 0))


def brought(store: SharedSnapshotStore) -> Standby | None:
    """The newest sound one, with what the depot has."""
    with contextlib.suppress(DepotFailed):
        store.bring(HISTORY)
    return next((found for one in store.kept(HISTORY) if (found := store.read(one)) is not None), None)


def test_what_is_put_is_there_until_it_is_removed(depot: Depot) -> None:
    assert depot.names() == []
    depot.put("one", b"1" * 100_000)
    depot.put("two", b"2")
    depot.put("two", b"22")
    assert sorted(depot.names()) == ["one", "two"]
    assert (depot.get("one"), depot.get("two")) == (b"1" * 100_000, b"22")
    depot.remove("one")
    depot.remove("one")
    assert depot.names() == ["two"]
    with pytest.raises(DepotFailed):
        depot.get("one")


def test_a_master_with_an_empty_disk_starts_from_what_the_others_shared(depot: Depot, tmp_path: Path) -> None:
    writer = SharedSnapshotStore(tmp_path / "a", depot)
    for batch in (10, 20):
        writer.write(batch, content(batch))
        assert writer.unshared(HISTORY)
        writer.share(HISTORY)
        assert not writer.unshared(HISTORY)
    restored = brought(SharedSnapshotStore(tmp_path / "b", depot))
    assert restored is not None
    assert restored.position.batch == 20
    assert [one.batch for one in SharedSnapshotStore(tmp_path / "b", depot).kept(HISTORY)] == [20]


def test_the_log_is_trimmed_only_through_what_disk_and_depot_hold(depot: Depot, tmp_path: Path) -> None:
    """I13."""
    store = SharedSnapshotStore(tmp_path / "a", depot)
    for batch in (10, 20):
        store.write(batch, content(batch))
    assert store.trim_through(HISTORY) == 0, "nothing is shared yet"
    store.share(HISTORY)
    assert store.trim_through(HISTORY) == 0, "one is"
    store.write(30, content(30))
    store.share(HISTORY)
    assert store.trim_through(HISTORY) == 20
    other = SharedSnapshotStore(tmp_path / "b", depot)
    other.write(30, content(30))
    other.share(HISTORY)
    assert other.trim_through(HISTORY) == 0, "its own disk holds one"


def test_the_oldest_are_forgotten(depot: Depot, tmp_path: Path) -> None:
    """I17."""
    store = SharedSnapshotStore(tmp_path / "a", depot)
    for batch in range(1, 7):
        store.write(batch, content(batch))
        store.share(HISTORY)
    assert sorted(depot.names()) == [file_name(HISTORY, batch) for batch in (4, 5, 6)]


def test_an_unsound_one_is_passed_over_for_the_next_older(depot: Depot, tmp_path: Path) -> None:
    """I18."""
    depot.put(file_name(HISTORY, 7), content(7))
    depot.put(file_name(HISTORY, 8), content(8)[:-9])
    depot.put("something else", b"?")
    restored = brought(SharedSnapshotStore(tmp_path / "b", depot))
    assert restored is not None
    assert restored.position.batch == 7


def test_what_is_shared_of_another_history_neither_counts_nor_is_deleted(depot: Depot, tmp_path: Path) -> None:
    """I19."""
    old = SharedSnapshotStore(tmp_path / "old", depot)
    for batch in (800, 900):
        old.write(batch, content(batch, OTHER))
        old.share(OTHER)
    store = SharedSnapshotStore(tmp_path / "a", depot)
    assert store.known() == {OTHER: 900}, "a master with an empty disk learns here that there was another history"
    for batch in range(1, 7):
        store.write(batch, content(batch))
        store.share(HISTORY)
    assert store.trim_through(HISTORY) == 5
    assert sorted(depot.names()) == sorted(
        [*(file_name(HISTORY, batch) for batch in (4, 5, 6)), *(file_name(OTHER, batch) for batch in (800, 900))]
    )
    new = SharedSnapshotStore(tmp_path / "b", depot)
    new.bring(HISTORY)
    assert {log_id: [one.batch for one in kept] for log_id, kept in new.histories().items()} == {HISTORY: [6]}
    new.bring(0)
    assert sorted(new.histories()) == sorted([HISTORY, OTHER]), "which one the log is of may not be known yet"


def test_shared_files_of_an_earlier_version_get_the_name_of_their_history(depot: Depot, tmp_path: Path) -> None:
    """I19."""
    depot.put(f"snapshot-{7:015d}.hfs", content(7))
    depot.put(f"snapshot-{9:015d}.hfs", content(9, OTHER))
    depot.put(f"snapshot-{11:015d}.hfs", content(11)[:-9])
    store = SharedSnapshotStore(tmp_path / "a", depot)
    assert store.known() == {HISTORY: 7, OTHER: 9}
    assert {file_name(HISTORY, 7), file_name(OTHER, 9)} <= set(depot.names())
    assert f"snapshot-{7:015d}.hfs" not in depot.names()


def test_the_place_of_an_earlier_version_is_read_and_left_as_it_is(
    depot: Depot, earlier: Depot, tmp_path: Path
) -> None:
    """I13, I19: a master of that version may still go by what is there."""
    before = SharedSnapshotStore(tmp_path / "a", earlier)
    for batch in (10, 20):
        before.write(batch, content(batch))
        before.share(HISTORY)
    before.write(900, content(900, OTHER))
    before.share(OTHER)
    there = sorted(earlier.names())
    store = SharedSnapshotStore(tmp_path / "b", depot, earlier)
    assert store.known() == {HISTORY: 20, OTHER: 900}
    restored = brought(store)
    assert restored is not None
    assert restored.position.batch == 20
    assert list(store.histories()) == [HISTORY]
    assert store.unshared(HISTORY), "it belongs into the place under the cluster's own name as well"
    for batch in (20, 30, 40, 50, 60):
        store.write(batch, content(batch))
        store.share(HISTORY)
    assert sorted(depot.names()) == [file_name(HISTORY, batch) for batch in (40, 50, 60)]
    assert sorted(earlier.names()) == there
    assert store.trim_through(HISTORY) == 50


def test_the_newer_of_both_places_is_brought(depot: Depot, earlier: Depot, tmp_path: Path) -> None:
    """While masters of two versions run, either may have shared the newest."""
    depot.put(file_name(HISTORY, 30), content(30))
    earlier.put(file_name(HISTORY, 20), content(20))
    found = brought(SharedSnapshotStore(tmp_path / "a", depot, earlier))
    assert found is not None
    assert found.position.batch == 30
    earlier.put(file_name(HISTORY, 40), content(40))
    found = brought(SharedSnapshotStore(tmp_path / "b", depot, earlier))
    assert found is not None
    assert found.position.batch == 40


def test_looking_makes_no_directory(tmp_path: Path) -> None:
    assert open_depot(f"file://{tmp_path}/shared", "c").names() == []
    assert not (tmp_path / "shared").exists()


def test_without_the_shared_place_the_own_snapshots_serve_and_nothing_is_trimmed(s3: S3Server, tmp_path: Path) -> None:
    depot = open_depot(f"s3://bucket?endpoint={s3.endpoint}&region=here", "c")
    store = SharedSnapshotStore(tmp_path / "a", depot)
    for batch in (10, 20):
        store.write(batch, content(batch))
    s3.refuses = True
    with pytest.raises(DepotFailed, match="not today"):
        store.share(HISTORY)
    assert store.trim_through(HISTORY) == 0
    restored = brought(store)
    assert restored is not None
    assert restored.position.batch == 20


@pytest.mark.parametrize("url", ["s3:///prefix", "http://host/x", "file://", "s3://bucket?color=red", "bucket/prefix"])
def test_what_says_no_place_is_refused(url: str) -> None:
    with pytest.raises(BadValue):
        open_depot(url, "c")
