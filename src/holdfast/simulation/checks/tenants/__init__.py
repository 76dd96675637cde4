"""Checks of I20: a tenant names, lists, reads, evicts and counts only its own, and quotas hold."""
