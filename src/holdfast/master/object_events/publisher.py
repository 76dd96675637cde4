"""Object events on ZeroMQ: a PUB socket for new events, and a ROUTER socket for replays of missed ones.

A message has three frames: the topic, its number (8 bytes, big endian), and msgpack of [time, events, 0], each event a
map, in the format that the key-value events of inference engines have. A replay request holds the first number that
is wanted, in 8 bytes behind an empty frame; the messages come with their numbers, and the number -1 ends them. Both
are served by one thread, so that no subscriber can hold up the master: it encodes, sends and remembers. Its queue and
its memory are bounded (I17); subscribers see messages that did not fit as a gap in the numbers.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.addresses import join_address, split_address
from holdfast.errors import HoldfastError
from holdfast.ids import is_reserved
from holdfast.master.object_events.events import Told
from holdfast.settings import BadSetting
from holdfast.supervisor import Supervisor

MOST_WAITING = 100_000
MOST_REMEMBERED = 100_000
MOST_REMEMBERED_BYTES = 64 << 20
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
POLL_MS = 1_000
TASK = "object events"
COUNTED = {
    "messages": "Messages of object events published.",
    "events": "Object events published.",
    "dropped_messages": "Messages not published, because too many waited: a gap in the numbers.",
    "bad_replay_requests": "Requests for a replay that could not be understood.",
}
_encode = msgspec.msgpack.Encoder().encode


class CannotPublish(HoldfastError):
    """The sockets of object events cannot be opened; the master was not started."""


class EventPublisher(Collector):
    """Life: 1. `open` binds the sockets; 2. `publish`, from the master's loop; 3. `close`."""

    def __init__(self, cluster: str, topic: str, supervisor: Supervisor) -> None:
        try:
            import zmq
        except ImportError:
            raise BadSetting("object events need pyzmq: pip install 'holdfast[events]'. Nothing was started") from None
        self._zmq: Any = zmq
        self._context: Any = zmq.Context()
        self._publish: Any = None
        self._replay: Any = None
        self._cluster = cluster
        self._topic = topic.encode()
        self._supervisor = supervisor
        self._waiting: deque[Told] = deque()
        self._remembered: deque[tuple[int, bytes]] = deque()
        self._remembered_bytes = 0
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=TASK, daemon=True)
        self.address = ""
        self.replay_address = ""
        self.last = 0
        """Number of the last message."""
        self.counts: Counter[str] = Counter()
        """Counts of messages and events sent, and of messages dropped."""

    def open(self, listen: str, replay: str) -> None:
        """Bind both sockets (no replay without an address for it), and start the thread."""
        self._publish = self._context.socket(self._zmq.PUB)
        self._publish.setsockopt(self._zmq.SNDHWM, MOST_WAITING)
        self.address = self._bind(self._publish, listen)
        if replay:
            self._replay = self._context.socket(self._zmq.ROUTER)
            self.replay_address = self._bind(self._replay, replay)
        self._thread.start()

    def _bind(self, socket: Any, listen: str) -> str:
        host, port = split_address(listen)
        socket.setsockopt(self._zmq.LINGER, 0)
        socket.setsockopt(self._zmq.IPV6, int(":" in host))
        place = f"tcp://{join_address('*' if host in ('0.0.0.0', '::') else host, port or 0)}"
        try:
            socket.bind(place if port else place.removesuffix("0") + "*")
        except self._zmq.ZMQError as error:
            self.close()
            raise CannotPublish(f"object events cannot be served at {listen}: {error}") from None
        bound: str = socket.getsockopt_string(self._zmq.LAST_ENDPOINT)
        return bound.removeprefix("tcp://")

    def publish(self, told: Told) -> None:
        """Queue a message. Called from the master's loop; returns at once."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self.counts["dropped_messages"] += 1
        self._waiting.append(told)
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Send the waiting messages, and end. Closing twice is harmless."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        for socket in (self._publish, self._replay):
            if socket is not None:
                socket.close()
        self._context.term()
        os.close(self._wake)

    def collect(self) -> Iterator[Metric]:
        """Its metrics."""
        yield GaugeMetricFamily("holdfast_object_events_number", "Number of the last message of events.", self.last)
        for name, text in COUNTED.items():
            yield CounterMetricFamily(f"holdfast_object_event_{name}", text, self.counts[name])

    def _run(self) -> None:
        self._supervisor.keep_thread(TASK, self._serve, self._closing.wait)

    def _serve(self) -> None:
        poller = self._zmq.Poller()
        poller.register(self._wake, self._zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, self._zmq.POLLIN)
        while not self._closing.is_set() or self._waiting:
            ready = dict(poller.poll(POLL_MS))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            while self._waiting:
                self._send(self._waiting.popleft())
            if self._replay is not None and self._replay in ready:
                self._answer_replay()

    def _send(self, told: Told) -> None:
        now = time.time()
        events = [*self._events(told, now)]
        payload = _encode((now, events, 0))
        self._publish.send_multipart((self._topic, told.number.to_bytes(8, "big"), payload))
        if self._remembered and told.number <= self._remembered[-1][0]:  # Another history began.
            self._remembered.clear()
            self._remembered_bytes = 0
        self._remembered.append((told.number, payload))
        self._remembered_bytes += len(payload)
        while len(self._remembered) > MOST_REMEMBERED or self._remembered_bytes > MOST_REMEMBERED_BYTES:
            self._remembered_bytes -= len(self._remembered.popleft()[1])
        self.last = told.number
        self.counts["messages"] += 1
        self.counts["events"] += len(events)

    def _events(self, told: Told, now: float) -> Iterator[dict[str, Any]]:
        if told.cleared:
            yield self._event("cleared", told.number, now)
        for stored, keys in told.changes:
            kind = "stored" if stored else "removed"
            for key in keys:
                if is_reserved(key):
                    continue  # It is a tenant's, and everybody can hear this socket.
                yield {**self._event(kind, told.number, now), "object_key": key}

    def _event(self, kind: str, number: int, now: float) -> dict[str, Any]:
        return {
            "event_type": kind,
            "type": kind,
            "event_id": number,
            "timestamp": now,
            "tenant_id": "default",
            "backend_id": self._cluster,
            "medium": "cpu",
            "seq_hashes": [],
            "block_hashes": [],
        }

    def _answer_replay(self) -> None:
        """Answer one replay request. A malformed one gets no reply: the protocol has no way to say what is wrong."""
        frames = self._replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            self.counts["bad_replay_requests"] += 1
            return
        asker, first = frames[0], int.from_bytes(frames[2], "big")
        for number, payload in self._remembered:
            if number >= first:
                self._replay.send_multipart((asker, b"", number.to_bytes(8, "big"), payload))
        self._replay.send_multipart((asker, b"", END_OF_REPLAY, b""))
