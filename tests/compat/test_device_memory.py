"""Addresses on the host, on a device (a driver library without hardware stands in), and nowhere."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.compat.device_memory import BadAddress, CallersMemory, CudaDriver, DeviceCopyFailed, Place, is_mapped
from holdfast.compat.mooncake import link
from holdfast.compat.mooncake.store import MooncakeDistributedStore
from tests.compat.conftest import set_up
from tests.e2e.rig import Rig

DEVICE = 0xD000_0000_0000
ADRIFT = DEVICE + (1 << 19)
END = DEVICE + (1 << 20)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the driver that stands in needs a C compiler")
    made = tmp_path_factory.mktemp("cuda") / "libcuda.so"
    source = Path(__file__).parent / "fake_cuda.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture
def driver(library: ctypes.CDLL) -> Iterator[CudaDriver]:
    yield CudaDriver(library)
    assert library.fake_pushed() == 0, "every context that was made current is taken off again"


def test_a_device_is_told_from_the_host(driver: CudaDriver) -> None:
    buffer = ctypes.create_string_buffer(10)
    memory = CallersMemory(driver)
    assert memory.place_of(DEVICE, 10) is Place.DEVICE
    assert memory.place_of(ctypes.addressof(buffer), 10) is Place.HOST
    with pytest.raises(BadAddress):
        memory.place_of(DEVICE - 4096, 10)


@pytest.mark.parametrize("address", [DEVICE, ADRIFT])
def test_bytes_go_to_the_device_and_back(driver: CudaDriver, address: int) -> None:
    """Also where the memory belongs to no context."""
    memory = CallersMemory(driver)
    target = memory.target(address, 5)
    target.view[:] = b"hello"
    assert target.finish is not None
    target.finish()
    assert bytes(memory.source(address, 5)) == b"hello"


def test_a_copy_that_fails_is_an_error(driver: CudaDriver) -> None:
    with pytest.raises(DeviceCopyFailed, match="700"):
        driver.read(END - 4, 8)


def test_without_a_driver_device_memory_is_refused_and_the_driver_is_named() -> None:
    with pytest.raises(BadAddress, match="libcuda"):
        CallersMemory(None).source(DEVICE, 8)


def test_a_range_that_was_registered_is_not_asked_about_again() -> None:
    pages = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    memory = CallersMemory(None)
    assert memory.register(address, 3 * mmap.PAGESIZE)
    assert not memory.register(address + mmap.PAGESIZE, 10)
    assert not memory.register(address - 10, 20) if is_mapped(address - 10, 20) else True
    assert memory.room_at(address + 5) == 3 * mmap.PAGESIZE - 5
    assert memory.room_at(address + 3 * mmap.PAGESIZE) is None
    assert memory.place_of(address, 8) is Place.HOST
    assert memory.unregister(address)
    assert not memory.unregister(address)


@pytest.mark.parametrize(("address", "size"), [(0, 1), (-1, 1), (1, 1), (4096, 0), ((1 << 63) - 1, 8), (1 << 64, 8)])
def test_what_cannot_be_an_address_is_not_mapped(address: int, size: int) -> None:
    assert not is_mapped(address, size)


def test_the_end_of_a_range_counts_too() -> None:
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert is_mapped(address, mmap.PAGESIZE)
    assert not is_mapped(address, 1 << 40)


def test_an_engine_s_device_memory_goes_through_the_driver(
    cluster: Rig, driver: CudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "cuda_driver", lambda: driver)
    store = MooncakeDistributedStore()
    assert set_up(store, cluster.address) == 0
    host = ctypes.create_string_buffer(b"0123456789", 10)
    try:
        driver.write(DEVICE, memoryview(bytearray(b"abcdefghij")))
        assert store.register_buffer(DEVICE, 1 << 16) == 0
        assert store.batch_put_from_multi_buffers(["gpu"], [[DEVICE, ctypes.addressof(host)]], [[10, 10]]) == [0]
        assert store.get("gpu") == b"abcdefghij0123456789"
        targets = [[ctypes.addressof(host), DEVICE + 100, ADRIFT]]
        assert store.batch_get_into_multi_buffers(["gpu"], targets, [[4, 10, 6]]) == [20]
        assert host.raw[:4] == b"abcd"
        assert bytes(driver.read(DEVICE + 100, 10)) == b"efghij0123"
        assert bytes(driver.read(ADRIFT, 6)) == b"456789"
        assert store.get_into("gpu", END - 4, 20) == -800
        assert store.put_from("broken", END - 4, 20) == -800
    finally:
        store.remove_all(force=True)
        store.close()
