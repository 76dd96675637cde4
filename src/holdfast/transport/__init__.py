"""Moves bytes and messages between processes."""
