"""Real processes in network namespaces under faults drawn from a seed, and a verdict on all that clients saw."""
