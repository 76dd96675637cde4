"""A client that reads the same keys over and over, checks every byte, and counts; a line ends it."""

from __future__ import annotations

import sys
import threading

import holdfast

keys = sys.argv[2:]
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
rounds = 0
with holdfast.connect(sys.argv[1]) as cache:
    while not ended.is_set():
        for key in keys:
            data = cache.get(key)
            assert data == key.encode() * (len(data) // len(key)), f"wrong bytes in {key}"
        assert len(cache.get_many(keys)) == len(keys)
        rounds += 1
        if rounds == 1:
            print("reading", flush=True)
print("rounds", rounds, flush=True)
