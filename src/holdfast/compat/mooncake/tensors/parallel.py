"""Tensors that are written and read by parallelism: axes of ranks (tp, dp, ep, pp), and parts by writers.

A part's key says where it belongs: `key_tp_0` for tensor parallelism alone, `key__dp1of2_tp_0` with further axes, and
`key__writer_3_sd1_tp_0` by writers. Its header says of how many parts it is which, along which dimension. A reader
finds them all from the first, and may ask for the whole, or for another split than was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any

from holdfast.compat.mooncake.codes import INVALID_PARAMS, OK
from holdfast.compat.mooncake.linked import same_length
from holdfast.compat.mooncake.memory.values import DEFAULT_CONFIG
from holdfast.compat.mooncake.structures import ReplicateConfig
from holdfast.compat.mooncake.tensors.format import layout_in, stored_form, tensor_in
from holdfast.compat.mooncake.tensors.verbs import Tensors, Write, chunks_of, header_fits, shard_key, window

KINDS = ("dp", "pp", "ep", "tp")
AS_STORED, SHARD, FULL = "as_stored", "shard", "full"
MOST_PARTS = 65_536


@dataclass
class ParallelAxis:
    kind: str = ""
    rank: int = 0
    size: int = 1
    split_dim: int | None = None
    expert_id: int | None = None
    stage_id: int | None = None

    def is_valid(self) -> bool:
        if self.kind not in KINDS or not 0 <= self.rank < self.size:
            return False
        if self.kind == "tp":
            return self.split_dim is not None and self.split_dim >= 0
        return self.split_dim is None and (self.kind != "ep" or self.expert_id is not None)

    def label(self) -> str:
        extra = {"ep": self.expert_id, "pp": self.stage_id}.get(self.kind)
        return f"{self.kind}{self.rank}of{self.size}" + (f"-{extra}" if extra is not None else "")


@dataclass
class TensorParallelism:
    axes: list[ParallelAxis] = field(default_factory=list)


@dataclass
class ReadTarget:
    mode: str = AS_STORED
    parallelism: TensorParallelism | None = None


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Which part of which tensor. `count` 1: it is not split."""

    base: str
    rank: int = 0
    count: int = 1
    split_dim: int = -1
    given_whole: bool = True
    """The caller puts the whole tensor, of which this part is stored; otherwise it puts the part itself."""

    @property
    def key(self) -> str:
        return shard_key(self.base, self.rank, self.count)


def part_of(key: str, parallelism: TensorParallelism | None) -> TensorPart | None:
    """None: the axes contradict each other."""
    axes = list(parallelism.axes) if parallelism is not None else []
    kinds = [axis.kind for axis in axes]
    if not all(axis.is_valid() for axis in axes) or len({*kinds}) != len(kinds):
        return None
    others = sorted((axis for axis in axes if axis.kind != "tp"), key=lambda axis: KINDS.index(axis.kind))
    base = key + ("__" + "_".join(axis.label() for axis in others) if others else "")
    split = next((axis for axis in axes if axis.kind == "tp"), None)
    if split is None or split.split_dim is None:
        return TensorPart(base)
    return TensorPart(base, split.rank, split.size, split.split_dim, given_whole=bool(others))


def writer_part(key: str, writer: Any) -> TensorPart | None:
    rank, size, split_dim = (getattr(writer, name, -1) for name in ("rank", "size", "split_dim"))
    if not 0 <= rank < size or split_dim < 0:
        return None
    return TensorPart(f"{key}__writer_{size}_sd{split_dim}", rank, size, split_dim) if size > 1 else TensorPart(key)


def manifest_key(key: str) -> str:
    return f"{key}__writer_manifest"


