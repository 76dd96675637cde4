"""The simulated cluster."""
