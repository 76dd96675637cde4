"""The process that lends memory and serves its bytes."""
