"""What a connection may send: roles by message, nodes by their sessions, and identities that are withdrawn (ADR 45)."""
