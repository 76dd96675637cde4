"""Buffers, addresses and values that callers hand in."""
