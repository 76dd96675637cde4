"""`mooncake.buffer_pool` is holdfast's."""

from holdfast.compat.mooncake.store import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
