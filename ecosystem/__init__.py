"""holdfast under the real engines: upstream packages, unmodified, against real clusters."""
