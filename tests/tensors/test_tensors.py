"""Tensors come back with the dtype, the shape and the bytes that they had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import holdfast
from holdfast import errors, tensors
from holdfast.tensors.frameworks import NUMPY_NAMES

PLAIN = [name for name in NUMPY_NAMES if name in np.sctypeDict]


def some_array(dtype: str, shape: tuple[int, ...] = (3, 5, 7)) -> Any:
    drawn = np.random.default_rng(7).integers(0, 2 if dtype == "bool" else 100, shape)
    return drawn.astype(dtype)


@pytest.mark.parametrize("dtype", PLAIN)
def test_an_array_comes_back_as_it_was_put(cache: holdfast.Cache, dtype: str) -> None:
    array = some_array(dtype)
    assert tensors.put_tensor(cache, "k", array)
    assert not tensors.put_tensor(cache, "k", array), "the key was there already"
    found = tensors.get_tensor(cache, "k", framework="numpy")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    found[...] = 0  # It is the caller's own memory.


@pytest.mark.parametrize("shape", [(), (0,), (4, 0, 2), (1,), (1000, 1000)])
def test_every_shape_is_kept(cache: holdfast.Cache, shape: tuple[int, ...]) -> None:
    array = some_array("float32", shape)
    tensors.put_tensor(cache, "k", array)
    np.testing.assert_array_equal(tensors.get_tensor(cache, "k", framework="numpy"), array)
    into = np.empty(shape, "float32")
    assert tensors.get_tensor_into(cache, "k", into) is into
    np.testing.assert_array_equal(into, array)


def test_many_at_once_and_absent_ones_are_left_out(cache: holdfast.Cache) -> None:
    arrays = {f"layer/{number}": some_array("float16", (number + 1, 64)) for number in range(20)}
    assert tensors.put_tensors(cache, arrays) == [True] * 20
    found = tensors.get_tensors(cache, [*arrays, "absent", "layer/0"], framework="numpy")
    assert found.keys() == arrays.keys()
    for key, array in arrays.items():
        np.testing.assert_array_equal(found[key], array)


def test_an_absent_tensor_is_a_key_error_or_the_default(cache: holdfast.Cache) -> None:
    with pytest.raises(KeyError):
        tensors.get_tensor(cache, "absent")
    assert tensors.get_tensor(cache, "absent", default=None) is None
    with pytest.raises(errors.ObjectNotFound):
        tensors.get_tensor_into(cache, "absent", np.zeros(3))


def test_an_object_that_is_no_tensor_is_refused(cache: holdfast.Cache) -> None:
    cache.put("k", b"plain bytes")
    with pytest.raises(errors.BadValue, match="holds no tensor"):
        tensors.get_tensor(cache, "k", framework="numpy")


@pytest.mark.parametrize("other", [np.full((5, 3), 7, "int64"), np.full((3, 5), 7, "float64"), np.full(3, 7, "int64")])
def test_memory_of_another_dtype_or_shape_is_not_written_to(cache: holdfast.Cache, other: Any) -> None:
    tensors.put_tensor(cache, "k", some_array("int64", (3, 5)))
    with pytest.raises(errors.BadValue, match="nothing was written"):
        tensors.get_tensor_into(cache, "k", other)
    assert (other == 7).all()


def test_what_cannot_be_stored_as_it_lies_is_refused(cache: holdfast.Cache) -> None:
    with pytest.raises(errors.BadValue, match="contiguous"):
        tensors.put_tensor(cache, "k", np.zeros((4, 4)).T[1:])
    with pytest.raises(errors.BadValue, match="byte order"):
        tensors.put_tensor(cache, "k", np.zeros(4, ">i4"))
    with pytest.raises(errors.BadValue, match="cannot be stored"):
        tensors.put_tensor(cache, "k", np.zeros(4, "U3"))
    with pytest.raises(TypeError, match="list"):
        tensors.put_tensor(cache, "k", [1, 2])
    assert not cache.exists("k")


TORCH_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "int8", "bool", "complex64"]


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_torch_tensors_of_every_kind(cache: holdfast.Cache, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install a CPU build of torch")
    tensor = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, dtype))
    assert tensors.put_tensor(cache, "k", tensor)
    found = tensors.get_tensor(cache, "k", framework="torch")
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))
    into = torch.empty_like(tensor)
    tensors.get_tensor_into(cache, "k", into)
    assert torch.equal(into.view(torch.uint8), tensor.view(torch.uint8))
