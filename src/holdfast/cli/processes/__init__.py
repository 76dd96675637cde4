"""The processes of a cluster on this machine."""
