"""safetensors files in and out, compared with what the safetensors package itself writes and reads."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import holdfast
from holdfast import errors, tensors


def some_tensors() -> dict[str, Any]:
    return {
        "embed.weight": np.arange(3_000, dtype="float32").reshape(30, 100),
        "layer.0.bias": np.arange(7, dtype="int64"),
        "empty": np.zeros((0, 4), "float16"),
        **{f"block.{number}": np.full((16, 16), number, "uint8") for number in range(100)},
    }


def test_a_file_goes_in_and_comes_out_the_same(cache: holdfast.Cache, tmp_path: Path) -> None:
    before = some_tensors()
    save_file(before, tmp_path / "in.safetensors")
    keys = tensors.put_safetensors(cache, tmp_path / "in.safetensors", prefix="model/")
    assert sorted(keys) == sorted(f"model/{name}" for name in before)
    np.testing.assert_array_equal(
        tensors.get_tensor(cache, "model/embed.weight", framework="numpy"), before["embed.weight"]
    )
    cache.put("other", b"not of the model")
    names = tensors.get_safetensors(
        cache, tmp_path / "out.safetensors", prefix="model/", metadata={"made by": "a test"}
    )
    after = load_file(tmp_path / "out.safetensors")
    assert sorted(names) == sorted(after) == sorted(before)
    for name, array in before.items():
        assert after[name].dtype == array.dtype
        np.testing.assert_array_equal(after[name], array)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_putting_a_file_again_keeps_what_is_there(cache: holdfast.Cache, tmp_path: Path) -> None:
    save_file({"a": np.zeros(4, "float32")}, tmp_path / "f")
    tensors.put_safetensors(cache, tmp_path / "f")
    save_file({"a": np.ones(4, "float32")}, tmp_path / "f")
    assert tensors.put_safetensors(cache, tmp_path / "f") == ["a"]
    assert not tensors.get_tensor(cache, "a", framework="numpy").any()
    tensors.put_safetensors(cache, tmp_path / "f", upsert=True)
    assert tensors.get_tensor(cache, "a", framework="numpy").all()


def test_a_missing_key_leaves_no_file(cache: holdfast.Cache, tmp_path: Path) -> None:
    with pytest.raises(errors.ObjectNotFound, match="absent"):
        tensors.get_safetensors(cache, tmp_path / "out", keys=["absent"])
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_is_no_tensor_leaves_no_file(cache: holdfast.Cache, tmp_path: Path) -> None:
    cache.put("plain", b"x" * 5_000)
    with pytest.raises(errors.BadValue, match="holds no tensor"):
        tensors.get_safetensors(cache, tmp_path / "out", keys=["plain"])
    assert list(tmp_path.iterdir()) == []


def file_of(described: Any, data: bytes = b"") -> bytes:
    text = json.dumps(described).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"short",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 3) + b"no!",
        file_of([1]),
        file_of({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, b"only 12 byte"),
        file_of({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}}, b"only 12 byte"),
        file_of({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"four"),
        file_of({"a": {"dtype": "F32", "shape": [1]}}, b"four"),
        file_of({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, b"four"),
    ],
)
def test_a_damaged_file_is_refused_and_nothing_is_stored(cache: holdfast.Cache, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(errors.BadValue, match="nothing was stored"):
        tensors.put_safetensors(cache, tmp_path / "f", prefix="damaged/")
    assert list(cache.keys("damaged/")) == []
