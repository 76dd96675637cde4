"""`mooncake.mooncake_config` is holdfast's."""

from holdfast.compat.mooncake.configuration import MooncakeConfig

__all__ = ["MooncakeConfig"]
