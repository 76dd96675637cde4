"""The objects and their keys, as columns."""
