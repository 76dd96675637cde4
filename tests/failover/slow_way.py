"""A way to a server on which everything takes a little longer, in both directions: a network with a long delay."""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Self

from holdfast.instant import now_seconds

PIECE = 64 << 10


class SlowWay:
    """Listens at `port` and forwards to another port of this machine, `delay_s` later, in order."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._to = port
        self.delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for one in [self._listener, *self._open]:
            # Whoever is in a call leaves it; some were closed by their peers.
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            finally:
                one.close()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                waiting: deque[tuple[float, bytes]] = deque()
                arrived = threading.Condition()
                threading.Thread(target=self._take, args=(source, waiting, arrived), daemon=True).start()
                threading.Thread(target=self._give, args=(target, waiting, arrived), daemon=True).start()

    def _take(self, source: socket.socket, waiting: deque[tuple[float, bytes]], arrived: threading.Condition) -> None:
        data = b"?"
        while data:
            try:
                data = source.recv(PIECE)
            except OSError:
                data = b""
            with arrived:
                waiting.append((now_seconds() + self.delay_s, data))
                arrived.notify()

    def _give(self, target: socket.socket, waiting: deque[tuple[float, bytes]], arrived: threading.Condition) -> None:
        while True:
            with arrived:
                arrived.wait_for(lambda: waiting)
                due, data = waiting.popleft()
            self._stopped.wait(max(0.0, due - now_seconds()))
            try:
                if not data:
                    target.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(data)
            except OSError:
                return
