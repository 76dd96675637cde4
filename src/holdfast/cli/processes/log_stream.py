"""Where a process logs to: stderr, whose reader may be slow, stopped or gone.

A line is written at once where that cannot block, which is nearly always. Where it can (a full pipe, a terminal that
was paused), lines wait in a bounded backlog that a thread writes. What does not fit is dropped, and counted in a line
behind the backlog (I17). So a log that nobody reads never holds up the loop of a primary (I10).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections import deque

log = logging.getLogger("holdfast.log")

BACKLOG_BYTES = 1 << 20
PIECE_BYTES = select.PIPE_BUF
"""A pipe that can be written to takes this much without blocking."""
FLUSHED_WITHIN_SECONDS = 1.0


class LogStream:
    """A text stream for whole lines, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)
        self._lock = threading.Lock()
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._dropped_lines = 0
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> int:
        data = text.encode(errors="backslashreplace")
        with self._lock:
            if self._thread is None:
                data = self._write_at_once(data)
            if data:
                self._enqueue(data)
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back that can be written."""

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def wait(self, seconds: float = FLUSHED_WITHIN_SECONDS) -> None:
        """Until the backlog is written, but no longer than this: at the end of the process."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _write_at_once(self, data: bytes) -> bytes:
        """What could not be written without blocking."""
        while data and self._writable.poll(0):
            try:
                data = data[os.write(self._descriptor, data[:PIECE_BYTES]) :]
            except OSError:
                return b""  # Its reader is gone, or its disk is full: there is nobody to tell.
        return data

    def _enqueue(self, data: bytes) -> None:
        if self._backlog and self._backlog_bytes + len(data) > BACKLOG_BYTES:
            self._dropped_lines += data.count(b"\n")
            return
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_backlog, name="log", daemon=True)
            self._thread.start()

    def _write_backlog(self) -> None:
        while (data := self._next()) is not None:
            with contextlib.suppress(OSError):  # As above.
                while data:
                    data = data[os.write(self._descriptor, data) :]

    def _next(self) -> bytes | None:
        """The next of the backlog, with the word of what was dropped behind its last; None: the thread ends."""
        with self._lock:
            dropped, self._dropped_lines = (0, self._dropped_lines) if self._backlog else (self._dropped_lines, 0)
        if dropped:
            log.warning("nobody read this log for a while: %d lines of it were dropped", dropped)
        with self._lock:
            if not self._backlog:
                self._thread = None
                return None
            data = self._backlog.popleft()
            self._backlog_bytes -= len(data)
        return data
