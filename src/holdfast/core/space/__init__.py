"""Free memory of a segment."""
