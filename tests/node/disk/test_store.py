"""Files of a disk: whole or not there, found again after a restart, and never another object's bytes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash

from holdfast.errors import Refused, TryAgain, UnknownSegment
from holdfast.node.disk.store import (
    HEADER,
    MOST_UNREADABLE,
    DamagedFile,
    DiskStore,
    DiskTrouble,
    Files,
    StoredFile,
)

LOG = 11


def opened(path: Path, kernel_boot: str = "boot", files: Files | None = None) -> DiskStore:
    store = DiskStore.open(path, kernel_boot, files)
    store.belongs_to(LOG)
    return store


def write(store: DiskStore, oid: int, offset: int, data: bytes) -> None:
    store.write(oid, offset, memoryview(data), xxhash.xxh3_64_intdigest(data) or 1)


def read(store: DiskStore, offset: int, size: int) -> bytes:
    target = bytearray(size)
    store.read_into(offset, memoryview(target))
    return bytes(target)


def test_what_is_written_is_read_in_whole_and_in_part(tmp_path: Path) -> None:
    store = opened(tmp_path)
    data = os.urandom(3 << 20)
    write(store, 5, 8_192, data)
    write(store, 6, 0, b"x" * 100)
    assert read(store, 8_192, len(data)) == data
    assert read(store, 8_192 + 1_000_000, 500) == data[1_000_000:1_000_500]
    assert read(store, 0, 100) == b"x" * 100
    store.close()


def test_a_place_without_an_object_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, 5, 4_096, b"x" * 100)
    for offset, size in ((0, 10), (4_096, 101), (5_000, 1), (4_095, 10)):
        with pytest.raises(UnknownSegment):
            read(store, offset, size)
    assert store.forget(5, 4_096)
    assert not store.forget(5, 4_096)
    with pytest.raises(UnknownSegment):
        read(store, 4_096, 10)
    store.close()


def test_forgetting_an_object_leaves_the_one_that_took_its_place(tmp_path: Path) -> None:
    """I7"""
    store = opened(tmp_path)
    write(store, 5, 0, b"old" * 10)
    write(store, 9, 0, b"new" * 10)
    assert not store.forget(5, 0)
    assert read(store, 0, 30) == b"new" * 10
    store.close()


def test_a_disk_keeps_its_id_and_its_files_over_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, 5, 64, b"x" * 100)
    store.close()
    again = opened(tmp_path)
    assert (again.disk, again.log_id) == (store.disk, LOG)
    assert again.stored() == [StoredFile(5, 64, 100)]
    assert read(again, 64, 100) == b"x" * 100
    again.close()


def test_drafts_torn_files_and_files_of_other_histories_are_deleted_at_the_start(tmp_path: Path) -> None:
    """I18: one bad file costs that file."""
    store = opened(tmp_path)
    for i in range(4):
        write(store, 5 + i, i * 4_096, b"x" * 100)
    paths = [store.path_of(i * 4_096) for i in range(4)]
    store.close()
    (tmp_path / "drafts" / "1000").write_bytes(b"half")
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    damaged = bytearray(paths[1].read_bytes())
    damaged[20] ^= 1
    paths[1].write_bytes(damaged)
    paths[2].replace(paths[2].with_name("7777000"))
    again = opened(tmp_path)
    assert [stored.oid for stored in again.stored()] == [8]
    assert not list((tmp_path / "drafts").iterdir())
    again.close()
    other = DiskStore.open(tmp_path, "boot")
    other.belongs_to(99)
    other.close()
    assert not DiskStore.open(tmp_path, "boot").stored()


def test_after_the_machine_has_restarted_every_byte_is_checked(tmp_path: Path) -> None:
    """Without a sync a file may have its length and not its bytes."""
    store = opened(tmp_path)
    write(store, 5, 0, b"x" * 100)
    write(store, 6, 4_096, b"y" * 100)
    path = store.path_of(0)
    store.close()
    content = bytearray(path.read_bytes())
    content[HEADER.size :] = bytes(100)
    path.write_bytes(content)
    same = opened(tmp_path)
    assert len(same.stored()) == 2
    same.close()
    another = opened(tmp_path, "another boot")
    assert [stored.oid for stored in another.stored()] == [6]
    another.close()


def test_a_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(Refused, match="another node"):
        DiskStore.open(tmp_path, "boot")
    store.close()
    DiskStore.open(tmp_path, "boot").close()


def test_an_emptied_disk_is_another_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, 5, 0, b"x" * 100)
    before = store.disk
    store.empty()
    assert store.disk != before
    assert not store.stored()
    store.close()
    assert DiskStore.open(tmp_path, "boot").disk != before


def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be used"):
        DiskStore.open(tmp_path / "file", "boot")


class Failing(Files):
    """A device with an error number of its own choosing."""

    def __init__(self, number: int) -> None:
        self.number = number

    def write(self, path: Path, pieces: list[bytes | memoryview]) -> None:
        super().write(path, pieces[:1])
        raise OSError(self.number, os.strerror(self.number))

    def read(self, path: Path, start: int, target: memoryview) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(("number", "readable"), [(errno.ENOSPC, True), (errno.EIO, False), (errno.EROFS, True)])
def test_a_failing_device_says_whether_it_can_still_be_read_and_leaves_no_half_file(
    tmp_path: Path, number: int, readable: bool
) -> None:
    store = opened(tmp_path)
    store.files = Failing(number)
    with pytest.raises(DiskTrouble) as caught:
        write(store, 5, 0, b"x" * 100)
    assert caught.value.readable == readable
    assert not list((tmp_path / "drafts").iterdir())
    assert not store.stored()
    store.close()


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EIO, DamagedFile), (errno.ENODEV, DiskTrouble), (errno.EMFILE, TryAgain)]
)
def test_an_error_in_reading_is_of_the_file_of_the_disk_or_of_nobody(
    tmp_path: Path, number: int, error: type[Exception]
) -> None:
    store = opened(tmp_path)
    write(store, 5, 0, b"x" * 100)
    store.files = Failing(number)
    with pytest.raises(error):
        read(store, 0, 100)
    store.close()


def test_a_device_that_cannot_read_many_files_is_broken_as_a_whole(tmp_path: Path) -> None:
    """Else a disk that dies would drop all its replicas one by one, instead of being away until it is mended."""
    store = opened(tmp_path)
    for number in range(MOST_UNREADABLE + 1):
        write(store, 5 + number, 4_096 * number, b"x" * 100)
    store.files = Failing(errno.EIO)
    for number in range(MOST_UNREADABLE):
        with pytest.raises(DamagedFile):
            read(store, 4_096 * number, 100)
    with pytest.raises(DiskTrouble) as caught:
        read(store, 4_096 * MOST_UNREADABLE, 100)
    assert not caught.value.readable
    store.close()


def test_too_few_descriptors_at_the_start_delete_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, 5, 0, b"x" * 100)
    store.close()
    with pytest.raises(Refused):
        DiskStore.open(tmp_path, "boot", Failing(errno.EMFILE))
    again = opened(tmp_path)
    assert read(again, 0, 100) == b"x" * 100
    again.close()


QUOTA = """
import resource, signal, sys
from pathlib import Path
from tests.node.disk.test_store import opened, write
from holdfast.node.disk.store import DiskTrouble
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = opened(Path(sys.argv[1]))
write(store, 1, 0, b"x" * 1_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    write(store, 2, 4_096, bytes(200_000))
except DiskTrouble as error:
    print(error.readable, len(store.stored()), len(list((Path(sys.argv[1]) / "drafts").iterdir())))
"""


def test_a_real_limit_of_the_kernel_is_met_in_the_middle_of_a_file(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", QUOTA, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])},
        timeout=60,
    )
    assert ran.stdout.split() == ["True", "1", "0"], ran.stderr
