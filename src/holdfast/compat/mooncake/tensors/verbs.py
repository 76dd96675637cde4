"""Tensors as objects, whole or split for tensor parallelism: `key_tp_0`, `key_tp_1`, ..."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

from holdfast.compat.mooncake.codes import INVALID_PARAMS, OBJECT_NOT_FOUND, OK
from holdfast.compat.mooncake.linked import same_length
from holdfast.compat.mooncake.memory.pointers import Pointers
from holdfast.compat.mooncake.memory.values import DEFAULT_CONFIG, Values, first_failure, put_each
from holdfast.compat.mooncake.structures import ReplicateConfig
from holdfast.compat.mooncake.tensors.format import HEADER_BYTES, layout_in, stored_form, tensor_in

log = logging.getLogger("holdfast.mooncake")
Write: TypeAlias = tuple[int, str, Any]
"""An object to put: the place of its tensor in the call, its key, and its buffers."""


def shard_key(key: str, rank: int, size: int) -> str:
    return f"{key}_tp_{rank}" if size > 1 else key


def chunks_of(tensor: Any, size: int, split_dim: int) -> list[Any] | None:
    """The parts of a tensor, one for each rank; None: it cannot be split so."""
    if size < 1 or not hasattr(tensor, "dim") or not 0 <= split_dim < max(1, tensor.dim()):
        return None
    if size == 1:
        return [tensor]
    parts = list(tensor.chunk(size, split_dim)) if tensor.dim() else []
    return parts if len(parts) == size else None


def window(address: int, size: int) -> memoryview:
    """Memory that the caller has filled, and keeps as long as tensors look at it."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


