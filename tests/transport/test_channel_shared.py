"""One blocking channel, many threads: each gets its own reply, and nobody is left waiting."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from holdfast import errors
from holdfast.messages.requests import Exists, Failed, Hello, ListKeys, Presence
from holdfast.messages.shapes import Message
from holdfast.transport.channel import Channel
from tests.transport.scripted import Peer, soon
from tests.waiting import check_closed_in_a_child, run_together


def test_replies_out_of_order_find_their_callers(scripted: Any) -> None:
    count = 16

    def serve(peer: Peer) -> None:
        peer.welcome()
        requests = [peer.request() for _ in range(count)]
        for request_id, _, message in reversed(requests):
            assert isinstance(message, Exists)
            peer.reply(request_id, Presence(message.keys[0].encode()))
        peer.answer_until_the_end()

    channel = Channel.open(scripted(serve), Hello(5), soon())
    got: dict[int, Message] = {}

    def call(number: int) -> None:
        got[number] = channel.call(Exists([str(number)]), soon())

    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == {number: Presence(str(number).encode()) for number in range(count)}
    channel.close()


def test_many_threads_share_one_connection(scripted: Any) -> None:
    """Each gets its own replies, whoever reads them from the socket."""
    channel = Channel.open(scripted(lambda peer: (peer.welcome(), peer.answer_until_the_end())), Hello(5), soon())
    wrong: list[str] = []

    def call(name: str) -> None:
        for number in range(150):
            key = f"{name}-{number}"
            if channel.call(Exists([key]), soon()) != Presence(key.encode()):
                wrong.append(key)

    threads = [threading.Thread(target=call, args=(str(number),)) for number in range(8)]
    run_together(threads)
    assert wrong == []
    channel.close()


def test_a_reader_that_gives_up_passes_the_reading_on(scripted: Any) -> None:
    """I10: the first caller reads for both; when its deadline passes the second must not be left waiting."""
    first_is_over = threading.Event()

    def serve(peer: Peer) -> None:
        peer.welcome()
        requests = [peer.request(), peer.request()]
        assert first_is_over.wait(20)
        for request_id, _, message in requests:
            assert isinstance(message, Exists)
            peer.reply(request_id, Presence(message.keys[0].encode()))
        peer.answer_until_the_end()

    channel = Channel.open(scripted(serve), Hello(5), soon())
    outcome: list[object] = []

    def impatient() -> None:
        with pytest.raises(errors.DeadlineExceeded):
            channel.call(Exists(["first"]), soon(0.7))
        first_is_over.set()

    thread = threading.Thread(target=impatient)
    thread.start()
    outcome.append(channel.call(Exists(["second"]), soon()))
    thread.join(20)
    assert outcome == [Presence(b"second")]
    channel.close()


def test_all_callers_hear_of_a_lost_connection(scripted: Any) -> None:
    def serve(peer: Peer) -> None:
        peer.welcome()
        for _ in range(4):
            peer.request()

    channel = Channel.open(scripted(serve), Hello(5), soon())
    lost: list[errors.ReplyLost] = []

    def call() -> None:
        with pytest.raises(errors.ReplyLost) as raised:
            channel.call(ListKeys(), soon())
        lost.append(raised.value)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(lost) == 4
    channel.close()


def test_the_servers_last_word_is_told(scripted: Any) -> None:
    def serve(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        peer.reply(0, Failed("stopping", "another connection of this client took over"))

    channel = Channel.open(scripted(serve), Hello(5), soon())
    with pytest.raises(errors.ReplyLost, match="took over"):
        channel.call(Exists(["a"]), soon())
    channel.close()


def test_closing_wakes_whoever_waits(scripted: Any) -> None:
    asked = threading.Event()

    def serve(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        asked.set()
        peer.request()

    channel = Channel.open(scripted(serve), Hello(5), soon())
    lost: list[BaseException] = []

    def call() -> None:
        with pytest.raises(errors.ReplyLost) as raised:
            channel.call(Exists(["a"]), soon())
        lost.append(raised.value)

    thread = threading.Thread(target=call)
    thread.start()
    assert asked.wait(20)
    channel.close()
    thread.join(20)
    assert len(lost) == 1


def test_requests_and_replies_of_several_megabytes_pass_each_other(scripted: Any) -> None:
    """Nobody holds the reading while sending, so full buffers both ways are no deadlock."""
    big = "x" * (3 << 20)

    def serve(peer: Peer) -> None:
        peer.welcome()
        with contextlib.suppress(EOFError):
            while True:
                request_id, _, message = peer.request()
                assert isinstance(message, ListKeys)
                # It reads nothing more until its answer is taken.
                peer.reply(request_id, Presence(message.prefix.encode()))

    channel = Channel.open(scripted(serve), Hello(5), soon())
    sizes: list[int] = []

    def call() -> None:
        for _ in range(4):
            reply = channel.call(ListKeys(big), soon(60))
            assert isinstance(reply, Presence)
            sizes.append(len(reply.found))

    threads = [threading.Thread(target=call) for _ in range(3)]
    run_together(threads, 90)
    assert sizes == [len(big)] * 12
    channel.close()


def test_a_forked_child_cannot_use_the_connection_and_does_not_end_it(scripted: Any) -> None:
    channel = Channel.open(scripted(lambda peer: (peer.welcome(), peer.answer_until_the_end())), Hello(5), soon())
    check_closed_in_a_child(lambda: channel.call(Exists(["child"]), soon()), channel.close)
    assert channel.call(Exists(["parent"]), soon()) == Presence(b"parent")
    channel.close()
