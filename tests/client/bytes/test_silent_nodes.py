"""A node that is connected and says nothing: stopped, or killed and not yet taken apart. Through both shells."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import errors
from holdfast.addresses import split_address
from holdfast.client.bytes import failing_nodes, nodes
from holdfast.client.operations import places
from holdfast.messages import requests as m
from holdfast.messages.of_nodes import Sending
from holdfast.wire.codec import encode, frame
from tests.client.fake_master import Act, FakeMaster, closed_port

Connect = Callable[..., Any]


@contextmanager
def silent() -> Iterator[str]:
    """The kernel takes connections and requests for it, and nobody ever looks at them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def slow_at_first(target: str, mute: int) -> Iterator[str]:
    """The first connections get no answer; the later ones are the node's own."""
    ended = threading.Event()
    held: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(65_536):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # The other way has ended, and both sockets with it.
            return

    def accept() -> None:
        while not ended.is_set():
            try:
                near, _ = listener.accept()
            except TimeoutError:
                continue
            held.append(near)
            if len(held) > mute:
                far = socket.create_connection(split_address(target), 20)
                held.append(far)
                for pair in ((near, far), (far, near)):
                    threads.append(threading.Thread(target=carry, args=pair, daemon=True))
                    threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        threads.append(threading.Thread(target=accept, daemon=True))
        threads[0].start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            threads[0].join(20)
            for one in held:
                one.close()


@pytest.fixture
def endless_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the silent node waits until the deadline, and fails; one that answers has time to."""
    monkeypatch.setattr(nodes, "STALLED_SECONDS", 1_000.0)
    monkeypatch.setattr(nodes, "HEDGE_SECONDS", 0.5)


@pytest.mark.usefixtures("endless_patience")
@pytest.mark.parametrize("size", [100, 300_000])
def test_a_silent_node_is_left_for_the_other_replica(remote_master: FakeMaster, connect: Connect, size: int) -> None:
    """I2, I10."""
    items = {f"key {number}": os.urandom(size) for number in range(4)}
    connect(remote_master.address).put_many(items, replicas=2)
    with silent() as nowhere:
        remote_master.elsewhere[1] = nowhere
        assert connect(remote_master.address, timeout=10).get("key 1") == items["key 1"]
        assert connect(remote_master.address, timeout=10).get_many(items) == items
        room = bytearray(size)
        assert connect(remote_master.address, timeout=10).get_into("key 2", room) == size
        assert room == items["key 2"]


@pytest.mark.usefixtures("endless_patience")
def test_a_node_that_falls_silent_in_the_middle_is_left_too(remote_master: FakeMaster, connect: Connect) -> None:
    data = os.urandom(2 << 20)
    connect(remote_master.address).put("key", data, replicas=2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        remote_master.elsewhere[1] = f"127.0.0.1:{listener.getsockname()[1]}"
        began: list[socket.socket] = []

        def begin() -> None:
            connected, _ = listener.accept()
            began.append(connected)
            connected.recv(65_536)
            connected.sendall(frame(0, 0, encode(Sending(len(data)))) + b"wrong" * 50_000)

        thread = threading.Thread(target=begin)
        thread.start()
        try:
            assert connect(remote_master.address, timeout=10).get("key") == data
        finally:
            thread.join(20)
            for one in began:
                one.close()


def test_when_all_are_silent_the_first_is_asked_again_with_patience(
    remote_master: FakeMaster, connect: Connect
) -> None:
    """Slow is not dead: what one replica alone would have given is given with two as well."""
    data = os.urandom(100_000)
    connect(remote_master.address).put("key", data, replicas=2)
    assert remote_master.node is not None
    with silent() as nowhere, slow_at_first(remote_master.node.data.address, mute=1) as slow:
        remote_master.elsewhere.update({1: slow, 2: nowhere})
        assert connect(remote_master.address, timeout=20).get("key") == data


def test_a_single_replica_is_waited_for(
    remote_master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: and the silence is said at last."""
    monkeypatch.setattr(nodes, "STALLED_SECONDS", 0.2)
    connect(remote_master.address).put("key", b"x")
    with silent() as nowhere:
        remote_master.elsewhere[1] = nowhere
        with pytest.raises(errors.NodeLost, match="'key'"):
            connect(remote_master.address, timeout=3).get("key")


