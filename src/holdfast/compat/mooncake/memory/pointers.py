"""Puts and gets by address: engines name memory of theirs, which is read or filled in place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.compat.device_memory import CallersMemory
from holdfast.compat.mooncake.codes import INVALID_PARAMS, OBJECT_NOT_FOUND, OK, TRANSFER_FAIL, code_of
from holdfast.compat.mooncake.link import MooncakeLink
from holdfast.compat.mooncake.linked import Linked, same_length
from holdfast.compat.mooncake.memory.values import DEFAULT_CONFIG, checked_config, put_each
from holdfast.compat.mooncake.structures import ReplicateConfig
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.mooncake")


class Filling:
    """The memory that one key's bytes go to: host memory as it is, device memory by a copy at the end."""

    def __init__(self, memory: CallersMemory, pieces: Sequence[tuple[int, int]]) -> None:
        """`pieces`: address and size of each. HoldfastError where one cannot be had."""
        targets = [memory.target(address, size) for address, size in pieces]
        self.views = [target.view for target in targets]
        self._finish = [target.finish for target in targets if target.finish is not None]

    def finished(self, outcome: int | HoldfastError) -> int:
        """The code for what the read came to."""
        if isinstance(outcome, HoldfastError):
            return code_of(outcome)
        try:
            for finish in self._finish:
                finish()
        except HoldfastError as error:
            log.error("%s", error)
            return code_of(error)
        return outcome if outcome > 0 else OBJECT_NOT_FOUND


def read_each(
    link: MooncakeLink,
    keys: Sequence[str],
    pieces: Sequence[Sequence[tuple[int, int]]],
    shape: Callable[[int, list[memoryview]], Any],
) -> list[int]:
    """How many bytes were read for each key, or a code. `shape` makes the client's target of a key's views."""
    codes = [OBJECT_NOT_FOUND] * len(keys)
    asked: list[tuple[int, str, Filling]] = []
    for place, (stored, each) in enumerate(zip(link.names.stored_each(keys), pieces, strict=True)):
        if stored is None:
            continue
        try:
            asked.append((place, stored, Filling(link.memory, each)))
        except HoldfastError as error:
            log.error("%s", error)
            codes[place] = code_of(error)
    targets = [shape(place, filling.views) for place, _, filling in asked]
    outcomes = link.shared.load([stored for _, stored, _ in asked], targets) if asked else []
    for (place, _, filling), outcome in zip(asked, outcomes, strict=True):
        codes[place] = filling.finished(outcome)
    return codes


def sources(link: MooncakeLink, pieces: Sequence[tuple[int, int]]) -> Any:
    """The buffers of one key's value; the error if one cannot be read; None if there are no bytes."""
    try:
        found = [link.memory.source(address, size) for address, size in pieces if size]
    except HoldfastError as error:
        log.error("%s", error)
        return error
    return found or None


class Pointers(Linked):
    """The methods that take addresses."""

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Shared memory and TCP need no registration; it spares asking about the range at every use."""
        return self._ask(
            lambda link: OK if size > 0 and link.memory.register(buffer_ptr, size) else INVALID_PARAMS,
            lambda code: code,
            masterless=True,
        )

    def unregister_buffer(self, buffer_ptr: int) -> int:
        return self._ask(
            lambda link: OK if link.memory.unregister(buffer_ptr) else INVALID_PARAMS,
            lambda code: code,
            masterless=True,
        )

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0] if size else OK

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self.batch_upsert_from([key], [buffer_ptr], [size], config)[0] if size else OK

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig = DEFAULT_CONFIG,
    ) -> int:
        """The metadata first, then the data, as one object."""
        addresses, sizes = [metadata_buffer_ptr, buffer_ptr], [metadata_size, size]
        return self._put_pieces([key], [addresses], [sizes], config, upsert=False)[0]

    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig = DEFAULT_CONFIG,
    ) -> list[int]:
        return self._put_pieces(
            keys, [[each] for each in buffer_ptrs], [[each] for each in sizes], config, upsert=False
        )

    def batch_upsert_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig = DEFAULT_CONFIG,
    ) -> list[int]:
        return self._put_pieces(keys, [[each] for each in buffer_ptrs], [[each] for each in sizes], config, upsert=True)

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig = DEFAULT_CONFIG,
    ) -> list[int]:
        return self._put_pieces(keys, all_buffer_ptrs, all_sizes, config, upsert=False)

    def _put_pieces(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        config: ReplicateConfig,
        upsert: bool,
    ) -> list[int]:
        checked_config(config)
        if not same_length(keys, addresses, sizes):
            return [INVALID_PARAMS] * len(keys)

        def put(link: MooncakeLink) -> list[int]:
            values = [
                sources(link, list(zip(theirs, lengths, strict=True))) if same_length(theirs, lengths) else None
                for theirs, lengths in zip(addresses, sizes, strict=True)
            ]
            return put_each(link, keys, values, config, upsert)

        return self._ask(put, lambda code: [code] * len(keys)) if keys else []

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Bytes read for each, or a code. A buffer may be larger than its object."""
        if not same_length(keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(keys)
        pieces = [[(address, size)] for address, size in zip(buffer_ptrs, sizes, strict=True)]
        return self._ask(
            lambda link: read_each(link, keys, pieces, lambda place, views: views[0]),
            lambda code: [code] * len(keys),
            masterless=True,
        )

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Bytes read for each, or a code. The buffers of a key together are as long as its object."""
        pairs = zip(all_buffer_ptrs, all_sizes, strict=False)
        if not same_length(keys, all_buffer_ptrs, all_sizes) or not all(same_length(*pair) for pair in pairs):
            return [INVALID_PARAMS] * len(keys)
        pieces = [list(zip(*pair, strict=True)) for pair in zip(all_buffer_ptrs, all_sizes, strict=True)]

        def read(link: MooncakeLink) -> list[int]:
            codes = read_each(link, keys, pieces, lambda place, views: views)
            # Mooncake fails a transfer into more room than the object has: what lies behind it would be stale.
            return [
                TRANSFER_FAIL if 0 < code < sum(size for _, size in each) else code
                for code, each in zip(codes, pieces, strict=True)
            ]

        return self._ask(read, lambda code: [code] * len(keys), masterless=True) if keys else []
