"""The destinations of `get_into` and `get_many_into`: one buffer of the caller, several in order, or byte ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, final

from holdfast.client.buffers import BytesLike
from holdfast.errors import BadValue, BufferTooSmall

Room: TypeAlias = list[tuple[int, memoryview]]
"""The destination of one object's bytes: (their start in the object, the memory that takes them)."""


class Part(NamedTuple):
    """The bytes of an object from `start` on, as many as fit into `buffer`."""

    start: int
    buffer: BytesLike


@final
class Scattered:
    """Several buffers for one object, filled one after the other or, with `starts`, each from that offset."""

    __slots__ = ("buffers", "size_bytes", "starts")

    def __init__(self, buffers: list[memoryview], starts: Sequence[int] | None = None) -> None:
        self.buffers = buffers
        self.starts = starts
        self.size_bytes = sum(buffer.nbytes for buffer in buffers)


CallersTarget: TypeAlias = memoryview | Scattered


def takes_whole(target: CallersTarget) -> bool:
    """Does the whole object go there, so that its checksum can be compared?"""
    return type(target) is memoryview or target.starts is None


def room_in(target: CallersTarget, key: str, size_bytes: int) -> Room:
    """The caller's memory for an object of this size; raises if it is too short."""
    if type(target) is memoryview:
        if size_bytes > target.nbytes:
            raise _too_small(key, size_bytes, target.nbytes)
        return [(0, target[:size_bytes])]
    if target.starts is None:
        return _one_after_the_other(target, key, size_bytes)
    room = [(start, buffer) for start, buffer in zip(target.starts, target.buffers, strict=True) if buffer.nbytes]
    for start, buffer in room:
        if start + buffer.nbytes > size_bytes:
            raise BadValue(
                f"{key!r} has {size_bytes:,} bytes; there are no bytes {start:,} to {start + buffer.nbytes:,} of it. "
                "Nothing was copied"
            )
    return room


def _one_after_the_other(target: Scattered, key: str, size_bytes: int) -> Room:
    if size_bytes > target.size_bytes:
        raise _too_small(key, size_bytes, target.size_bytes)
    room: Room = []
    start = 0
    for buffer in target.buffers:
        count = min(buffer.nbytes, size_bytes - start)
        if count:
            room.append((start, buffer[:count]))
        start += count
    return room


def _too_small(key: str, size_bytes: int, room_bytes: int) -> BufferTooSmall:
    return BufferTooSmall(f"{key!r} has {size_bytes:,} bytes, the buffer {room_bytes:,}; nothing was copied")


def bytes_in(room: Room) -> int:
    return sum(view.nbytes for _, view in room)


class CallersRoom:
    """A target of a read, which gives its room once the size of the object is known."""

    __slots__ = ("_key", "_target", "whole")

    def __init__(self, key: str, target: CallersTarget) -> None:
        self._key = key
        self._target = target
        self.whole = takes_whole(target)

    def __call__(self, size_bytes: int) -> Room:
        return room_in(self._target, self._key, size_bytes)

    def taken(self, size_bytes: int) -> int:
        """How many bytes of an object of this size are copied."""
        if type(self._target) is Scattered and self._target.starts is not None:
            return self._target.size_bytes
        return size_bytes
