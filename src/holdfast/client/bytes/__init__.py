"""How a client reaches the bytes of nodes: mapped memory or TCP."""
