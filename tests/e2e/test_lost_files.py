"""I18 with real processes: a disk file that is lost or spoiled is a miss, never a key that nobody can read or put."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from tests.e2e.rig import Rig
from tests.e2e.test_disk_tier import on_disk, put_slowly, rig_with_disk, start
from tests.e2e.test_replicas import MIB, node_of
from tests.waiting import wait_until


def file_of(cache: holdfast.Cache, key: str, folder: Path) -> Path:
    known = cache.stat(key)
    assert known is not None
    (replica,) = known.replicas
    return folder / "disk" / "objects" / f"{(replica.offset >> 12) % 256:02x}" / f"{replica.offset:x}"


def delete(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def flip_in_the_bytes(path: Path) -> None:
    flip(path, path.stat().st_size - 100)


def flip_in_the_header(path: Path) -> None:
    flip(path, 20)


def become_a_directory(path: Path) -> None:
    """Stands in for a file that the device cannot read."""
    path.unlink()
    path.mkdir()


DAMAGES = [delete, shorten, flip_in_the_bytes, flip_in_the_header, become_a_directory]


def metrics(rig: Rig) -> str:
    with urllib.request.urlopen(f"http://{rig.masters['master-0'][1]['http']}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def is_a_plain_miss(cache: holdfast.Cache, key: str, data: bytes) -> None:
    """The key can be told to be absent, and put, and read again."""
    assert cache.get(key, default=None) is None
    assert not cache.exists(key)
    assert "file" in cache.explain(key).reasons[0]
    assert cache.put(key, data)
    assert cache.get(key) == data


def test_a_lost_or_spoiled_file_is_a_miss_that_is_counted_and_its_key_can_be_put_again(tmp_path: Path) -> None:
    with rig_with_disk(tmp_path) as rig, rig.connect() as cache:
        items = put_slowly(cache, 200)
        kept = on_disk(cache, items)
        assert len(kept) > 40
        for key, damage in zip(kept, DAMAGES, strict=False):
            damage(file_of(cache, key, tmp_path))
            is_a_plain_miss(cache, key, b"again" * 1000)
        others = kept[len(DAMAGES) : 20]
        assert cache.get_many(others) == {key: items[key] for key in others}, "the rest of the disk is as good as ever"
        assert node_of(cache, "a").disk == "mounted"
        figures = metrics(rig)
        for seen, count in (("missing", 1), ("wrong_size", 2), ("spoiled", 2)):
            assert f'holdfast_lost_files_total{{node="a",seen="{seen}"}} {count}.0' in figures


@pytest.mark.parametrize("damage", [delete, flip_in_the_bytes])
def test_a_large_object_is_checked_by_its_reader_and_then_by_its_node(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """It is sent in pieces before its node can know that they are wrong: the reader finds it, the node confirms it."""
    with rig_with_disk(tmp_path, shared_grant_bytes=8 * MIB) as rig, rig.connect() as cache:
        items = {f"large{i}": os.urandom(3 * MIB) for i in range(12)}
        for key, data in items.items():
            assert cache.put(key, data)
            wait_until(lambda: cache.status().used_bytes < 28 * MIB, what="eviction keeps up")
        key = on_disk(cache, items)[0]
        damage(file_of(cache, key, tmp_path))
        is_a_plain_miss(cache, key, b"again" * 1000)


def test_a_batch_gets_what_is_there_and_misses_what_is_lost(tmp_path: Path) -> None:
    with rig_with_disk(tmp_path) as rig, rig.connect() as cache:
        items = put_slowly(cache, 200)
        kept = on_disk(cache, items)[:12]
        for key in kept[::2]:
            delete(file_of(cache, key, tmp_path))
        assert cache.get_many(kept) == {key: items[key] for key in kept[1::2]}


def test_files_lost_while_the_node_was_down_are_found_by_comparing_the_log_with_the_files(tmp_path: Path) -> None:
    """Nobody reads them: the audit alone finds that the log names files that are not there."""
    with rig_with_disk(tmp_path) as rig, rig.connect() as cache:
        items = put_slowly(cache, 200)
        kept = on_disk(cache, items)
        lost = {key: file_of(cache, key, tmp_path) for key in kept[:9]}
        rig.kill(rig.nodes[0])
        wait_until(lambda: not cache.exists(kept[0]), what="the node is given up, its disk away")
        for number, path in enumerate(lost.values()):
            DAMAGES[number % 3](path) if number % 3 != 2 else flip_in_the_header(path)
        start(rig, tmp_path)
        wait_until(lambda: not any(cache.exists(key) for key in lost), what="the lost files' replicas are dropped")
        rest = kept[9:]
        assert cache.get_many(rest) == {key: items[key] for key in rest}
        for key in lost:
            assert cache.put(key, b"again" * 1000)


def test_a_loss_is_told_to_the_next_primary_too(tmp_path: Path) -> None:
    with rig_with_disk(tmp_path, masters=2) as rig, rig.connect() as cache:
        items = put_slowly(cache, 200)
        kept = on_disk(cache, items)
        delete(file_of(cache, kept[0], tmp_path))
        rig.kill(rig.masters[cache.status().name][0])
        wait_until(lambda: cache.get(kept[0], default=None) is None, deadline_s=60, what="it is a miss")
        assert cache.put(kept[0], b"again" * 1000)
        assert cache.get_many(kept[1:]) == {key: items[key] for key in kept[1:]}


def test_a_disk_that_is_unmounted_loses_no_object(tmp_path: Path) -> None:
    """Its whole directory is gone: it is away and its objects are kept for its return, not dropped one by one."""
    with rig_with_disk(tmp_path) as rig, rig.connect() as cache:
        items = put_slowly(cache, 200)
        kept = on_disk(cache, items)
        (tmp_path / "disk").rename(tmp_path / "elsewhere")
        assert cache.get(kept[0], default=None) is None, "what cannot be read is a miss meanwhile"
        wait_until(lambda: node_of(cache, "a").disk == "away", what="the disk is away")
        rig.kill(rig.nodes[0])
        (tmp_path / "elsewhere").rename(tmp_path / "disk")
        start(rig, tmp_path)
        assert cache.get_many(kept) == {key: items[key] for key in kept}


def test_the_bytes_of_files_that_nobody_reads_are_checked_in_the_background(tmp_path: Path) -> None:
    with rig_with_disk(tmp_path) as rig, rig.connect() as cache:
        items = put_slowly(cache, 200)
        key = on_disk(cache, items)[0]
        flip_in_the_bytes(file_of(cache, key, tmp_path))
        wait_until(lambda: not cache.exists(key), deadline_s=120, what="it is found and dropped")
