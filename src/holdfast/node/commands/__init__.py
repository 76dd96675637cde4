"""The work that a primary orders a node to do."""
