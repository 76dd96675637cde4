"""How long requests take at this master, by verb: from the bytes' arrival to the reply's departure.

Time that a reply waits for the log, and a put for room, is part of it; the way through the network is not. Keepalives
are left out: they are held on purpose. It costs a request one look at the clock and three additions (`python -m
benchmarks --only metrics`).
"""

from __future__ import annotations

from holdfast.instant import now_ns
from holdfast.messages.of_sessions import KeepAlive
from holdfast.messages.shapes import Message
from holdfast.operations.durations import Durations


class Latencies:
    def __init__(self) -> None:
        self.by_verb: dict[type[Message], Durations] = {}

    def answered(self, verb: type[Message], began_ns: int) -> None:
        """The reply to a request that arrived then has left."""
        took = now_ns() - began_ns
        try:
            self.by_verb[verb].add(took)
        except KeyError:
            if verb is not KeepAlive:
                self.by_verb[verb] = first = Durations()
                first.add(took)
