"""What one client does next, drawn from its seed: puts, reads and removals of shared keys and of its own.

Shared keys are contended by all clients and are new ones every few seconds, so that the history of each stays short
enough to be searched. Own keys are never replaced and seldom removed: they are what must still be there at the end.
A size is used once per key and client, so that the log, which knows an object by key and size, tells them apart.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from holdfast.simulation.scripts.script import Verb

SHARED_KEYS = 8
FRESH_EVERY_S = 12
MOST_OWN = 4_000
LARGE_EVERY = 150
LARGE = 768 << 10
PINNED_EVERY = 40
"""Of own puts. Pins are never evicted: with every fifth, a run of minutes was full of them, and no 0.8 MB lay together
without one."""
SPREAD = 8
"""Sizes of different clients differ in their remainder by this, so there are at most so many clients."""
WEIGHTS: dict[Verb, int] = {
    "put": 34,
    "upsert": 9,
    "put_many": 3,
    "get": 28,
    "get_many": 5,
    "exists": 5,
    "view": 5,
    "remove": 3,
    "force_remove": 8,
}


@dataclass(frozen=True, slots=True)
class Step:
    verb: Verb
    number: int
    """Unique in the whole run; the value of a put is made of it."""
    keys: tuple[str, ...]
    size: int = 0
    replicas: int = 1
    pin: Literal["", "hard"] = ""


class Workload:
    def __init__(self, client: int, life: int, seed: int, copies: tuple[int, int]) -> None:
        """`life` counts how often this client was started: a number is never used twice. `copies`: the fewest and the
        most replicas that a put asks for."""
        assert client < SPREAD
        self._random = random.Random(f"{seed} {client} {life}")
        self._client = client
        self._prefix = f"own/{client}/{life}"
        self._first = (client << 48) | (life << 36)
        self._count = 0
        self._fewest, self._most = copies
        self._own: list[str] = []

    def next(self, now_s: float) -> Step:
        draw = self._random
        self._count += 1
        number = self._first + self._count
        verb = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        own = draw.random() < 0.5
        if verb == "upsert" or (verb == "put" and not own):
            return Step(verb, number, (self._shared(now_s),), self._size(), draw.randint(self._fewest, self._most))
        if verb == "put":
            return self._put_own(number)
        if verb == "put_many":
            keys = tuple(f"{self._prefix}/{self._count}/{i}" for i in range(draw.randint(2, 6)))
            self._remember(*keys)
            return Step(verb, number, keys, self._size(), self._fewest)
        if verb == "force_remove" and own and self._own and self._count % 4 == 0:
            return Step(verb, number, (self._own.pop(draw.randrange(len(self._own))),))
        if verb in ("remove", "force_remove"):
            return Step(verb, number, (self._shared(now_s),))
        if verb == "get_many":
            return Step(verb, number, tuple({self._any(now_s, own) for _ in range(4)}))
        return Step(verb, number, (self._any(now_s, own),))

    def _put_own(self, number: int) -> Step:
        key = f"{self._prefix}/{self._count}"
        self._remember(key)
        size = self._size() + (LARGE if self._count % LARGE_EVERY == 0 else 0)
        pinned = self._count % PINNED_EVERY == 0
        return Step("put", number, (key,), size, self._most if pinned else self._fewest, "hard" if pinned else "")

    def _remember(self, *keys: str) -> None:
        self._own += keys
        del self._own[:-MOST_OWN]

    def _size(self) -> int:
        return 64 + self._client + SPREAD * (self._count % 4096)

    def _shared(self, now_s: float) -> str:
        return f"shared/{int(now_s) // FRESH_EVERY_S}/{self._random.randrange(SHARED_KEYS)}"

    def _any(self, now_s: float, own: bool) -> str:
        return self._random.choice(self._own) if own and self._own else self._shared(now_s)
