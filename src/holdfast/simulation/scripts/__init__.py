"""Scripts: what clients and faults do in a run, as data; and what was seen of it."""
