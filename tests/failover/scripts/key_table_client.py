"""A client of one release asks about a key that is there and one that is not. It prints the answers, and whether it
reads the master's key table, as JSON.

It imports holdfast and the standard library only, so that every release can run it.
"""

from __future__ import annotations

import json
import sys

import holdfast

if __name__ == "__main__":
    with holdfast.connect(sys.argv[1], timeout=30) as cache:
        cache.put("there", b"x")
        answers = [cache.exists("there"), cache.exists("not there"), *cache.exists_many(["not there", "there"])]
        table = cache._core.key_table
        print(json.dumps({"version": holdfast.__version__, "answers": answers, "shown": table is not None}))
