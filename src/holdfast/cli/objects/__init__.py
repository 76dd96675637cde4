"""Verbs about objects."""
