"""How operations run: their effects, the two runners, the connection to the primary and the retries. One of each."""