class ParallelTensors(Tensors):
    """The `..._with_parallelism` methods. Each of a put is there twice, to replace an object or not."""

    def _put_for_axes(
        self,
        upsert: bool,
        key: str,
        tensor: Any,
        parallelism: Any = None,
        config: ReplicateConfig = DEFAULT_CONFIG,
        writer_partition: Any = None,
    ) -> int:
        return self._put_parts_of([key], [tensor], [parallelism], config, [writer_partition], upsert)[0]

    put_tensor_with_parallelism = partialmethod(_put_for_axes, False)
    upsert_tensor_with_parallelism = partialmethod(_put_for_axes, True)

    def _put_batch_for_axes(
        self,
        upsert: bool,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        parallelisms: Any = None,
        config: ReplicateConfig = DEFAULT_CONFIG,
        writer_partitions: Any = None,
    ) -> list[int]:
        return self._put_parts_of(keys, tensors_list, parallelisms, config, writer_partitions, upsert)

    batch_put_tensor_with_parallelism = partialmethod(_put_batch_for_axes, False)
    batch_upsert_tensor_with_parallelism = partialmethod(_put_batch_for_axes, True)

    def _put_for_axes_from(
        self,
        upsert: bool,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: Any = None,
        config: ReplicateConfig = DEFAULT_CONFIG,
        writer_partition: Any = None,
    ) -> int:
        found = self._tensors_at([key], [buffer_ptr], [size])
        return self._put_parts_of([key], found, [parallelism], config, [writer_partition], upsert)[0]

    put_tensor_with_parallelism_from = partialmethod(_put_for_axes_from, False)
    upsert_tensor_with_parallelism_from = partialmethod(_put_for_axes_from, True)

    def _put_batch_for_axes_from(
        self,
        upsert: bool,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Any = None,
        config: ReplicateConfig = DEFAULT_CONFIG,
        writer_partitions: Any = None,
    ) -> list[int]:
        found = self._tensors_at(keys, buffer_ptrs, sizes)
        return self._put_parts_of(keys, found, parallelisms, config, writer_partitions, upsert)

    batch_put_tensor_with_parallelism_from = partialmethod(_put_batch_for_axes_from, False)
    batch_upsert_tensor_with_parallelism_from = partialmethod(_put_batch_for_axes_from, True)

    def _put_parts_of(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any] | None,
        parallelisms: Any,
        config: ReplicateConfig,
        writers: Any,
        upsert: bool,
    ) -> list[int]:
        """One part of each tensor; those of one call in one batch."""
        axes = [None] * len(keys) if parallelisms is None else parallelisms
        parting = [None] * len(keys) if writers is None else writers
        if tensors is None or not same_length(keys, tensors, axes, parting):
            return [INVALID_PARAMS] * len(keys)
        codes = [INVALID_PARAMS] * len(keys)
        writes: list[Write] = []
        for place, (key, tensor) in enumerate(zip(keys, tensors, strict=True)):
            forms = _forms(key, tensor, axes[place], parting[place])
            if forms:
                codes[place] = OK
                writes += [(place, name, form) for name, form in forms]
        return self._put_writes(writes, codes, config, upsert)

    def get_tensor_with_parallelism(self, key: str, target: Any = None) -> Any:
        return self._read_part(key, target)

    def batch_get_tensor_with_parallelism(self, keys: Sequence[str], targets: Any = None) -> list[Any]:
        wanted = [None] * len(keys) if targets is None else targets
        if not same_length(keys, wanted):
            return [None] * len(keys)
        return [self._read_part(key, target) for key, target in zip(keys, wanted, strict=True)]

    def get_tensor_with_parallelism_into(self, key: str, buffer_ptr: int, size: int, target: Any = None) -> Any:
        return self.batch_get_tensor_with_parallelism_into([key], [buffer_ptr], [size], [target])[0]

    def batch_get_tensor_with_parallelism_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], targets: Any = None
    ) -> list[Any]:
        wanted = [None] * len(keys) if targets is None else targets
        if not same_length(keys, buffer_ptrs, sizes, wanted):
            return [None] * len(keys)
        rows = zip(keys, buffer_ptrs, sizes, wanted, strict=True)
        return [self._placed(self._read_part(key, target), address, size) for key, address, size, target in rows]

    def _placed(self, tensor: Any, address: int, size: int) -> Any:
        """Header and elements at this address, and the tensor there."""
        form = stored_form(tensor) if tensor is not None else None
        if form is None:
            return None
        whole = b"".join([form[0], *(memoryview(part.numpy()) for part in form[1:])])
        reachable = self._ask(lambda link: link.memory.source(address, size), lambda code: None, masterless=True)
        if len(whole) > size or reachable is None:
            return None
        room = window(address, len(whole))
        room[:] = whole
        return tensor_in(room)

    def _read_part(self, key: str, target: Any) -> Any:
        mode = getattr(target, "mode", None) or AS_STORED
        part = part_of(key, getattr(target, "parallelism", None))
        if part is None or mode not in (AS_STORED, SHARD, FULL):
            return None
        if mode == AS_STORED:
            return self.get_tensor(part.key)
        if mode == FULL:
            return self._whole(key, part)
        stored = self.get_buffer(part.key)
        if stored is not None and (part.count == 1 or header_fits(stored, part.rank, part.count, part.split_dim)):
            return tensor_in(stored)
        # It was written by another split, or whole.
        whole = self._whole(key, part)
        parts = chunks_of(whole, part.count, part.split_dim) if whole is not None else None
        return parts[part.rank].contiguous() if parts is not None else None

    def _whole(self, key: str, part: TensorPart) -> Any:
        """Put together from its parts, or as it was stored."""
        first = self.get_buffer(f"{part.base}_tp_0")
        layout = layout_in(first) if first is not None else None
        if layout is not None and layout.count > 1:
            return self._joined([shard_key(part.base, n, layout.count) for n in range(_bounded(layout.count))])
        whole = self.get_tensor(part.base)
        if whole is not None:
            return whole
        manifest = self.get_buffer(manifest_key(key))
        written = layout_in(manifest) if manifest is not None else None
        if written is None:
            return None
        base = f"{key}__writer_{written.count}_sd{written.split_dim}"
        return self._joined([shard_key(base, n, written.count) for n in range(_bounded(written.count))])

    def _joined(self, keys: list[str]) -> Any:
        import torch

        stored = self.batch_get_buffer(keys)
        layouts = [layout_in(each) if each is not None else None for each in stored]
        if not keys or any(layout is None for layout in layouts):
            return None
        told = {(layout.count, layout.split_dim, layout.dtype) for layout in layouts if layout is not None}
        if len(told) != 1 or [layout.rank for layout in layouts if layout is not None] != [*range(len(keys))]:
            return None
        ((_, split_dim, _),) = told
        return torch.cat([tensor_in(each) for each in stored], dim=split_dim)