class Tensors(Values, Pointers):
    """The methods of tensors, and of tensors that are split by rank."""

    def put_tensor(self, key: str, tensor: Any) -> int:
        return self._put_tensors([key], [tensor], DEFAULT_CONFIG, upsert=False)[0]

    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self._put_tensors([key], [tensor], config, upsert=False)[0]

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        return self._put_tensors([key], [tensor], DEFAULT_CONFIG, upsert=True)[0]

    def upsert_pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self._put_tensors([key], [tensor], config, upsert=True)[0]

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        return self._put_tensors(keys, tensors_list, DEFAULT_CONFIG, upsert=False)

    def batch_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig = DEFAULT_CONFIG
    ) -> list[int]:
        return self._put_tensors(keys, tensors_list, config, upsert=False)

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        return self._put_tensors(keys, tensors_list, DEFAULT_CONFIG, upsert=True)

    def batch_upsert_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig = DEFAULT_CONFIG
    ) -> list[int]:
        return self._put_tensors(keys, tensors_list, config, upsert=True)

    def _put_tensors(
        self, keys: Sequence[str], tensors: Sequence[Any], config: ReplicateConfig, upsert: bool
    ) -> list[int]:
        if not same_length(keys, tensors):
            return [INVALID_PARAMS] * len(keys)
        return self._put_forms(keys, [stored_form(tensor) for tensor in tensors], config, upsert)

    def _put_forms(self, keys: Sequence[str], forms: Sequence[Any], config: ReplicateConfig, upsert: bool) -> list[int]:
        """Objects made of buffers; None in the place of one is refused."""
        return self._ask(lambda link: put_each(link, keys, forms, config, upsert), lambda code: [code] * len(keys))

    def _put_writes(self, writes: list[Write], codes: list[int], config: ReplicateConfig, upsert: bool) -> list[int]:
        """Put these in one batch. Per tensor its code, or the first failure of its objects."""
        written = self._put_forms([name for _, name, _ in writes], [form for _, _, form in writes], config, upsert)
        for (place, _, _), code in zip(writes, written, strict=True):
            codes[place] = first_failure([codes[place], code])
        return codes

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        return self._put_stored([key], [buffer_ptr], [size], upsert=False)[0]

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        return self._put_stored([key], [buffer_ptr], [size], upsert=True)[0]

    def batch_put_tensor_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        return self._put_stored(keys, buffer_ptrs, sizes, upsert=False)

    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        return self._put_stored(keys, buffer_ptrs, sizes, upsert=True)

    def _put_stored(
        self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int], upsert: bool
    ) -> list[int]:
        """From buffers that hold a tensor with its header, as `get_tensor_into` leaves them."""
        whole = self._tensors_at(keys, addresses, sizes)
        return [INVALID_PARAMS] * len(keys) if whole is None else self._put_tensors(keys, whole, DEFAULT_CONFIG, upsert)

    def _tensors_at(self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]) -> list[Any] | None:
        """The tensors in these buffers, None where there is none; None for all if the lists differ in length."""
        if not same_length(keys, addresses, sizes):
            return None

        def look(address: int, size: int) -> Any:
            source = self._ask(lambda link: link.memory.source(address, size), lambda code: None, masterless=True)
            return None if source is None else tensor_in(window(address, size))

        return [look(address, size) if size > 0 else None for address, size in zip(addresses, sizes, strict=True)]

    def get_tensor(self, key: str) -> Any:
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Sequence[str]) -> list[Any]:
        return [None if found is None else tensor_in(found) for found in self.batch_get_buffer(keys)]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        return self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        """Header and elements go to the buffers; tensors that look at them there."""
        if not same_length(keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(keys)
        codes = self.batch_get_into(keys, buffer_ptrs, sizes)
        return [
            tensor_in(window(address, code)) if code > 0 else None
            for address, code in zip(buffer_ptrs, codes, strict=True)
        ]

    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        return self.batch_get_tensor_into_cuda([key], [tensor])[0]

    def batch_get_tensor_into_cuda(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """Elements into tensors that are there already, on any device; bytes, or a code."""
        if not same_length(keys, tensors_list):
            return [INVALID_PARAMS] * len(keys)
        codes = []
        for target, found in zip(tensors_list, self.batch_get_tensor(keys), strict=True):
            if found is None:
                codes.append(OBJECT_NOT_FOUND)
            elif found.dtype != target.dtype or found.numel() != target.numel():
                codes.append(INVALID_PARAMS)
            else:
                target.copy_(found.reshape(target.shape))
                codes.append(found.numel() * found.element_size())
        return codes

    def put_tensor_with_tp(self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        return self._put_split([key], [tensor], DEFAULT_CONFIG, tp_size, split_dim)[0]

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        config: ReplicateConfig = DEFAULT_CONFIG,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        return self._put_split([key], [tensor], config, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        return self._put_split(base_keys, tensors_list, DEFAULT_CONFIG, tp_size, split_dim)

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig = DEFAULT_CONFIG,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        return self._put_split(base_keys, tensors_list, config, tp_size, split_dim)

    def put_tensor_with_tp_from(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        return self.batch_put_tensor_with_tp_from([key], [buffer_ptr], [size], tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        whole = self._tensors_at(base_keys, buffer_ptrs, sizes)
        if whole is None:
            return [INVALID_PARAMS] * len(base_keys)
        return self._put_split(base_keys, whole, DEFAULT_CONFIG, tp_size, split_dim)

    def _put_split(
        self, keys: Sequence[str], tensors: Sequence[Any], config: ReplicateConfig, tp_size: int, split_dim: int
    ) -> list[int]:
        """All parts of every tensor, in one batch; for each tensor the first failure."""
        if not same_length(keys, tensors):
            return [INVALID_PARAMS] * len(keys)
        codes = [INVALID_PARAMS] * len(keys)
        writes: list[Write] = []
        for place, (key, tensor) in enumerate(zip(keys, tensors, strict=True)):
            parts = chunks_of(tensor, tp_size, split_dim)
            if parts is not None:
                codes[place] = OK
                writes += [
                    (place, shard_key(key, rank, tp_size), stored_form(part, rank, tp_size, split_dim))
                    for rank, part in enumerate(parts)
                ]
        return self._put_writes(writes, codes, config, upsert=False)

    def get_tensor_with_tp(self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        return self.get_tensor(shard_key(key, tp_rank, tp_size))

    def batch_get_tensor_with_tp(self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1) -> list[Any]:
        return self.batch_get_tensor([shard_key(key, tp_rank, tp_size) for key in base_keys])

    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        return self.get_tensor_into(shard_key(key, tp_rank, tp_size), buffer_ptr, size)

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Any]:
        return self.batch_get_tensor_into([shard_key(key, tp_rank, tp_size) for key in base_keys], buffer_ptrs, sizes)

    def save_tensor_to_safetensor(self, key: str, file_name: str | None = None) -> int:
        """Write a stored tensor to a file, which is named by its key if not otherwise."""
        from safetensors.torch import save_file

        tensor = self.get_tensor(key)
        if tensor is None:
            return OBJECT_NOT_FOUND
        try:
            save_file({key: tensor.clone()}, file_name or key)
        except OSError as error:
            log.error("save_tensor_to_safetensor: %s", error)
            return INVALID_PARAMS
        return OK

    def load_tensor_from_safetensor(self, key: str | None = None, file_name: str = "") -> Any:
        """Store the tensor of a file, under its name there or as `key`; None: there is none, or it was not stored."""
        from safetensors.torch import load_file

        try:
            found = load_file(file_name)
        except (OSError, ValueError) as error:
            log.error("load_tensor_from_safetensor: %s", error)
            return None
        name = key if key in found else next(iter(found), None)
        if name is None or self.put_tensor(key or name, found[name]) != OK:
            return None
        return found[name]


def header_fits(stored: Any, rank: int, count: int, split_dim: int) -> bool:
    """Is this the wanted part of a whole?"""
    layout = layout_in(stored)
    return layout is not None and (layout.rank, layout.count, layout.split_dim) == (rank, count, split_dim)


__all__ = ["HEADER_BYTES", "Tensors", "Write", "chunks_of", "header_fits", "shard_key", "window"]
