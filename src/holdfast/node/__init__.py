"""The node process, which lends memory and serves its bytes."""
