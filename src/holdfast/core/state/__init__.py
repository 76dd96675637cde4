"""Everything that the log determines, and the one function that changes it."""
