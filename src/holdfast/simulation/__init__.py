"""A deterministic world in which the production code of masters, nodes and clients runs under a virtual clock."""