@pytest.mark.parametrize("gone", ["silent", "dead"])
@pytest.mark.parametrize("count", [4, 600])
def test_a_lost_node_costs_a_batch_its_keys_only(
    remote_master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch, gone: str, count: int
) -> None:
    """I2, I10: they are left out like keys that are not stored, and whoever wants to know is told why."""
    monkeypatch.setattr(failing_nodes, "FIRST_PROBE_SECONDS", 1_000.0)
    writer = connect(remote_master.address)
    kept = {f"kept {number}": os.urandom(500) for number in range(count)}
    lost = [f"lost {number}" for number in range(3)]
    names = [str(remote_master.segment_name(handle)) for handle in (1, 2)]
    writer.put_many(dict.fromkeys(lost, b"x"), prefer=names[0])
    writer.put_many(kept, prefer=names[1])
    assert {row[1] for row in remote_master.objects.values()} == {1, 2}
    # Only now: a busy machine may keep the writer waiting so long, which would then write to the other node.
    monkeypatch.setattr(nodes, "STALLED_SECONDS", 0.2)
    with silent() as nowhere:
        remote_master.elsewhere[1] = nowhere if gone == "silent" else closed_port()
        reader = connect(remote_master.address, timeout=8)
        why: dict[str, errors.HoldfastError] = {}
        assert reader.get_many([lost[0], *kept, *lost[1:], "absent"], errors=why) == kept
        assert set(why) == {*lost}
        assert {*map(type, why.values())} == {errors.NodeLost}
        assert reader.get_many(lost) == {}


def test_no_master_is_no_miss(remote_master: FakeMaster, connect: Connect) -> None:
    connect(remote_master.address).put("key", b"x")
    reader = connect(remote_master.address, timeout=0.5)
    remote_master.judge = lambda request: Act.SILENCE
    with pytest.raises(errors.HoldfastError):
        reader.get_many(["key"])


@pytest.mark.parametrize("batch", [False, True])
def test_a_segment_that_has_moved_is_read_at_its_new_address_at_once(
    remote_master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    """A disk keeps its handle when its node is started again: only the number of the topology says that it moved."""
    monkeypatch.setattr(places, "LOOK_AGAIN_SECONDS", 1_000.0)
    monkeypatch.setattr(failing_nodes, "FIRST_PROBE_SECONDS", 1_000.0)
    connect(remote_master.address).put("key", b"data")
    remote_master.elsewhere[1] = closed_port()
    cache = connect(remote_master.address, timeout=10)
    with pytest.raises(errors.NodeLost):
        cache.get("key")
    del remote_master.elsewhere[1]
    remote_master.topology += 1
    assert (cache.get_many(["key"]) == {"key": b"data"}) if batch else (cache.get("key") == b"data")


@pytest.mark.parametrize("size", [100, 300_000])
def test_puts_go_elsewhere_while_a_node_does_not_take_them(
    remote_master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """I10: the first one finds out, and is stored on another node; nobody else meets the silent one."""
    monkeypatch.setattr(failing_nodes, "FIRST_PROBE_SECONDS", 1_000.0)
    monkeypatch.setattr(nodes, "STALLED_SECONDS", 0.3)
    monkeypatch.setattr(nodes, "SLOWEST_BYTES_PER_SECOND", 1e12)
    with silent() as nowhere:
        remote_master.elsewhere[1] = nowhere
        cache = connect(remote_master.address, timeout=20)
        assert cache.put("first", bytes(size))
        asked = len(remote_master.asked(m.GrantRanges))
        monkeypatch.setattr(nodes, "STALLED_SECONDS", 1_000.0)
        assert cache.put("second", bytes(size))
        assert cache.put_many({f"more {number}": bytes(size) for number in range(4)}) == 4
        assert {segment for _, segment, *_ in remote_master.objects.values()} == {2}
        assert asked >= 2, "the first grant lay on the silent node"


@pytest.mark.parametrize("batch", [False, True])
def test_the_replica_that_was_read_is_the_one_that_is_asked_about(
    remote_master: FakeMaster, connect: Connect, batch: bool
) -> None:
    """I2: the lease had ended. That the other replica is still at its place says nothing about these bytes."""
    remote_master.lease_ttl_ms = 0
    connect(remote_master.address).put("key", b"x" * 1000, replicas=2)
    remote_master.dead.add(1)
    second = remote_master.others["key"][0]
    cache = connect(remote_master.address, verify=False)
    remote_master.judge = lambda request: m.Presence(b"\1") if isinstance(request, m.RenewLeases) else Act.USUAL
    assert (cache.get_many(["key"])["key"] if batch else cache.get("key")) == b"x" * 1000
    last = remote_master.asked(m.RenewLeases)[-1]
    assert [row[1:] for row in struct.iter_unpack("<3Q", last.rows)] == [second]
