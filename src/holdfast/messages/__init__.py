"""Typed messages and records: the protocol's documentation is their docstrings. Nothing else lives here."""
