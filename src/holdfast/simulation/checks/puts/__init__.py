"""Checks of puts that were acknowledged."""
