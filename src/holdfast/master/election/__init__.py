"""How a standby becomes the primary, and how the end of the last one is known."""
