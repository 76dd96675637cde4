"""Good clients beside floods: their p99, the primary's memory, and whether the same master still leads.

Each flood is played by one other process against a real primary with a standby and a log, on loopback, while good
clients, a process each, look up, read and write single keys. Before and after every flood the same is measured without
it. All floods are bounded in connections, bytes and time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import holdfast
from benchmarks.baselines import ANSWER_WITHIN_S, spawned, workers
from benchmarks.measure import Row, Scale, most_row
from benchmarks.processes import Cluster, memory_of
from holdfast.addresses import split_address
from holdfast.ids import MAX_KEYS
from holdfast.messages.requests import (
    Exists,
    Explain,
    GetStatus,
    Hello,
    ListKeys,
    Locate,
    Remove,
    RemoveMatching,
    Stat,
)
from holdfast.messages.shapes import Message
from holdfast.wire.codec import HEAD, MAX_FRAME_BYTES, PREAMBLE, encode, frame

Flood: TypeAlias = Callable[["Attacker"], None]
GOOD_CLIENTS = 2
P99_RATIO = 2.0
GROWTH_MIB = 64.0
FLOOD_CLIENT = 1 << 40


class Attacker:
    """What one flood holds: its connections, and when it must end."""

    def __init__(self, address: str, http: str, seconds: float, share: float) -> None:
        self._target, self._http = split_address(address.split(",", maxsplit=1)[0]), split_address(http)
        assert self._target[0] == self._http[0] == "127.0.0.1", "floods are for loopback only"
        self.share = share
        self.ends = time.monotonic() + seconds
        self.open: list[socket.socket] = []

    def count(self, full: int) -> int:
        return max(1, int(full * self.share))

    def connect(self, greets: bool = True) -> socket.socket:
        stream = socket.create_connection(self._target, timeout=10)
        self.open.append(stream)
        if greets:
            stream.sendall(PREAMBLE + frame(0, 0, encode(Hello(FLOOD_CLIENT + len(self.open)))))
            stream.recv(4096)
        return stream

    def dial_http(self) -> socket.socket:
        """A connection to the HTTP port, or one in the making."""
        stream = socket.socket()
        stream.setblocking(False)
        stream.connect_ex(self._http)
        self.open.append(stream)
        return stream

    def rounds(self, most: int = 1_000) -> Iterator[int]:
        """Until the time is over."""
        for number in range(most):
            if time.monotonic() >= self.ends:
                return
            yield number

    def rest(self) -> None:
        time.sleep(max(0.0, self.ends - time.monotonic()))

    def close(self) -> None:
        for stream in self.open:
            stream.close()
        self.open.clear()


def half_open(attacker: Attacker) -> None:
    """1,000 connections that say nothing; those that the master closes are opened again, once a second."""
    for _ in attacker.rounds(60):
        while len(attacker.open) < attacker.count(1_000):
            attacker.connect(greets=False)
        time.sleep(1.0)
        attacker.close()


def partial_frames(attacker: Attacker) -> None:
    """100 frames of 8 MiB each are announced, and half of each is sent as far as the master takes it."""
    head = HEAD.pack(MAX_FRAME_BYTES, 1, 0)
    for _ in range(attacker.count(100)):
        stream = attacker.connect()
        stream.setblocking(False)
        stream.send(head)
    piece = bytes(64 << 10)
    sent = dict.fromkeys(attacker.open, 0)
    for _ in attacker.rounds(100_000):
        for stream in list(sent):
            if sent[stream] < MAX_FRAME_BYTES // 2:
                try:
                    sent[stream] += stream.send(piece)
                except BlockingIOError:
                    continue
                except OSError:
                    del sent[stream]
        time.sleep(0.01)


def idle(attacker: Attacker) -> None:
    """5,000 connections that greet and do nothing."""
    for _ in range(attacker.count(5_000)):
        attacker.connect()
    attacker.rest()


def _burst(attacker: Attacker, requests: list[Message]) -> None:
    """The same burst again and again, in one write each; all replies are read."""
    stream = attacker.connect()
    stream.settimeout(0.5)
    data = b"".join(frame(number, 30_000, encode(request)) for number, request in enumerate(requests, 1))
    for _ in attacker.rounds():
        left = memoryview(data)
        while left and time.monotonic() < attacker.ends:
            with contextlib.suppress(TimeoutError, BlockingIOError):
                left = left[stream.send(left) :]
            _drain(stream)
        _drain(stream)


def _drain(stream: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError, TimeoutError):
        while stream.recv(1 << 20, socket.MSG_DONTWAIT):
            pass


def removals(attacker: Attacker) -> None:
    """2,621 removals by a pattern that matches nothing, in one burst."""
    _burst(attacker, [RemoveMatching("none$", number) for number in range(attacker.count(2_621))])


def listings(attacker: Attacker) -> None:
    """4,096 listings in one burst."""
    _burst(attacker, [ListKeys()] * attacker.count(4_096))


def batches(attacker: Attacker) -> None:
    """The largest requests there may be, one after the other: each verb that takes many keys."""
    keys = [f"filled/{number:041}" for number in range(attacker.count(MAX_KEYS))]
    _burst(attacker, [Stat(keys), Explain(keys), Locate(keys, tickets=True), Exists(keys, touch=True), Remove(keys, 1)])


def never_reads(attacker: Attacker) -> None:
    """One connection that asks and never reads an answer."""
    stream = attacker.connect()
    stream.settimeout(0.5)
    data = b"".join(
        frame(number, 30_000, encode(request))
        for number, request in enumerate([ListKeys(), Locate(["none"]), GetStatus()] * 100)
    )
    for _ in attacker.rounds():
        try:
            stream.sendall(data)
        except TimeoutError:
            continue
        except OSError:
            break
    attacker.rest()


def slow_http(attacker: Attacker) -> None:
    """1,000 connections to the HTTP port, over which headers come byte by byte; those that the master closes are opened
    again."""
    for _ in attacker.rounds():
        while len(attacker.open) < attacker.count(1_000):
            attacker.dial_http()
        for stream in list(attacker.open):
            try:
                stream.send(b"G")
            except BlockingIOError:
                continue
            except OSError:
                stream.close()
                attacker.open.remove(stream)
        time.sleep(0.05)


FLOODS: dict[str, Flood] = {
    "1,000 half-open connections": half_open,
    "100 partial frames of 8 MiB": partial_frames,
    "5,000 idle connections": idle,
    "bursts of 2,621 RemoveMatching": removals,
    "bursts of 4,096 ListKeys": listings,
    "requests for 8,192 keys": batches,
    "a client that never reads": never_reads,
    "1,000 slow HTTP connections": slow_http,
}


def run(scale: Scale) -> list[Row]:
    """Good clients beside each flood, and beside none."""
    rows: list[Row] = []
    seconds = 1.5 if scale.quick else 6.0
    with Cluster("1GiB", masters=2, coordination="sqlite") as cluster:
        _fill(cluster, scale.of(200_000, 5_000))
        epoch = _epoch(cluster)
        with _good_clients(cluster.address) as good:
            _times(good, 1.0)
            for name, flood in FLOODS.items():
                rows += _beside(cluster, good, name, flood, seconds, 0.05 if scale.quick else 1.0)
        rows.append(most_row("failovers in all of it", _epoch(cluster) - epoch, "", 0))
    return rows


def _epoch(cluster: Cluster) -> int:
    """The epoch of the master that is flooded, which leads."""
    http = cluster.masters["master-0"][1]["http"]
    with urllib.request.urlopen(f"http://{http}/api/v1/status", timeout=60) as answer:
        status = json.load(answer)
    assert status["role"] == "primary", "the flooded master leads"
    return int(status["epoch"])


def _fill(cluster: Cluster, count: int) -> None:
    with cluster.connect() as cache:
        for start in range(0, count, 4_096):
            cache.put_many({f"filled/{number:041}": b"x" for number in range(start, min(count, start + 4_096))})


def _beside(
    cluster: Cluster, good: list[Connection], name: str, flood: Flood, seconds: float, share: float
) -> list[Row]:
    master = cluster.master.pid
    before = _p99_us(_times(good, seconds / 2))
    rss = memory_of(master)
    Path(f"/proc/{master}/clear_refs").write_text("5")  # The peak begins again.
    http = cluster.masters["master-0"][1]["http"]
    attack = spawned.Process(target=_play, args=(flood, cluster.address, http, seconds + 2.0, share), daemon=True)
    attack.start()
    time.sleep(1.5)
    during = _times(good, seconds)
    grown = (memory_of(master, "VmHWM") - rss) / (1 << 20)
    attack.join(seconds + 60)
    attack.kill()
    attack.join()
    after = _p99_us(_times(good, seconds / 2))
    base = statistics.mean([before, after])
    p99 = _p99_us(during)
    with cluster.connect() as cache:
        assert cache.get("good") == b"x" * 64, "the same master answers"
    assert cluster.master.poll() is None, "the master lives"
    return [
        Row(
            name=f"{name}: good clients' p99",
            figure=p99,
            unit="us",
            ratio=p99 / base,
            baseline=f"{base:,.0f} us without",
            target=f"ratio <= {P99_RATIO:g}",
            reached=p99 <= P99_RATIO * base,
            note=f"{len(during):,} operations",
        ),
        most_row(f"{name}: growth of the master's memory", max(0.0, grown), "MiB", GROWTH_MIB),
    ]


def _p99_us(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)] * 1e6


def _play(flood: Flood, address: str, http: str, seconds: float, share: float) -> None:
    os.nice(10)  # An attacker has a machine of its own; here it shares two cores with those whose waiting is measured.
    attacker = Attacker(address, http, seconds, share)
    try:
        flood(attacker)
    finally:
        attacker.close()


@contextlib.contextmanager
def _good_clients(address: str) -> Iterator[list[Connection]]:
    with workers(_behave, [(address, number) for number in range(GOOD_CLIENTS)]) as pipes:
        for pipe in pipes:
            _answer(pipe)
        yield pipes


def _times(good: list[Connection], seconds: float) -> list[float]:
    for pipe in good:
        pipe.send(seconds)
    return [took for pipe in good for took in _answer(pipe)]


def _answer(pipe: Connection) -> list[float]:
    if not pipe.poll(ANSWER_WITHIN_S):
        raise SystemExit("a good client did not answer")
    packed: bytes = pipe.recv_bytes()
    return list(struct.unpack(f"<{len(packed) // 8}d", packed))


def _behave(pipe: Connection, address: str, number: int) -> None:
    """A put, a get that asks, and a removal of one key, every 2 ms, as long as it is told."""
    value = b"x" * 64
    with holdfast.connect(address, timeout=60) as cache:
        cache.put("good", value)
        pipe.send_bytes(b"")
        serial = 0
        while True:
            try:
                seconds: float = pipe.recv()
            except EOFError:
                return
            times: list[float] = []
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                serial += 1
                key = f"good/{os.getpid()}/{number}/{serial}"
                for step in (
                    lambda k=key: cache.put(k, value),
                    lambda k=key: cache.get(k),
                    lambda k=key: cache.remove(k),
                ):
                    began = time.perf_counter()
                    step()
                    times.append(time.perf_counter() - began)
                time.sleep(0.002)
            pipe.send_bytes(struct.pack(f"<{len(times)}d", *times))
