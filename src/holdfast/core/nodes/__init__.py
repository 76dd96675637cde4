"""Nodes: their sessions, what operators do with them, and what they testify."""
