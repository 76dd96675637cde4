"""`mooncake_tensors.py ADDRESS put|get`: tensors that one process stores and another one finds, byte for byte."""

from __future__ import annotations

import ctypes
import sys
from typing import NamedTuple

import mooncake.store as mooncake
import torch

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
]
SHAPE = (12, 8, 6)


def made(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(7)
    return torch.randint(0, 2, SHAPE).to(dtype)


def axis(kind: str, rank: int, size: int, split_dim: int | None = None) -> mooncake.ParallelAxis:
    one = mooncake.ParallelAxis()
    one.kind, one.rank, one.size, one.split_dim = kind, rank, size, split_dim
    return one


class Writer(NamedTuple):
    rank: int
    size: int
    split_dim: int


def along(*axes: mooncake.ParallelAxis) -> mooncake.TensorParallelism:
    parallelism = mooncake.TensorParallelism()
    parallelism.axes = list(axes)
    return parallelism


def target(mode: str, parallelism: mooncake.TensorParallelism | None = None) -> mooncake.ReadTarget:
    one = mooncake.ReadTarget()
    one.mode, one.parallelism = mode, parallelism
    return one


def same(found: torch.Tensor | None, wanted: torch.Tensor) -> bool:
    return (
        found is not None
        and (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        and torch.equal(found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))
    )


def put(store: mooncake.MooncakeDistributedStore) -> None:
    keys = [f"dtype/{dtype}" for dtype in DTYPES]
    assert store.batch_put_tensor(keys, [made(dtype) for dtype in DTYPES]) == [0] * len(keys)
    assert store.put_tensor("scalar", torch.tensor(3.5)) == 0
    assert store.put_tensor("none", torch.empty(0, 4)) == 0
    assert store.put_tensor("not one", [1, 2, 3]) < 0
    whole = made(torch.bfloat16)
    for dim in range(3):
        assert store.put_tensor_with_tp(f"split/{dim}", whole, tp_size=2, split_dim=dim) == 0
    for rank in range(3):
        both = along(axis("tp", rank, 3, 2), axis("dp", 1, 2))
        assert store.put_tensor_with_parallelism("axes", whole, both) == 0
    for size in (1, 4):
        for rank in range(size):
            assert store.put_tensor_with_parallelism(f"by {size}", whole, writer_partition=Writer(rank, size, 1)) == 0
    assert store.put_tensor_with_tp("split/odd", torch.ones(3), tp_size=4) < 0


def get(store: mooncake.MooncakeDistributedStore) -> None:
    found = store.batch_get_tensor([f"dtype/{dtype}" for dtype in DTYPES])
    for dtype, tensor in zip(DTYPES, found, strict=True):
        assert same(tensor, made(dtype)), dtype
    assert store.get_tensor("scalar").item() == 3.5
    assert store.get_tensor("none").shape == (0, 4)
    assert store.get_tensor("nothing") is None
    whole = made(torch.bfloat16)
    for dim in range(3):
        for rank, part in enumerate(whole.chunk(2, dim)):
            assert same(store.get_tensor_with_tp(f"split/{dim}", rank, 2, dim), part)
        again = target("shard", along(axis("tp", 1, 3 if dim != 1 else 4, dim)))
        assert same(store.get_tensor_with_parallelism(f"split/{dim}", again), whole.chunk(3 if dim != 1 else 4, dim)[1])
        assert same(store.get_tensor_with_parallelism(f"split/{dim}", target("full")), whole)
    for size in (1, 4):
        assert same(store.get_tensor_with_parallelism(f"by {size}", target("full")), whole)
    header, _, size, _ = mooncake._serialize_tensor(whole)
    assert (len(header), size) == (304, whole.nbytes)
    assert store.get(f"dtype/{torch.bfloat16}")[:304] == header
    turned = along(axis("dp", 1, 2), axis("tp", 0, 3, 2))
    assert same(store.get_tensor_with_parallelism("axes", target("full", turned)), whole)
    assert store.get_tensor_with_parallelism("axes", target("full", along(axis("dp", 0, 2)))) is None
    buffer = (ctypes.c_ubyte * 100_000)()
    address = ctypes.addressof(buffer)
    assert same(store.get_tensor_into(f"dtype/{DTYPES[0]}", address, 100_000), made(DTYPES[0]))
    assert store.put_tensor_from("again", address, 304 + made(DTYPES[0]).nbytes) == 0
    assert same(store.get_tensor("again"), made(DTYPES[0]))
    assert store.get_tensor_into("again", address, 100) is None
    assert same(store.get_tensor_with_parallelism_into("axes", address, 100_000, target("full", turned)), whole)


def main() -> int:
    address, verb = sys.argv[1:]
    store = mooncake.MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 256 << 20, "tcp", "", address) == 0
    {"put": put, "get": get}[verb](store)
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
