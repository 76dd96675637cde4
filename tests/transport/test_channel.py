"""Both channels against a server that a test scripts: broken, late and strange replies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import errors
from holdfast.instant import now_seconds
from holdfast.messages.requests import Exists, Failed, Hello, Presence
from holdfast.messages.shapes import Message
from holdfast.transport.async_channel import AsyncChannel
from holdfast.transport.channel import Channel
from holdfast.wire.codec import HEAD, MAX_FRAME_BYTES, frame, told_timeout_ms
from tests.transport.scripted import WELCOME, Peer, soon


@pytest.fixture(params=["blocking", "asyncio"])
def dial(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Opens a channel with a blocking `call`."""
    with contextlib.ExitStack() as opened:
        if request.param == "blocking":

            def open_blocking(address: str, deadline: float | None = None) -> Any:
                channel = Channel.open(address, Hello(5, "token"), deadline or soon())
                opened.callback(channel.close)
                return channel

            yield open_blocking
            return
        loop = asyncio.new_event_loop()
        opened.callback(loop.close)

        class Awaited:
            def __init__(self, channel: AsyncChannel) -> None:
                self.channel = channel
                self.welcome = channel.welcome

            def call(self, message: Message, deadline: float) -> Message:
                return loop.run_until_complete(self.channel.call(message, deadline))

            @property
            def closed(self) -> bool:
                return self.channel.closed

        def open_async(address: str, deadline: float | None = None) -> Any:
            async def opening() -> AsyncChannel:
                return await AsyncChannel.open(address, Hello(5, "token"), deadline or soon())

            async def closing(channel: AsyncChannel) -> None:
                channel.close()

            channel = loop.run_until_complete(opening())
            opened.callback(lambda: loop.run_until_complete(closing(channel)))
            return Awaited(channel)

        yield open_async


def test_hello_comes_first_and_the_time_that_is_left_is_told(scripted: Any, dial: Any) -> None:
    seen: list[Any] = []

    def serve(peer: Peer) -> None:
        seen.append(peer.welcome())
        request_id, timeout_ms, message = peer.request()
        seen.extend([timeout_ms, message])
        peer.reply(request_id, Presence(b"\1"))

    channel = dial(scripted(serve))
    assert channel.welcome == WELCOME
    assert channel.call(Exists(["key"]), soon(9)) == Presence(b"\1")
    assert seen[0] == Hello(5, "token")
    # A little less than the caller has, so that an answer at the last moment still arrives.
    assert 0 < seen[1] < 9000
    assert seen[2] == Exists(["key"])


def test_a_refusal_at_the_door_is_raised(scripted: Any, dial: Any) -> None:
    address = scripted(lambda peer: peer.welcome(Failed("not_authorized", "wrong token")))
    with pytest.raises(errors.NotAuthorized, match="wrong token"):
        dial(address)


def test_nobody_there_is_unreachable_and_named(dial: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(errors.Unreachable, match=address):
        dial(address)


def test_a_server_that_never_welcomes_is_unreachable_at_the_deadline(scripted: Any, dial: Any) -> None:
    """I10."""
    address = scripted(Peer.ignore_until_the_end)
    with pytest.raises(errors.Unreachable, match=address):
        dial(address, soon(0.2))


def test_a_port_of_another_kind_of_server_is_named_as_such(scripted: Any, dial: Any) -> None:
    """A node answers so, to whom a greeting means nothing."""
    address = scripted(lambda peer: peer.welcome(Failed("bad_request", "what is that")))
    with pytest.raises(errors.BadRequest, match=rf"{address} refuses .*what is that.* Nodes and HTTP have ports of"):
        dial(address, soon())


def test_no_reply_ends_at_the_deadline_and_the_connection_stays_good(scripted: Any, dial: Any) -> None:
    """I10: the late reply of the first call is not taken for the second's."""

    def serve(peer: Peer) -> None:
        peer.welcome()
        late, _, _ = peer.request()
        request_id, _, _ = peer.request()
        peer.reply(late, Presence(b"late"))
        peer.reply(request_id, Presence(b"\1"))
        peer.answer_until_the_end()

    channel = dial(scripted(serve))
    with pytest.raises(errors.DeadlineExceeded):
        channel.call(Exists(["a"]), soon(0.2))
    assert channel.call(Exists(["b"]), soon()) == Presence(b"\1")
    assert not channel.closed


def test_a_passed_deadline_sends_nothing(scripted: Any, dial: Any) -> None:
    channel = dial(scripted(lambda peer: (peer.welcome(), peer.answer_until_the_end())))
    with pytest.raises(errors.Unreachable, match="nothing was changed"):
        channel.call(Exists(["a"]), now_seconds() - 1)
    assert channel.call(Exists(["b"]), soon()) == Presence(b"b")


@pytest.mark.parametrize("sent", [b"", b"\0", HEAD.pack(50, 1, 0), HEAD.pack(50, 1, 0) + b"torn"])
def test_a_torn_reply_is_lost_and_closes(scripted: Any, dial: Any, sent: bytes) -> None:
    def serve(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        peer.socket.sendall(sent)

    channel = dial(scripted(serve))
    with pytest.raises(errors.ReplyLost):
        channel.call(Exists(["a"]), soon())
    assert channel.closed
    with pytest.raises(errors.Unreachable):
        channel.call(Exists(["a"]), soon())


def test_a_giant_reply_is_refused_by_its_head(scripted: Any, dial: Any) -> None:
    """I17."""

    def serve(peer: Peer) -> None:
        peer.welcome()
        peer.request()
        peer.socket.sendall(HEAD.pack(MAX_FRAME_BYTES + 1, 1, 0))
        peer.request()

    channel = dial(scripted(serve))
    with pytest.raises(errors.ReplyLost, match="over the limit"):
        channel.call(Exists(["a"]), soon())
    assert channel.closed


def test_a_reply_of_another_language_is_uncertain(scripted: Any, dial: Any) -> None:
    def serve(peer: Peer) -> None:
        peer.welcome()
        request_id, _, _ = peer.request()
        peer.socket.sendall(frame(request_id, 0, b"\xc1\xc1"))
        peer.request()

    channel = dial(scripted(serve))
    with pytest.raises(errors.Uncertain, match="same version"):
        channel.call(Exists(["a"]), soon())


def test_a_message_over_the_limit_is_not_sent(scripted: Any, dial: Any) -> None:
    channel = dial(scripted(lambda peer: (peer.welcome(), peer.answer_until_the_end())))
    with pytest.raises(errors.BadRequest, match="nothing was sent"):
        channel.call(Exists(["k" * (MAX_FRAME_BYTES + 1)]), soon())
    assert channel.call(Exists(["b"]), soon()) == Presence(b"b")


@pytest.mark.parametrize(
    ("left", "least", "most"), [(0.001, 1, 1), (1, 850, 950), (30, 29_000, 29_999), (1e9, 2**32 - 1, 2**32)]
)
def test_a_peer_is_told_a_little_less_time_than_there_is(left: float, least: int, most: int) -> None:
    """I10."""
    assert least <= told_timeout_ms(left) <= most
