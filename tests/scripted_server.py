"""The socket server under the fake masters: real connections, and answers as the test's class gives them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from holdfast.messages.shapes import Message
from holdfast.wire.codec import FrameBuffer, decode_request, encode, frame

SECONDS = 30.0
T = TypeVar("T", bound=Message)


class HangUp(Exception):
    """Raised by `respond`: close the connection instead of answering."""


class ScriptedServer:
    """Listens from its making until `stop`. A subclass says in `respond` how each request is answered, and calls this
    constructor last: from then on requests come."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Message] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0.05)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._start(self._accept)

    def respond(self, request: Message) -> Message | None:
        """The answer; None to give none ever. Called in the connection's own thread."""
        raise NotImplementedError

    def asked(self, kind: type[T]) -> list[T]:
        """The requests of this kind so far."""
        return [request for request in list(self.requests) if isinstance(request, kind)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping = True
        # Nobody is let in any more: a peer that came back in this moment is cut off too.
        self._threads[0].join(SECONDS)
        self.cut()
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        self._listener.close()

    def cut(self) -> None:
        """End every connection."""
        for connected in list(self._connections):
            # Its peer may have closed it already.
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping:
            try:
                connected, _ = self._listener.accept()
            except TimeoutError:
                continue
            connected.settimeout(SECONDS)
            self._connections.append(connected)
            self._start(self._serve, connected)

    def _serve(self, connected: socket.socket) -> None:
        received = FrameBuffer()
        greeted = False
        # The test or the peer may cut the connection.
        with connected, contextlib.suppress(OSError, HangUp):
            while count := connected.recv_into(received.space()):
                received.filled(count)
                greeted = greeted or received.take_preamble()
                while greeted and (whole := received.next_frame()) is not None:
                    reply = self.respond(decode_request(bytes(whole[2])))
                    if reply is not None:
                        connected.sendall(frame(whole[0], 0, encode(reply)))
