"""A set of the keys that are stored, kept by object events alone, as a router of requests keeps one.

    holdfast master ... --events 127.0.0.1:7090 --events-replay 127.0.0.1:7091     (each master with its own ports)
    python examples/object_events.py 127.0.0.1:7070 127.0.0.1:7090/127.0.0.1:7091 127.0.0.1:7092/127.0.0.1:7093

It listens to all masters, so that it misses nothing when one of them dies, and drops the messages that it has seen.
What it missed nevertheless, it asks for again; if nobody remembers that any more, it lists the keys anew.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
import zmq

import holdfast

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
REPLAY_MS = 5_000


class StoredKeys:
    """The keys by events. `publishers` and `replays` are the addresses of the masters' sockets."""

    def __init__(
        self, cache: holdfast.Cache, publishers: Sequence[str], replays: Sequence[str], topic: str = "holdfast"
    ) -> None:
        self._cache = cache
        self._replays = replays
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.setsockopt(zmq.SUBSCRIBE, topic.encode())
        # A master that was killed and started again is found again soon.
        self._events.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        for address in publishers:
            self._events.connect(f"tcp://{address}")
        self.keys: set[str] = set()
        self.last = -1
        """Number of the last message; -1: none was seen."""
        self.listings = 0
        """How often the keys had to be listed, because nobody could say what had changed."""

    def close(self) -> None:
        self._events.close(0)
        self._context.term()

    def poll(self, timeout_ms: int) -> bool:
        """Take the next message, if there is one within this time."""
        if not self._events.poll(timeout_ms):
            return False
        _, number, payload = self._events.recv_multipart()
        self._take(int.from_bytes(number, "big"), payload)
        return True

    def _take(self, number: int, payload: bytes) -> None:
        _, events, _ = msgspec.msgpack.decode(payload)
        begins = any(event["event_type"] == "cleared" for event in events)
        if number <= self.last and not begins:
            return  # Another master has told it already.
        if self.last >= 0 and number > self.last + 1 and not begins:
            self._catch_up(number)
        if self.last < 0:
            self._list()
        self._apply(number, events)

    def _apply(self, number: int, events: list[dict[str, str]]) -> None:
        for event in events:
            match event["event_type"]:
                case "stored":
                    self.keys.add(event["object_key"])
                case "removed":
                    self.keys.discard(event["object_key"])
                case "cleared":
                    self.keys.clear()
        self.last = number

    def _catch_up(self, through: int) -> None:
        """Have the messages from the last one on replayed by any master; list the keys if none remembers them."""
        for address in self._replays:
            for number, payload in self._replay(address, self.last + 1):
                if number == self.last + 1 and number < through:
                    self._apply(number, msgspec.msgpack.decode(payload)[1])
            if self.last + 1 == through:
                return
        self.last = -1

    def _replay(self, address: str, first: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        with self._context.socket(zmq.DEALER) as asker:
            asker.setsockopt(zmq.LINGER, 0)
            asker.connect(f"tcp://{address}")
            asker.send_multipart((b"", first.to_bytes(8, "big")))
            while asker.poll(REPLAY_MS):
                _, number, payload = asker.recv_multipart()
                if number == END_OF_REPLAY:
                    break
                found.append((int.from_bytes(number, "big"), payload))
        return found

    def _list(self) -> None:
        """A listing may hold changes that events tell of once more, which does no harm: each says how a key is now."""
        self.keys = set(self._cache.keys())
        self.listings += 1


def main() -> None:
    address, *masters = sys.argv[1:]
    pairs = [master.split("/") for master in masters]
    with holdfast.connect(address) as cache:
        stored = StoredKeys(cache, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        try:
            told = -1
            while True:
                # Each message comes from every master; only the first of them changes something.
                if stored.poll(1_000) and stored.last != told:
                    told = stored.last
                    sys.stdout.write(f"message {stored.last}: {len(stored.keys):,} keys\n")
        except KeyboardInterrupt:
            pass
        finally:
            stored.close()


if __name__ == "__main__":
    main()
