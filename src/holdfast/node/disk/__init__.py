"""A node's disk."""
