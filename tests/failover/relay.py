"""A TCP relay in front of a master, that can stop passing bytes on without closing anything."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import Self

from holdfast.addresses import split_address


class Relay:
    def __init__(self, target: str) -> None:
        self._target = split_address(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._passes = threading.Event()
        self._passes.set()
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._passes.set()
        for thread in list(self._threads):
            thread.join(20)
        self._listener.close()

    def stall(self) -> None:
        self._passes.clear()

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping:
            if select.select([self._listener], [], [], 0.05)[0]:
                near, _ = self._listener.accept()
                self._start(self._pass_on, near)

    def _pass_on(self, near: socket.socket) -> None:
        # Either side may hang up in the middle of anything.
        with near, contextlib.suppress(OSError), socket.create_connection(self._target, 10) as far:
            while not self._stopping:
                ready = select.select([near, far], [], [], 0.05)[0]
                self._passes.wait()
                for one in ready:
                    piece = one.recv(65_536)
                    if not piece:
                        return
                    (far if one is near else near).sendall(piece)
