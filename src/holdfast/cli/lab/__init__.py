"""`holdfast lab`."""
