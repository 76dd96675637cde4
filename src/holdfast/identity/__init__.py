"""Who is connected, and what they may do: roles, identities, and the file that lists them (ADR 45)."""
