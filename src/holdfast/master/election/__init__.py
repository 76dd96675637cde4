"""How a standby becomes the primary, and how it knows that the last one has ended."""
