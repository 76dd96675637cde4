"""A client of the cluster for an engine that must not wait: opened when possible, passed over while nobody answers.

1. Opened by the constructor. Masters that do not answer are no error: the engine starts, and every call is a miss.
   A wrong token or address is an error, because waiting will not mend it.
2. Up: calls run. One that fails because no master answered makes the link *down*.
3. Down: calls are refused at once, so that an outage is paid for once and not by every request.
   `mend`, called by the pool's patrol, asks until a master answers: up again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import holdfast
from holdfast.client.blocking import Cache
from holdfast.errors import (
    ClientClosed,
    DeadlineExceeded,
    HoldfastError,
    NotLeader,
    Refused,
    ReplyLost,
    Stopping,
    Unreachable,
)
from holdfast.integrations.lmcache.options import Options

T = TypeVar("T")
NO_MASTER = (Unreachable, DeadlineExceeded, NotLeader, ReplyLost, Stopping)
"""Errors of a whole call that say nothing about its keys, and the same of the next call."""


class Link:
    """For any thread. `fell` is called when the link goes down."""

    def __init__(self, options: Options, fell: Callable[[], None]) -> None:
        self._options = options
        self._fell = fell
        self._lock = threading.Lock()
        self._cache: Cache | None = None
        self._why = "it was not opened yet"
        self._closed = False
        self.is_up = False

    def open(self) -> None:
        """Raises what waiting will not mend."""
        try:
            cache = holdfast.connect(
                self._options.reached_at,
                timeout=self._options.timeout_s,
                token=self._options.secret(),
                tls=self._options.tls(),
                verify=self._options.verify,
                shared_memory=self._options.shared_memory,
            )
        except Refused:
            raise
        except HoldfastError as error:
            self._why = str(error)
            return
        with self._lock:
            if not self._closed:
                self._cache, self.is_up = cache, True
                return
        cache.close()

    @property
    def why_down(self) -> str:
        return "" if self.is_up else self._why

    def run(self, verb: Callable[[Cache], T], even_if_down: bool = False) -> T:
        """Run this on the client. Unreachable at once while the link is down, unless the verb may need no master."""
        cache = self._cache
        if self._closed:
            raise ClientClosed("the connection to holdfast was closed; nothing was done")
        if cache is None or not (self.is_up or even_if_down):
            raise Unreachable(f"no master has answered since: {self._why}. Nothing was sent")
        try:
            return verb(cache)
        except NO_MASTER as error:
            self.fall(error)
            raise

    def fall(self, error: HoldfastError) -> None:
        with self._lock:
            was_up, self.is_up, self._why = self.is_up, False, str(error)
        if was_up:
            self._fell()

    def mend(self) -> bool:
        """One attempt to reach a master. Is the link up now?"""
        if self._closed or self.is_up:
            return self.is_up
        cache = self._cache
        try:
            if cache is None:
                self.open()
            else:
                cache.nodes()
                with self._lock:
                    self.is_up = not self._closed
        except HoldfastError as error:
            self._why = str(error)
        return self.is_up

    def close(self) -> None:
        with self._lock:
            self._closed, self.is_up, self._why = True, False, "it was closed"
            cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()
