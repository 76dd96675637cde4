"""Objects read and written piece by piece: byte ranges, and sessions that hold an object between the pieces.

A get session leases its keys, so that every piece is of the same object. A put session reserves memory, is filled in
any order, and makes the object visible at its end or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from holdfast.client.cache import Reservation
from holdfast.client.targets import Part
from holdfast.compat.mooncake.codes import (
    INVALID_PARAMS,
    OBJECT_ALREADY_EXISTS,
    OBJECT_NOT_FOUND,
    OK,
    code_of,
)
from holdfast.compat.mooncake.link import MooncakeLink
from holdfast.compat.mooncake.linked import Linked, same_length
from holdfast.compat.mooncake.memory.pointers import read_each, sources
from holdfast.compat.mooncake.memory.values import DEFAULT_CONFIG, checked_config
from holdfast.compat.mooncake.structures import ReplicateConfig
from holdfast.errors import HoldfastError
from holdfast.integrations.link import answered

log = logging.getLogger("holdfast.mooncake")


class Sessions(Linked):
    """The methods of ranges and sessions."""

    def __init__(self) -> None:
        super().__init__()
        self._reading: dict[str, tuple[int, int]] = {}
        """Keys under a get session: how often, and the object's size."""
        self._writing: dict[str, Reservation] = {}

    def close(self) -> int:
        with self._changing:
            left, self._writing = list(self._writing.values()), {}
            self._reading = {}
            self._abandon(left)
            return super().close()

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        def start(link: MooncakeLink) -> list[int]:
            stored = link.names.stored_each(keys)
            sizes = dict.fromkeys(stored, 0)
            wanted = [each for each in stored if each is not None]
            sizes.update(zip(wanted, link.cache.lease_many(wanted), strict=True))
            codes = []
            with self._changing:
                for key, each in zip(keys, stored, strict=True):
                    size = sizes[each]
                    if size > 0:
                        self._reading[key] = (self._reading.get(key, (0, 0))[0] + 1, size)
                    codes.append(OK if size > 0 else OBJECT_NOT_FOUND)
            return codes

        return self._ask(start, lambda code: [code] * len(keys)) if keys else []

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        def end(link: MooncakeLink) -> int:
            ended = []
            with self._changing:
                for key in keys:
                    count, size = self._reading.get(key, (0, 0))
                    if count > 1:
                        self._reading[key] = (count - 1, size)
                    if count:
                        ended.append(link.names.stored(key))
                    if count == 1:
                        del self._reading[key]
            link.cache.release_many([each for each in ended if each is not None])
            return OK

        return self._ask(end, lambda code: code, masterless=True)

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Bytes read for each key, which must be under a get session, or a code."""
        if not same_length(keys, all_buffer_ptrs, all_sizes, all_src_offsets):
            return [INVALID_PARAMS] * len(keys)
        rows = list(zip(keys, all_buffer_ptrs, all_sizes, all_src_offsets, strict=True))
        codes = [INVALID_PARAMS] * len(keys)
        good = [
            place
            for place, (key, addresses, sizes, starts) in enumerate(rows)
            if same_length(addresses, sizes, starts) and self._within(key, sizes, starts)
        ]

        def read(link: MooncakeLink) -> list[int]:
            pieces = [list(zip(rows[place][1], rows[place][2], strict=True)) for place in good]
            read = read_each(
                link,
                [keys[place] for place in good],
                pieces,
                lambda index, views: [
                    Part(start, view) for start, view in zip(rows[good[index]][3], views, strict=True)
                ],
            )
            for place, code in zip(good, read, strict=True):
                codes[place] = code
            return codes

        return self._ask(read, lambda code: [code] * len(keys), masterless=True) if good else codes

    def _within(self, key: str, sizes: Sequence[int], starts: Sequence[int]) -> bool:
        """Is the key under a session, and does each range lie within its object?"""
        _, length = self._reading.get(key, (0, 0))
        return bool(length and sizes) and all(
            start >= 0 and size > 0 and start + size <= length for start, size in zip(starts, sizes, strict=True)
        )

    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig = DEFAULT_CONFIG
    ) -> list[int]:
        checked_config(config)
        if not same_length(keys, sizes):
            return [INVALID_PARAMS] * len(keys)

        def start(link: MooncakeLink) -> list[int]:
            options = link.put_options(config, upsert=False)
            codes = [INVALID_PARAMS] * len(keys)
            if options is None:
                return codes
            wanted: dict[str, int] = {}
            places: list[int] = []
            for place, (each, size) in enumerate(zip(link.names.stored_each(keys), sizes, strict=True)):
                if each is not None and size > 0 and each not in wanted and keys[place] not in self._writing:
                    wanted[each] = size
                    places.append(place)
            reserved = link.puts.reserve_many(wanted, **options) if wanted else []
            for place, got in zip(places, reserved, strict=True):
                codes[place] = self._began(link, keys[place], got)
            return codes

        return self._ask(start, lambda code: [code] * len(keys)) if keys else []

    def _began(self, link: MooncakeLink, key: str, got: Reservation | HoldfastError | None) -> int:
        if got is None:
            return OBJECT_ALREADY_EXISTS
        if isinstance(got, HoldfastError):
            return code_of(got)
        with self._changing:
            if self._writing.setdefault(key, got) is got:
                return OK
        # Another thread began a session of the same key meanwhile.
        link.puts.abandon_many([got])
        return INVALID_PARAMS

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Bytes written for each key, which must be under a put session, or a code."""
        if not same_length(keys, all_buffer_ptrs, all_sizes, all_dst_offsets):
            return [INVALID_PARAMS] * len(keys)

        def write(link: MooncakeLink) -> list[int]:
            rows = zip(keys, all_buffer_ptrs, all_sizes, all_dst_offsets, strict=True)
            return [self._write(link, *row) for row in rows]

        return self._ask(write, lambda code: [code] * len(keys), masterless=True) if keys else []

    def _write(
        self, link: MooncakeLink, key: str, addresses: Sequence[int], sizes: Sequence[int], starts: Sequence[int]
    ) -> int:
        reservation = self._writing.get(key)
        if reservation is None or not same_length(addresses, sizes, starts):
            return INVALID_PARAMS
        if any(s < 0 or n <= 0 or s + n > reservation.size for s, n in zip(starts, sizes, strict=True)):
            return INVALID_PARAMS
        views: Any = sources(link, list(zip(addresses, sizes, strict=True)))
        if isinstance(views, HoldfastError):
            return code_of(views)
        try:
            for start, view in zip(starts, views or (), strict=True):
                reservation.write(start, view)
        except HoldfastError as error:
            log.warning("a put session of %r failed: %s", key, error)
            return code_of(error)
        return sum(sizes)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        open_now = self._taken(keys)
        ended = [reservation for _, reservation in open_now]

        def end(link: MooncakeLink) -> list[int]:
            codes = [INVALID_PARAMS] * len(keys)
            for (place, _), outcome in zip(open_now, answered(link.puts.commit_many(ended)), strict=True):
                # Another put of the key that came first counts, as for every put.
                codes[place] = code_of(outcome) if isinstance(outcome, HoldfastError) else OK
            return codes

        def failed(code: int) -> list[int]:
            # The sessions are over, also where no master could be asked.
            self._abandon(ended)
            return [code] * len(keys)

        return self._ask(end, failed) if keys else []

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        def revoke(link: MooncakeLink) -> list[int]:
            codes = [INVALID_PARAMS] * len(keys)
            open_now = self._taken(keys)
            link.puts.abandon_many([reservation for _, reservation in open_now])
            for place, _ in open_now:
                codes[place] = OK
            return codes

        return self._ask(revoke, lambda code: [code] * len(keys), masterless=True) if keys else []

    def _abandon(self, reservations: list[Reservation]) -> None:
        if reservations:
            self._ask(lambda link: link.puts.abandon_many(reservations), lambda code: None, masterless=True)

    def _taken(self, keys: Sequence[str]) -> list[tuple[int, Reservation]]:
        """The put sessions of these keys, which are over now."""
        with self._changing:
            found = [(place, self._writing.pop(key, None)) for place, key in enumerate(keys)]
        return [(place, reservation) for place, reservation in found if reservation is not None]

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]:
        """By buffer, by key, by range: bytes read, or a code."""
        if not same_length(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes):
            return [[[INVALID_PARAMS]] for _ in buffer_ptrs]
        reads = _Ranges()
        for rows in zip(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes, strict=True):
            reads.add_buffer(*rows)
        return self._ask(reads.read, reads.failed) if buffer_ptrs else []


