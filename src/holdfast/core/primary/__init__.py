"""State of a primary alone, which is not in the log: free space, deadlines, sessions, claims, copies."""
