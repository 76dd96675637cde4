"""A client of one release at work: it puts, replaces, reads and removes keys of its own until its input is closed.

It imports holdfast and the standard library only, so that every release can run it. A line for each ten steps tells
that it goes on. At the end it reads all that it holds. The last line is its verdict, as JSON.
"""

from __future__ import annotations

import json
import random
import select
import sys
import traceback

import holdfast

MOST_KEYS = 60
BATCH = 8


class Work:
    """What it holds, and the operations that it makes one after the other."""

    def __init__(self, cache: holdfast.Cache, name: str) -> None:
        self.cache = cache
        self.name = name
        self.held: dict[str, bytes] = {}
        self.removed: list[str] = []
        self.count = 0
        self.chosen = random.Random(name)

    def content(self) -> bytes:
        return self.chosen.randbytes(self.chosen.choice((300, 5_000, 200_000)))

    def step(self) -> None:
        self.count += 1
        key = f"{self.name}/{self.count}"
        data = self.content()
        assert self.cache.put(key, data) is True, f"{key} is new, and was said to be there already"
        self.held[key] = data
        if self.count % 5 == 0:
            older, data = self.any_key(), self.content()
            assert self.cache.put(older, data, upsert=True) is True, older
            self.held[older] = data
        if self.count % 7 == 0:
            batch = {f"{key}/{number}": self.content() for number in range(BATCH)}
            assert self.cache.put_many(batch) == BATCH, "keys of a batch are new, and were said to be there already"
            self.held |= batch
        read = self.any_key()
        assert self.cache.get(read) == self.held[read], f"{read} has other bytes"
        while len(self.held) > MOST_KEYS:
            self.remove(self.any_key())

    def any_key(self) -> str:
        return self.chosen.choice(list(self.held))

    def remove(self, key: str) -> None:
        del self.held[key]
        assert self.cache.remove(key, force=True) == 1, f"{key} was there to be removed"
        self.removed.append(key)

    def verify(self) -> None:
        found = self.cache.get_many(list(self.held))
        lost = [key for key in self.held if key not in found]
        assert not lost, f"acknowledged and lost: {len(lost)} of {len(self.held)}, such as {lost[:3]}"
        wrong = [key for key, data in self.held.items() if found[key] != data]
        assert not wrong, f"other bytes than were put: {wrong[:3]}"
        gone = self.removed[-1_000:]
        back = [key for key, there in zip(gone, self.cache.exists_many(gone), strict=True) if there]
        assert not back, f"removed and back again: {back[:3]}"


def main(address: str, name: str, shared: str, token_file: str) -> dict[str, object]:
    shown = {"token_file": token_file} if token_file else {}
    with holdfast.connect(address, timeout=30, shared_memory=shared == "shared", **shown) as cache:
        work = Work(cache, name)
        try:
            while not select.select([sys.stdin], [], [], 0.02)[0]:
                work.step()
                if work.count % 10 == 1:
                    print(work.count, flush=True)
            work.verify()
        except Exception:  # noqa: BLE001 - Whatever it is, the test must hear of it.
            return {"error": traceback.format_exc(), "steps": work.count, "version": holdfast.__version__}
    return {"error": "", "steps": work.count, "removed": len(work.removed), "version": holdfast.__version__}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