class _Ranges:
    """The ranges of one `get_into_ranges`, flattened to one read of the client for each key and buffer."""

    def __init__(self) -> None:
        self.results: list[list[list[int]]] = []
        self._reads: list[tuple[list[int], str, int, list[tuple[int, int, int]]]] = []
        """Where the answers go, the key, the buffer's address, and (destination, source, size) of each range."""

    def add_buffer(self, address: int, keys: Any, destinations: Any, starts: Any, sizes: Any) -> None:
        by_key: list[list[int]] = []
        self.results.append(by_key)
        if not same_length(keys, destinations, starts, sizes):
            by_key.extend([INVALID_PARAMS] for _ in keys)
            return
        for key, to, source, lengths in zip(keys, destinations, starts, sizes, strict=True):
            if not same_length(to, source, lengths):
                by_key.append([INVALID_PARAMS] * max(1, len(lengths)))
                continue
            answers = [INVALID_PARAMS] * len(lengths)
            by_key.append(answers)
            if lengths:
                self._reads.append((answers, key, address, list(zip(to, source, lengths, strict=True))))

    def failed(self, code: int) -> list[list[list[int]]]:
        for answers, _, _, _ in self._reads:
            answers[:] = [code] * len(answers)
        return self.results

    def read(self, link: MooncakeLink) -> list[list[list[int]]]:
        stored = [link.names.stored(key) for _, key, _, _ in self._reads]
        wanted = [each for each in stored if each is not None]
        lengths = dict(zip(wanted, link.cache.lease_many(wanted), strict=True))
        try:
            asked = []
            for (answers, key, address, ranges), each in zip(self._reads, stored, strict=True):
                length = lengths[each] if each is not None else 0
                if length == 0:
                    answers[:] = [OBJECT_NOT_FOUND] * len(answers)
                elif self._fits(link, address, length, ranges):
                    asked.append((answers, key, address, ranges))
            codes = read_each(
                link,
                [key for _, key, _, _ in asked],
                [[(address + to, size) for to, _, size in ranges] for _, _, address, ranges in asked],
                lambda index, views: [
                    Part(source, view) for (_, source, _), view in zip(asked[index][3], views, strict=True)
                ],
            )
        finally:
            link.cache.release_many(wanted)
        for (answers, _, _, ranges), code in zip(asked, codes, strict=True):
            answers[:] = [size if code > 0 else code for _, _, size in ranges]
        return self.results

    @staticmethod
    def _fits(link: MooncakeLink, address: int, length: int, ranges: list[tuple[int, int, int]]) -> bool:
        """Do all ranges lie within the object, and within the buffer where it is registered?"""
        room = link.memory.room_at(address)
        return all(
            source >= 0 and to >= 0 and size > 0 and source + size <= length and (room is None or to + size <= room)
            for to, source, size in ranges
        )
