"""SGLang's host pools: whose pages they hold, what their bytes look like, and where they lie in memory.

A page may be read by another engine only if its bytes mean the same there. Therefore the key of a page names the model,
the shard (pipeline stage, context and tensor rank) and the format (layout, type and shape of the pool). Pages of one
size may differ in the order of their bytes, by the layout alone; without the format such an engine would read garbage.

MLA pools hold the same bytes on all tensor ranks, so their keys name no tensor rank and one rank writes them.

One page is one object, however many buffers it lies in: half as many keys to ask for and to keep than one for each
buffer (docs/engines/sglang.md has the figures), and a page is there as a whole or not at all.
"""

from __future__ import annotations

import array
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import holdfast
from holdfast.errors import BadValue
from holdfast.integrations.names import digest, part

log = logging.getLogger("holdfast.integrations.sglang")

KV = "kv"
SHAPE = ("layout", "dtype", "page_size", "start_layer", "end_layer", "layer_num", "head_dim", "v_head_dim")
OWN_SHAPE = (
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kv_cache_dim",
    "head_group_num",
    "target_layer_num",
    "storage_format_tag",
)
SHARDED_ALWAYS = frozenset({"mamba"})
SHARDED_UNLESS_MLA = frozenset({"draft", "draft_swa"})
MLA_POOLS = frozenset({"MLATokenToKVPoolHost", "DeepSeekV4PagedHostPool"})


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of the model's cache this engine process holds, from SGLang's HiCacheStorageConfig."""

    root: str
    """Prefix of all keys of the model, of every rank."""
    place: str
    tensor_places: tuple[str, ...]
    """One, or several where heads are split to suit engines of other tensor sizes."""
    is_replicated: bool
    is_writer: bool

    @classmethod
    def of(cls, config: Any, namespace: str) -> Shard:
        if not config.model_name and not namespace:
            raise BadValue(
                "SGLang gave no model name, so pages of different models could be taken for each other; "
                "start it with --served-model-name, or set 'namespace' in the extra config"
            )
        tag = (config.extra_config or {}).get("extra_backend_tag")
        root = "/".join(["sglang", *(part(str(text)) for text in (namespace, tag or "", config.model_name or ""))])
        place = f"pp{config.pp_rank}of{config.pp_size}.cp{config.attn_cp_rank}of{config.attn_cp_size}"
        if getattr(config, "dcp_size", 1) > 1:
            place += f".dcp{config.dcp_rank}of{config.dcp_size}.tp{config.tp_size}"
        split = config.tp_lcm_size // config.tp_size if config.should_split_heads else 1
        size = config.tp_size * split
        return cls(
            root=root + "/",
            place=place,
            tensor_places=tuple(f".tp{config.tp_rank * split + which}of{size}" for which in range(split)),
            is_replicated=config.is_mla_model,
            is_writer=config.is_storage_writer,
        )


class Pool:
    """One host pool of an engine: the names of its pages and the memory they lie in."""

    __slots__ = ("_copies", "_memory", "_prefixes", "_split", "holds_bytes", "is_written")

    def __init__(self, memory: Any, name: str, shard: Shard, flat: bool = False) -> None:
        """`flat`: the engine copies pages out of the pool into one tensor each, in an order of their own. Raises if
        pages of this pool cannot be moved: SGLang then gives up the attachment, with this text."""
        self._memory = memory
        self.holds_bytes = getattr(memory, "kv_buffer", memory) is not None
        """False: a logical anchor, whose pages are in other pools."""
        replicated = shard.is_replicated and not _is_sharded(memory, name)
        self.is_written = shard.is_writer or not replicated
        """False: another rank writes the same pages."""
        self._split = 1 if flat or replicated or name != KV else len(shard.tensor_places)
        sizes = [] if flat or not self.holds_bytes else self._sizes()
        self._copies = self.holds_bytes and not sizes
        """Addresses cannot be had: pages are copied, as in generic calls."""
        if self._copies:
            self._split = 1
        form = digest({**_shape(memory, self._split), "sizes": sizes})
        self._prefixes = [
            f"{shard.root}{shard.place}{place}/{name}-{form}/" for place in self._places(shard, replicated)
        ]

    def _places(self, shard: Shard, replicated: bool) -> Sequence[str]:
        if replicated:
            return ("",)
        if self._split == len(shard.tensor_places):
            return shard.tensor_places
        # Not split: the whole pages of this rank, which no other tensor size can read.
        return (f".whole{''.join(shard.tensor_places)}",)

    def _sizes(self) -> list[int]:
        """Of the buffers of one object; none if the pool cannot tell where its pages lie."""
        kind = type(self._memory).__name__
        if not hasattr(self._memory, "get_page_buffer_meta"):
            raise BadValue(f"the pool {kind} tells no addresses of its pages (get_page_buffer_meta); it cannot be used")
        for tensor in _tensors(self._memory):
            device = getattr(getattr(tensor, "device", None), "type", "cpu")
            if device != "cpu":
                raise BadValue(f"the pool {kind} lies in {device} memory; holdfast moves host memory only")
        try:
            pointers, sizes = self._addresses(_first_page(self._memory))
        except (AssertionError, NotImplementedError, ValueError) as error:
            layout = getattr(self._memory, "layout", "unknown")
            if not hasattr(self._memory, "set_from_flat_data_page"):
                raise BadValue(
                    f"the pool {kind} with layout {layout!r} gives no addresses of its pages ({error}); "
                    "choose another --hicache-mem-layout, such as page_first"
                ) from error
            log.warning("pages of the pool %s (layout %r) are copied once more, because %s", kind, layout, error)
            return []
        of_one_object = len(sizes) // self._split
        return [size for _, size in _flattened(pointers[:of_one_object], sizes[:of_one_object])]

    def _addresses(self, indices: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        if self._split > 1:
            found = self._memory.get_split_heads_page_buffer_meta(indices, self._split)
        else:
            found = self._memory.get_page_buffer_meta(indices)
        pointers, sizes = found
        return pointers, sizes

    def names(self, page: str) -> list[str]:
        """Keys of the objects of a page: one, or one for each group of heads."""
        return [prefix + page for prefix in self._prefixes]

    @property
    def objects_per_page(self) -> int:
        return len(self._prefixes)

    def buffers(self, pages: int, indices: Any, writable: bool) -> list[list[Any]]:
        """Memory of the objects of these pages, in the order of their names."""
        if indices is None or len(indices) % pages:
            told = "no" if indices is None else len(indices)
            raise BadValue(f"{told} host indices do not make {pages} pages; nothing was moved")
        if self._copies:
            return [[self._copied(start, writable)] for start in _starts(pages, indices)]
        pointers, sizes = self._addresses(indices)
        objects = pages * self.objects_per_page
        if len(pointers) != len(sizes) or len(pointers) % objects:
            raise BadValue(f"{len(pointers)} buffers of the pool do not make {pages} pages; nothing was moved")
        each = len(pointers) // objects
        return [
            [
                holdfast.memory_at(address, size, writable)
                for address, size in _flattened(pointers[first : first + each], sizes[first : first + each])
                # States of some models have parts without elements.
                if size
            ]
            for first in range(0, len(pointers), each)
        ]

    def _copied(self, start: int, writable: bool) -> Any:
        if writable:
            return self._memory.get_dummy_flat_data_page()
        return contiguous(self._memory.get_data_page(start, flat=True))

    def take(self, pages: Sequence[bool], indices: Any, buffers: Sequence[Sequence[Any]]) -> None:
        """The good ones of these pages were read into the buffers: bring them into the pool if they are not there."""
        if self._copies:
            for good, start, (page,) in zip(pages, _starts(len(pages), indices), buffers, strict=True):
                if good:
                    self._memory.set_from_flat_data_page(start, page)


def contiguous(page: Any) -> Any:
    """Tensors may be views with gaps."""
    return page.contiguous() if hasattr(page, "contiguous") else page


def _starts(pages: int, indices: Any) -> list[int]:
    step = len(indices) // pages
    return [int(index) for index in indices[::step]]


def _is_sharded(memory: Any, name: str) -> bool:
    """Tensor ranks hold different bytes in this pool even where the model's own cache is the same on all."""
    if name in SHARDED_UNLESS_MLA:
        return not any(kind.__name__ in MLA_POOLS for kind in type(memory).__mro__)
    return name in SHARDED_ALWAYS


