"""The server's end of an RPC connection, which does what a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from holdfast.instant import now_seconds
from holdfast.messages.requests import Exists, Hello, Presence, Welcome
from holdfast.messages.shapes import Message
from holdfast.wire.codec import FrameBuffer, decode_request, encode, frame

WELCOME = Welcome(7, 1, "scripted", 10_000, 30_000, 1 << 28, 1 << 23, 1)
Serve: TypeAlias = Callable[["Peer"], None]


def soon(seconds: float = 20.0) -> float:
    return now_seconds() + seconds


class Peer:
    """The server's end of one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.received = FrameBuffer()

    def request(self) -> tuple[int, int, Message]:
        """(id, timeout, message) of the next request; EOFError at the end."""
        while (whole := self.received.next_frame()) is None:
            self._receive()
        return whole[0], whole[1], decode_request(bytes(whole[2]))

    def welcome(self, reply: Message = WELCOME) -> Hello:
        while not self.received.take_preamble():
            self._receive()
        request_id, _, hello = self.request()
        assert isinstance(hello, Hello)
        self.reply(request_id, reply)
        return hello

    def reply(self, request_id: int, message: Message) -> None:
        self.socket.sendall(frame(request_id, 0, encode(message)))

    def answer_until_the_end(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                request_id, _, message = self.request()
                assert isinstance(message, Exists)
                self.reply(request_id, Presence(message.keys[0].encode()))

    def ignore_until_the_end(self) -> None:
        while True:
            self._receive()

    def _receive(self) -> None:
        count = self.socket.recv_into(self.received.space())
        if not count:
            raise EOFError
        self.received.filled(count)


@contextlib.contextmanager
def servers() -> Iterator[Callable[[Serve], str]]:
    """Starts a server that does this for its first connection; gives its address."""
    with contextlib.ExitStack() as opened:

        def start(serve: Serve) -> str:
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
            listener.settimeout(20)

            def work() -> None:
                connected, _ = listener.accept()
                with connected:
                    connected.settimeout(20)
                    # The client ended the connection.
                    with contextlib.suppress(EOFError, ConnectionError):
                        serve(Peer(connected))

            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            opened.callback(thread.join, 20)
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield start
