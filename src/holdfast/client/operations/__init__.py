"""The verbs of a client as generators of effects, which both shells run."""
