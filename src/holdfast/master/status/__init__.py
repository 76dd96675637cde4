"""A master's view of itself."""
