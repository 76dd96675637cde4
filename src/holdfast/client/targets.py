"""Where `get_into` reads to."""

from __future__ import annotations

from holdfast.errors import BufferTooSmall


class CallersBuffer:
    """The front of the caller's buffer."""

    __slots__ = ("_key", "_view")

    def __init__(self, key: str, view: memoryview) -> None:
        self._key = key
        self._view = view

    def __call__(self, size_bytes: int) -> memoryview:
        if size_bytes > self._view.nbytes:
            raise BufferTooSmall(
                f"{self._key!r} has {size_bytes:,} bytes, the buffer {self._view.nbytes:,}; nothing was copied"
            )
        return self._view[:size_bytes]
