"""Which keys were stored and removed, for subscribers."""
