"""Verbs about the cluster."""
