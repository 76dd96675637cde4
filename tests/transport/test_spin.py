"""Waiting for bytes: what is there is received, nothing is waited for without end, a crowd ends the looking."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.transport import spin
from holdfast.transport.spin import AWAKE_SECONDS, CROWDED_SECONDS, GLANCE_SECONDS, SpinThenPoll


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture(params=["unix", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    if request.param == "unix":
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
    with ours, theirs:
        yield ours, theirs


def test_what_is_there_is_received(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"a reply")
    room = bytearray(100)
    count = SpinThenPoll(ours, 5.0).receive(memoryview(room), _now())
    assert bytes(room[:count]) == b"a reply"


def test_what_comes_after_it_fell_asleep_wakes_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    received: list[int] = []
    waiter = threading.Thread(
        target=lambda: received.append(SpinThenPoll(ours, 30.0).receive(memoryview(bytearray(9)), _now()))
    )
    waiter.start()
    # However this is timed, the bytes come while it looks or while it sleeps.
    theirs.sendall(b"late")
    waiter.join(30)
    assert received == [4]


def test_an_end_is_told_as_no_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    assert SpinThenPoll(ours, 5.0).receive(memoryview(bytearray(9)), _now()) == 0


def test_nothing_is_waited_for_without_end(pair: tuple[socket.socket, socket.socket]) -> None:
    """I10: whoever waits gets back to its deadline."""
    ours, _ = pair
    with pytest.raises(BlockingIOError):
        SpinThenPoll(ours, 0.01).receive(memoryview(bytearray(9)), _now())


def test_in_a_crowd_it_does_not_give_way_but_sleeps(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    times = iter([100.0, 100.0 + 2 * CROWDED_SECONDS])
    gave_way: list[None] = []
    monkeypatch.setattr(spin, "_clock", lambda _: next(times))
    monkeypatch.setattr(spin, "_give_way", lambda: gave_way.append(None))
    ear = SpinThenPoll(ours, 5.0)
    theirs.sendall(b"1")
    assert ear.receive(memoryview(bytearray(9)), 100.0) == 1
    theirs.sendall(b"2")
    # The clock would raise if it were read again: this one goes straight to sleep, and finds the byte there.
    assert ear.receive(memoryview(bytearray(9)), 100.001) == 1
    assert len(gave_way) == 1


@pytest.mark.parametrize(
    ("took", "looks_for"), [(AWAKE_SECONDS / 2, AWAKE_SECONDS), (5 * AWAKE_SECONDS, GLANCE_SECONDS)]
)
def test_it_looks_as_long_as_the_last_reply_made_worth_while(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, took: float, looks_for: float
) -> None:
    ours, theirs = pair
    now = 100.0
    monkeypatch.setattr(spin, "_clock", lambda _: now)

    def give_way() -> None:
        nonlocal now
        now += 10e-6

    monkeypatch.setattr(spin, "_give_way", give_way)
    ear = SpinThenPoll(ours, 5.0)
    # The first reply comes while it sleeps, so long after it was asked for.
    sleep = ear._poll

    def slept(milliseconds: float) -> object:
        nonlocal now
        if milliseconds:
            theirs.sendall(b"1")
            now = 100.0 + took
        return sleep(milliseconds)

    ear._poll = slept
    assert ear.receive(memoryview(bytearray(9)), now) == 1
    began, ear._poll = now, sleep
    ear._sleep_ms = 0
    with pytest.raises(BlockingIOError):
        ear.receive(memoryview(bytearray(9)), now)
    assert now - began == pytest.approx(looks_for, rel=0.2)
