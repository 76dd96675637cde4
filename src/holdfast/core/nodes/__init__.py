"""Nodes: their sessions, the operators' verbs about them, and their testimony."""
