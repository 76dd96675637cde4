"""A node's session with the primary."""
