"""Several client processes that do the same thing at the same time, each with an echo server of its own beside."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Self

import holdfast
from benchmarks.baselines import ANSWER_WITHIN_S, Dialled, ServerProcess, echo, workers


class Crowd:
    def __init__(self, count: int, address: str) -> None:
        self._servers = [ServerProcess(echo) for _ in range(count)]
        self._opened = ExitStack()
        self._pipes = self._opened.enter_context(workers(_work, [(address, one.port) for one in self._servers]))

    def __enter__(self) -> Self:
        for pipe in self._pipes:
            _answer(pipe)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        for server in self._servers:
            server.__exit__()

    def rate(self, what: str, seconds: float) -> float:
        """What all of them do in a second, together, in the same stretch of time."""
        start = time.monotonic() + 0.03
        for pipe in self._pipes:
            pipe.send((what, start, start + seconds))
        return sum(_answer(pipe) for pipe in self._pipes) / seconds


def _answer(pipe: Connection) -> int:
    if not pipe.poll(ANSWER_WITHIN_S):
        raise SystemExit("a client process did not answer")
    done: int = pipe.recv()
    return done


def _work(pipe: Connection, address: str, echo_port: int) -> None:
    with holdfast.connect(address) as cache, Dialled(echo_port) as dialled:
        does: dict[str, Callable[[], object]] = {"echo": dialled.ping, "exists": lambda: cache.exists("there")}
        cache.exists("there")
        pipe.send(0)
        while True:
            try:
                what, start, end = pipe.recv()
            except EOFError:
                # The parent has closed its end: there is nothing more to do.
                return
            step, done = does[what], 0
            time.sleep(max(start - time.monotonic(), 0))
            while time.monotonic() < end:
                step()
                done += 1
            pipe.send(done)
