"""Keeps one peer from costing the others anything: connections, bytes and time of a master are shared (ADR 51)."""
