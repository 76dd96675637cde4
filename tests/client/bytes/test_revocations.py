"""Clients hear from the nodes of their machine which objects went; through both shells, from a real node's socket."""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.client.bytes.revocations import RevocationListener
from holdfast.errors import ObjectNotFound
from holdfast.messages import requests as m
from holdfast.messages.of_nodes import AttachSegment, HearRevocations, LeasesRevoked
from holdfast.messages.requests import Failed
from holdfast.node.memory import attach_server
from holdfast.wire.codec import HEAD_BYTES, PREAMBLE, decode_data_reply, encode, frame
from tests.client.fake_master import FakeMaster
from tests.client.inside import core_of
from tests.node.rig import Served, read_to_end
from tests.tickets import SECRET, attach_ticket
from tests.waiting import wait_until

Connect = Callable[..., Any]


def listening(node: Served) -> HearRevocations:
    return HearRevocations(node.name(), attach_ticket(SECRET, node.name()))


def packed(*ids: int) -> bytes:
    return struct.pack(f"<{len(ids)}Q", *ids)


def hearing_threads() -> int:
    return sum(thread.name == "holdfast-hearing" for thread in threading.enumerate())


def listened(node: Served) -> bool:
    return any(attachment.hears for attachment in list(node.attach.attachments))


def test_a_revoked_lease_is_used_no_more(master: FakeMaster, node: Served, connect: Connect) -> None:
    cache = connect(master.address)
    assert cache.put_many({"key": b"x", "other": b"y"}) == 2
    assert cache.get_many(["key", "other"]) == {"key": b"x", "other": b"y"}
    wait_until(lambda: listened(node))
    node.attach.revoke(packed(master.objects["key"][0]))
    wait_until(lambda: "key" not in core_of(cache).leases.by_key)
    assert "other" in core_of(cache).leases.by_key, "the others are as good as before"
    del master.objects["key"]
    with pytest.raises(ObjectNotFound):
        cache.get("key")


def test_an_open_view_says_that_its_object_went(master: FakeMaster, node: Served) -> None:
    """I2: what it shows is right all the same, until its lease ends."""
    with holdfast.connect(master.address) as cache:
        cache.put("key", b"old")
        cache.put("other", b"kept")
        mine, others = cache.view("key"), cache.view("other")
        with mine as view, others:
            wait_until(lambda: listened(node))
            assert not mine.revoked
            node.attach.revoke(packed(master.objects["key"][0]))
            wait_until(lambda: mine.revoked)
            assert bytes(view) == b"old"
            assert not others.revoked
        assert not mine.revoked


@pytest.mark.parametrize("how", ["more than can be named", "the node ends"])
def test_when_something_may_have_been_missed_nothing_is_taken_for_granted(
    master: FakeMaster, node: Served, connect: Connect, how: str
) -> None:
    cache = connect(master.address)
    cache.put("key", b"x")
    cache.get("key")
    wait_until(lambda: listened(node))
    assert core_of(cache).leases.by_key
    if how == "the node ends":
        node.attach.stop()
        node.attach.stop = lambda: None  # type: ignore[method-assign]
    else:
        node.attach.revoke(None)
    wait_until(lambda: not core_of(cache).leases.by_key)
    assert cache.get("key") == b"x", "it is asked for again, and read"
    assert len(master.asked(m.Locate)) == 2


def test_a_client_that_is_closed_or_dropped_listens_no_more(master: FakeMaster, node: Served) -> None:
    before = hearing_threads()
    closed = holdfast.connect(master.address)
    closed.put("key", b"x")
    closed.get("key")
    wait_until(lambda: listened(node))
    closed.close()
    wait_until(lambda: hearing_threads() == before and not listened(node))
    dropped = holdfast.connect(master.address)
    dropped.get("key")
    wait_until(lambda: listened(node))
    core_of(dropped).bytes.close = lambda: None  # type: ignore[method-assign]
    del dropped
    gc.collect()
    wait_until(lambda: hearing_threads() == before and not listened(node), what="the thread keeps no client alive")


def test_a_forked_child_leaves_the_listening_to_its_parent(master: FakeMaster, node: Served) -> None:
    with holdfast.connect(master.address) as cache:
        cache.put("key", b"x")
        cache.get("key")
        wait_until(lambda: listened(node))
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert core_of(cache).leases.by_key
        node.attach.revoke(packed(master.objects["key"][0]))
        wait_until(lambda: not core_of(cache).leases.by_key)


def test_a_client_that_does_not_take_what_it_is_told_is_left(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """I17: nothing is kept for it."""
    with node.raw_unix() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.sendall(PREAMBLE + frame(0, 0, encode(listening(node))))
        wait_until(lambda: listened(node))
        many = packed(*range(4_096))

        def left() -> bool:
            node.attach.revoke(many)
            return not listened(node)

        wait_until(left)
        assert read_to_end(deaf)
    monkeypatch.setattr(attach_server, "MOST_UNTOLD", 0)
    with node.raw_unix() as behind:
        behind.sendall(PREAMBLE + frame(0, 0, encode(listening(node))))
        wait_until(lambda: listened(node))
        node.attach.revoke(many)
        told = frame(0, 0, encode(LeasesRevoked(b"")))
        assert read_to_end(behind) == told, "what was not told is told by the end"


def test_a_connection_that_listens_passes_no_memory(node: Served) -> None:
    with node.raw_unix() as connected:
        connected.sendall(PREAMBLE + frame(0, 0, encode(listening(node))))
        connected.sendall(frame(0, 0, encode(AttachSegment(node.name()))))
        received = read_to_end(connected)
    first = len(frame(0, 0, encode(LeasesRevoked(b""))))
    assert isinstance(decode_data_reply(received[first + HEAD_BYTES :]), Failed)


def test_a_client_that_the_collector_ends_in_the_hearing_thread_ends() -> None:
    """I10: it may strike while that thread holds its lock, and a thread stuck there would collect nothing any more."""
    hearing = RevocationListener(weakref.ref(hearing_threads))

    def collected() -> None:
        with hearing._lock:
            hearing.close()

    thread = threading.Thread(target=collected, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
