"""Suites of this engine."""
