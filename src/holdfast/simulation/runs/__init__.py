"""Playing, repeating and shortening runs."""
