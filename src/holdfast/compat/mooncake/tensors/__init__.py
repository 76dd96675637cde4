"""The tensor family of `mooncake.store`."""
