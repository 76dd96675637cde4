"""Histories that a master knows, and its snapshots."""
