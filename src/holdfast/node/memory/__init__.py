"""The memory that a node lends, and the servers that hand it out."""
