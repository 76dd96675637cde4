"""The verbs about objects: put, read, remove; and eviction, which makes room for them."""
