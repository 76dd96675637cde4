"""What the machine can do: a 64-byte socket echo, a memory copy, raw bytes over loopback TCP."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Self

ECHO_BYTES = 64
SEND_CHUNK = 1 << 20
ANSWER_WITHIN_S = 60.0

spawned = multiprocessing.get_context("spawn")


@contextmanager
def workers(target: Callable[..., None], arguments: Iterable[tuple[object, ...]]) -> Iterator[list[Connection]]:
    """Processes that run `target(pipe, *arguments)`, one for each of `arguments`; our ends of their pipes."""
    pipes: list[Connection] = []
    processes = []
    try:
        for given in arguments:
            ours, theirs = spawned.Pipe()
            process = spawned.Process(target=target, args=(theirs, *given), daemon=True)
            process.start()
            pipes.append(ours)
            processes.append(process)
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            process.kill()
            process.join()


class ServerProcess:
    """A socket server in a process of its own, which ends with the `with` block."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        ours, theirs = spawned.Pipe()
        self._process = spawned.Process(target=_serve_each, args=(serve, theirs), daemon=True)
        self._process.start()
        if not ours.poll(ANSWER_WITHIN_S):
            raise SystemExit("a baseline's server did not start")
        self.port: int = ours.recv()
        assert self._process.pid is not None, "it was started"
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _serve_each(serve: Callable[[socket.socket], None], tell: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tell.send(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


def echo(connection: socket.socket) -> None:
    while data := connection.recv(ECHO_BYTES):
        connection.sendall(data)


def raw_bytes(connection: socket.socket) -> None:
    """A length below zero asks for that many bytes; above zero, that many follow and are answered by one byte."""
    memory = mmap.mmap(-1, 16 << 20)
    view = memoryview(memory)
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1
    while len(head := connection.recv(8, socket.MSG_WAITALL)) == 8:
        (length,) = struct.unpack("<q", head)
        if length < 0:
            connection.sendall(view[:-length])
        else:
            receive(connection, view[:length])
            connection.sendall(b"k")


def receive(connection: socket.socket, target: memoryview) -> None:
    got = 0
    while got < len(target):
        count = connection.recv_into(target[got:])
        if not count:
            raise ConnectionError("the other side ended in the middle")
        got += count


class Dialled:
    """A connection to a baseline's server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_WITHIN_S)
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ping(self, message: bytes = b"x" * ECHO_BYTES) -> None:
        self.socket.sendall(message)
        self.socket.recv(ECHO_BYTES)

    def send(self, source: memoryview) -> None:
        self.socket.sendall(struct.pack("<q", len(source)))
        self.socket.sendall(source)
        self.socket.recv(1)

    def fetch(self, target: memoryview) -> None:
        self.socket.sendall(struct.pack("<q", -len(target)))
        receive(self.socket, target)


class Memory:
    """Touched anonymous memory of `count` blocks, to copy to and from, as large as what the cache is given."""

    def __init__(self, block: int, count: int) -> None:
        self._block = block
        self._map = mmap.mmap(-1, block * count)
        self.view = memoryview(self._map)
        for at in range(0, len(self._map), mmap.PAGESIZE):
            self._map[at] = at & 255
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def block(self, number: int) -> memoryview:
        return self.view[number * self._block : (number + 1) * self._block]

    def copy_to(self, number: int, source: Memory, from_number: int = 0) -> None:
        ctypes.memmove(self.address + number * self._block, source.address + from_number * self._block, self._block)