def _bounded(count: int) -> int:
    return count if 0 < count <= MOST_PARTS else 0


def _forms(key: str, tensor: Any, parallelism: Any, writer: Any) -> list[tuple[str, Any]]:
    """The objects to put for one part of a tensor; none: it cannot be."""
    if writer is not None and parallelism is not None:
        return []
    part = writer_part(key, writer) if writer is not None else part_of(key, parallelism)
    if part is None:
        return []
    stored = tensor
    if part.count > 1 and part.given_whole:
        parts = chunks_of(tensor, part.count, part.split_dim)
        # Each writer cuts for itself, so all parts must be of one size for them to agree on where.
        if parts is None or tensor.shape[part.split_dim] % part.count:
            return []
        stored = parts[part.rank]
    form = stored_form(stored, part.rank, part.count, part.split_dim)
    if form is None:
        return []
    forms = [(part.key, form)]
    if writer is not None and part.count > 1:
        # A reader needs this before it can name the parts: how many there are, and how they were split.
        forms.append((manifest_key(key), [_manifest(tensor, part)]))
    return forms


def _manifest(tensor: Any, part: TensorPart) -> bytes:
    form = stored_form(tensor.reshape(-1)[:0], 0, part.count, part.split_dim)
    assert form is not None
    header: bytes = form[0]
    return header
