"""The client's verbs as generators of effects, which both shells run."""
