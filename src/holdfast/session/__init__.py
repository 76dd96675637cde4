"""Sessions between one master and many followers: leases, commands, and failovers that cost nobody the session."""
