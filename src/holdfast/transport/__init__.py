"""Moving bytes and messages between processes."""