def _shape(memory: Any, split: int) -> dict[str, object]:
    """Facts that two pools must share for their bytes to mean the same."""
    facts: dict[str, object] = {name: getattr(memory, name, None) for name in (*SHAPE, *OWN_SHAPE)}
    for name in ("head_num", "size_per_token"):
        whole = getattr(memory, name, None)
        facts[name] = whole // split if isinstance(whole, int) else whole
    return {"kind": type(memory).__name__, **facts}


def _tensors(memory: Any) -> list[Any]:
    buffers = memory.get_hybrid_pool_buffer() if hasattr(memory, "get_hybrid_pool_buffer") else memory.kv_buffer
    if buffers is None:
        return []
    return [one for one in buffers if one is not None] if isinstance(buffers, list | tuple) else [buffers]


def _flattened(pointers: Sequence[Any], sizes: Sequence[Any]) -> Iterable[tuple[int, int]]:
    for pointer, size in zip(pointers, sizes, strict=True):
        if isinstance(pointer, list | tuple):
            yield from zip(pointer, size, strict=True)
        else:
            yield pointer, size


def _first_page(memory: Any) -> Any:
    """Indices of the first page, as the engine gives them: a tensor where there are tensors."""
    tokens = getattr(memory, "logical_page_size", 0) or getattr(memory, "page_size", 0) or 1
    torch: Any = sys.modules.get("torch")
    return torch.arange(tokens) if torch is not None else array.array("q", range(tokens))
