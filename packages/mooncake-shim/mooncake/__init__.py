"""Mooncake's package as far as engines import it, on holdfast. There is no transfer engine here."""

from mooncake.buffer_pool import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
