"""Snapshots that all masters share, in S3 and in a directory: found by a master with an empty disk, trimmed behind only
where both hold them (I13), and passed over when they are unsound (I18)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import BadValue
from holdfast.replication.batches import Position
from holdfast.replication.depots import Depot, DepotFailed, open_depot
from holdfast.replication.shared_snapshots import SharedSnapshotStore
from holdfast.replication.snapshots import dump
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
def depot(request: pytest.FixtureRequest, tmp_path: Path) -> Depot:
    if request.param == "directory":
        return open_depot(f"file://{tmp_path}/shared", "c")
    server: S3Server = request.getfixturevalue("s3")
    return open_depot(f"s3://bucket/some/prefix?endpoint={server.endpoint}&region=here", "c")


def content(batch: int) -> bytes:
    world = World()
    world.node()
    world.put(f"key of {batch}")
    return b"".join(dump(world.state, Position(batch, world.state.index, b"h" * 16), 0))


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
        assert writer.unshared
        writer.share()
        assert not writer.unshared
    restored = SharedSnapshotStore(tmp_path / "b", depot).newest()
    assert restored is not None
    assert restored.position.batch == 20
    assert [one.batch for one in SharedSnapshotStore(tmp_path / "b", depot).kept()] == [20]


def test_the_log_is_trimmed_only_through_what_disk_and_depot_hold(depot: Depot, tmp_path: Path) -> None:
    """I13."""
    store = SharedSnapshotStore(tmp_path / "a", depot)
    for batch in (10, 20):
        store.write(batch, content(batch))
    assert store.trim_through() == 0, "nothing is shared yet"
    store.share()
    assert store.trim_through() == 0, "one is"
    store.write(30, content(30))
    store.share()
    assert store.trim_through() == 20
    other = SharedSnapshotStore(tmp_path / "b", depot)
    other.write(30, content(30))
    other.share()
    assert other.trim_through() == 0, "its own disk holds one"


def test_the_oldest_are_forgotten(depot: Depot, tmp_path: Path) -> None:
    """I17."""
    store = SharedSnapshotStore(tmp_path / "a", depot)
    for batch in range(1, 7):
        store.write(batch, content(batch))
        store.share()
    assert sorted(depot.names()) == [f"snapshot-{batch:015d}.hfs" for batch in (4, 5, 6)]


def test_an_unsound_one_is_passed_over_for_the_next_older(depot: Depot, tmp_path: Path) -> None:
    """I18."""
    depot.put(f"snapshot-{7:015d}.hfs", content(7))
    depot.put(f"snapshot-{8:015d}.hfs", content(8)[:-9])
    depot.put("something else", b"?")
    restored = SharedSnapshotStore(tmp_path / "b", depot).newest()
    assert restored is not None
    assert restored.position.batch == 7


def test_without_the_shared_place_the_own_snapshots_serve_and_nothing_is_trimmed(s3: S3Server, tmp_path: Path) -> None:
    depot = open_depot(f"s3://bucket?endpoint={s3.endpoint}&region=here", "c")
    store = SharedSnapshotStore(tmp_path / "a", depot)
    for batch in (10, 20):
        store.write(batch, content(batch))
    s3.refuses = True
    with pytest.raises(DepotFailed, match="not today"):
        store.share()
    assert store.trim_through() == 0
    restored = store.newest()
    assert restored is not None
    assert restored.position.batch == 20


@pytest.mark.parametrize("url", ["s3:///prefix", "http://host/x", "file://", "s3://bucket?color=red", "bucket/prefix"])
def test_what_says_no_place_is_refused(url: str) -> None:
    with pytest.raises(BadValue):
        open_depot(url, "c")
