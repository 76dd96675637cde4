"""Virtual time, processes and the network."""
