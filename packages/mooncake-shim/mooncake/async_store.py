"""`mooncake.async_store` is holdfast's."""

from holdfast.compat.mooncake.async_store import MooncakeDistributedStoreAsync

__all__ = ["MooncakeDistributedStoreAsync"]
