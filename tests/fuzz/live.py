"""A real master and a real node under altered bytes, at every port that they listen at.

The stranger has an identity of its own: a writer of a tenant of its own, so that whatever it may do lawfully touches
nobody else. A good client of the default tenant puts and gets all the while, and must be served. At the end both
processes live, their memory is bounded, and their logs tell of nothing unexpected.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.processes import Cluster, memory_of
from holdfast.errors import HoldfastError
from holdfast.messages.requests import Hello, ListSegments, SegmentList
from holdfast.messages.shapes import SegmentPlace
from holdfast.wire import codec
from holdfast.wire.codec import HEAD, HEAD_BYTES, PREAMBLE, frame
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import examples

MOST_GROWTH = 128 << 20
ANSWER_S = 0.02
"""How long an answer is read for. The next bytes are sent whether it came or not."""
UNEXPECTED = re.compile(r"unexpectedly|Traceback|never retrieved|Unhandled", re.IGNORECASE)
TOKENS = {"node": "of-the-node", "good": "of-the-good-client", "stranger": "of-the-stranger"}
ROLES = {"node": '"node"', "good": '"writer", "operator"', "stranger": '"writer"'}


class LiveCluster(Cluster):
    """One master with identities, one node, and a good client."""

    def __enter__(self) -> LiveCluster:
        super().__enter__()
        token = Path(self.folder) / "node.token"
        token.touch(mode=0o600)
        token.write_text(TOKENS["node"])
        self.add_node("node-1", "--token-file", str(token))
        self.good = self.connect(token=TOKENS["good"], timeout=60)
        (self.place,) = self._places()
        self.served = 0
        self._read: dict[Path, int] = {}
        self.serve()
        self.first_rss = [memory_of(pid) for pid in self.pids]
        return self

    def __exit__(self, *error: object) -> None:
        if hasattr(self, "good"):
            self.good.close()
        super().__exit__(*error)

    def serve(self) -> None:
        """The good client is served."""
        key, value = f"good/{self.served % 50}", os.urandom(1_000)
        self.good.put(key, value, upsert=True)
        assert self.good.get(key) == value, "the good client read something else"
        self.served += 1

    def _places(self) -> list[SegmentPlace]:
        """Where the node listens, as the master tells clients."""
        greeting = frame(1, 1_000, codec.encode(Hello(0x600D, token=TOKENS["good"], client_key=b"good" * 4)))
        with tcp(self.address) as connection:
            connection.sendall(PREAMBLE + greeting + frame(2, 1_000, codec.encode(ListSegments())))
            for _ in range(2):
                length, _, _ = HEAD.unpack(connection.recv(HEAD_BYTES, socket.MSG_WAITALL))
                reply = codec.decode_reply(connection.recv(length, socket.MSG_WAITALL))
        return codec.expect(reply, SegmentList).segments

    def memory(self) -> list[tuple[int, int]]:
        """Of master and node: bytes now, and at the beginning."""
        return [(memory_of(pid), first) for pid, first in zip(self.pids, self.first_rss, strict=True)]

    def check(self) -> None:
        """Both live, in bounded memory, and nothing unexpected is in their logs."""
        for process in self._started:
            assert process.poll() is None, f"process {process.pid} ended with {process.returncode}"
        self.serve()
        grown = [now - first for now, first in self.memory()]
        assert max(grown) < MOST_GROWTH, f"memory grew by {max(grown) >> 20} MiB"
        for log in Path(self.folder).glob("*.log"):
            # What one port was found guilty of is not held against the next.
            text = log.read_text(errors="replace")
            new, self._read[log] = text[self._read.get(log, 0) :], len(text)
            found = UNEXPECTED.search(new)
            assert found is None, f"the log says {found and found[0]!r}:\n{new[-4_000:]}"

    @property
    def stranger_is_known(self) -> bytes:
        return PREAMBLE + frame(1, 1_000, codec.encode(Hello(0xBAD, token=TOKENS["stranger"], client_key=b"evil" * 4)))


@contextlib.contextmanager
def live_cluster(folder: Path) -> Iterator[LiveCluster]:
    identities = folder / "identities.toml"
    identities.touch(mode=0o600)
    tenants = {"stranger": 'tenant = "strangers"\n'}
    identities.write_text(
        "\n".join(
            f'[[identity]]\nname = "{name}"\nroles = [{ROLES[name]}]\n{tenants.get(name, "")}'
            f'tokens = ["sha256:{hashlib.sha256(token.encode()).hexdigest()}"]\n'
            for name, token in TOKENS.items()
        )
    )
    with LiveCluster("32MiB", nodes=0, identities=identities) as cluster:
        yield cluster


# Ports, and the good bytes that each is sent altered.


def tcp(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def say(connection: socket.socket, data: bytes) -> None:
    """Send, take what comes for a moment, and hang up."""
    with connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.settimeout(ANSWER_S)
        while connection.recv(65_536):
            pass


def greetings(cluster: LiveCluster) -> list[bytes]:
    return [cluster.stranger_is_known, *(PREAMBLE + frame(1, 1_000, one) for one in examples(codec.REQUESTS))]


def requests_after(cluster: LiveCluster) -> list[bytes]:
    return examples(codec.REQUESTS)


def data_requests(cluster: LiveCluster) -> list[bytes]:
    return examples(codec.DATA_REQUESTS)


def http_requests(cluster: LiveCluster) -> list[bytes]:
    authority = b"Host: 127.0.0.1\r\nAuthorization: Bearer " + TOKENS["stranger"].encode()
    paths = [
        b"/healthz",
        b"/readyz",
        b"/metrics",
        b"/api/v1/status",
        b"/api/v1/objects?key=a&limit=2",
        b"/api/v1/nodes",
    ]
    found = [b"GET " + path + b" HTTP/1.1\r\n" + authority + b"\r\n\r\n" for path in paths]
    body = b'{"pattern": "x"}'
    length = b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    found.append(b"POST /api/v1/settings HTTP/1.1\r\n" + authority + length + body)
    return [*found, b"".join(found)]


def framed(mutator: Mutator, good: bytes) -> bytes:
    """A good head around an altered message, and now and then an altered head."""
    whole = frame(mutator.random.randrange(1 << 16), 50, mutator.altered(good)[: 64 << 10])
    return whole if mutator.random.random() < 0.95 else mutator.altered(whole)


def several_framed(mutator: Mutator, good: bytes) -> bytes:
    return b"".join(framed(mutator, good) for _ in range(mutator.random.choice((1, 5, 20))))


def to_master(cluster: LiveCluster, data: bytes) -> None:
    say(tcp(cluster.address), data)


def to_master_after_greeting(cluster: LiveCluster, data: bytes) -> None:
    say(tcp(cluster.address), cluster.stranger_is_known + data)


def to_node(cluster: LiveCluster, data: bytes) -> None:
    say(tcp(cluster.place.data_address), PREAMBLE + data)


def to_attach_socket(cluster: LiveCluster, data: bytes) -> None:
    path = cluster.place.socket_path
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(path)
    say(connection, PREAMBLE + data)


def to_http(cluster: LiveCluster, data: bytes) -> None:
    say(tcp(cluster.masters["master-0"][1]["http"]), data)


PORTS: dict[
    str,
    tuple[
        Callable[[LiveCluster], list[bytes]],
        Callable[[Mutator, bytes], bytes],
        Callable[[LiveCluster, bytes], None],
    ],
] = {
    "rpc-before-greeting": (greetings, Mutator.altered, to_master),
    "rpc-after-greeting": (requests_after, several_framed, to_master_after_greeting),
    "data-port": (data_requests, several_framed, to_node),
    "attach-socket": (data_requests, several_framed, to_attach_socket),
    "http-bytes": (http_requests, Mutator.altered, to_http),
}
CHECK_EVERY_S = 1.0


def fuzz_port(cluster: LiveCluster, name: str, mutator: Mutator, seconds: float, most: int) -> int:
    """How many inputs were sent. Raises `PortFailed` with the inputs since the last check that went well."""
    seeds, alter, send = PORTS[name]
    good = seeds(cluster)
    until, sent, since, checked = time.monotonic() + seconds, 0, [], time.monotonic()
    while sent < most and time.monotonic() < until:
        data = alter(mutator, mutator.random.choice(good))
        since.append(data)
        try:
            send(cluster, data)
            if time.monotonic() - checked > CHECK_EVERY_S:
                cluster.check()
                since, checked = [], time.monotonic()
        except (AssertionError, OSError, HoldfastError) as error:
            raise PortFailed(name, since, error) from error
        sent += 1
    try:
        cluster.check()
    except (AssertionError, OSError, HoldfastError) as error:
        raise PortFailed(name, since, error) from error
    return sent


class PortFailed(Exception):
    def __init__(self, port: str, inputs: list[bytes], error: Exception) -> None:
        super().__init__(f"{port}: {error}")
        self.inputs = inputs
