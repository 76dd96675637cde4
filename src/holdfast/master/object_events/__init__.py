"""Events of keys that were stored and removed, for subscribers."""
