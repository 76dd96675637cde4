"""`mooncake.store` is holdfast's."""

from holdfast.compat.mooncake.store import *
