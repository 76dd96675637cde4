"""Verbs that stay on the screen: `top`, `events`, and `status --watch`."""
