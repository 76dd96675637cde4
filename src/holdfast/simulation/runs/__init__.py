"""Play, repeat and shorten runs."""
