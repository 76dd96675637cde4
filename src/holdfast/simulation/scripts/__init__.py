"""Scripts: the operations and faults of a run, as data; and the record of what clients saw."""
