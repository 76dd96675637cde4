"""A terminal as a page that is drawn again and again, with keys; and given back as it was, however the program ends.

The page is on the terminal's second screen, so that what was there before is there again afterwards. It is given back
when the `with` block ends, also by an exception, Ctrl-C, SIGTERM or a terminal that closes; and for as long as Ctrl-Z
has stopped the program. Only SIGKILL leaves it as it is (`reset` mends that).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TextIO

from holdfast.instant import now_seconds

ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
"""The second screen, no cursor, empty."""
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
HOME, REST_OF_LINE, REST_OF_PAGE = "\x1b[H", "\x1b[0m\x1b[K", "\x1b[J"
KEYS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1b[Z": "left", "\t": "right"}
KEYS |= {"\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left", "\x1b": "escape"}
ESCAPE_SECONDS = 0.05
"""The rest of a key's escape sequence comes at once."""
_ENDS = (signal.SIGTERM, signal.SIGHUP)


class Ended(Exception):
    """A signal asked the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def is_terminal(stream: TextIO) -> bool:
    """Whether a page can be drawn there and keys can be read."""
    return stream.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")


class Terminal:
    """For the main thread. `show` draws a page; `wait` returns the next key, if any comes."""

    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._typed = ""
        self._saved: list[Any] = []
        self._former: dict[int, Any] = {}
        self._former_wakeup = -1
        self._woken, self._wake = os.pipe()

    def __enter__(self) -> Self:
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        self._former_wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGWINCH: lambda number, frame: None,  # It only wakes `wait`: the page is drawn anew.
            signal.SIGTSTP: self._suspend,
            **dict.fromkeys(_ENDS, _end),
        }
        self._former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._former:
            signal.signal(number, signal.SIG_IGN)  # Nothing may come between.
        try:
            self._give_back()
        finally:
            for number, handler in self._former.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._former_wakeup)
            os.close(self._woken)
            os.close(self._wake)

    def _take(self) -> None:
        self._saved = termios.tcgetattr(self._in)
        changed = termios.tcgetattr(self._in)
        changed[3] &= ~(termios.ICANON | termios.ECHO)  # Keys come one by one, unseen; Ctrl-C and Ctrl-Z stay signals.
        termios.tcsetattr(self._in, termios.TCSADRAIN, changed)
        self._write(ENTER)

    def _give_back(self) -> None:
        # A terminal that was closed takes nothing back.
        with contextlib.suppress(OSError, termios.error):
            self._write(LEAVE)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._in, termios.TCSAFLUSH, self._saved)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)  # It goes on here, after SIGCONT.
        self._take()

    def wake(self) -> None:
        """Have `wait` return; from any thread."""
        with contextlib.suppress(OSError):  # It is full, or nobody waits any more.
            os.write(self._wake, b"\0")

    def size(self) -> tuple[int, int]:
        """(columns, lines)"""
        with contextlib.suppress(OSError):
            columns, lines = os.get_terminal_size(self._out)
            if columns and lines:
                return columns, lines
        return 80, 24

    def show(self, lines: list[str]) -> None:
        """Draw these lines over the ones before; as many as there is room for."""
        _, height = self.size()
        page = "\n".join(line + REST_OF_LINE for line in lines[:height])
        self._write(HOME + page + REST_OF_PAGE)

    def _write(self, text: str) -> None:
        """Past Python's buffer, which a signal's handler may not enter while it is written out."""
        left = memoryview(text.encode())
        while left:
            left = left[os.write(self._out, left) :]

    def wait(self, seconds: float) -> str:
        """The next key: a character, or a name of `KEYS`. Empty: none came, or `wake` or a signal ended the wait."""
        until = now_seconds() + seconds
        while not self._typed:
            ready, _, _ = select.select([self._in, self._woken], [], [], max(0.0, until - now_seconds()))
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            if self._in in ready:
                self._read()
            elif ready or now_seconds() >= until:
                return ""
        return self._next()

    def _read(self) -> None:
        typed = os.read(self._in, 1024)
        if not typed:
            raise Ended(signal.SIGHUP)  # The terminal is gone.
        self._typed += typed.decode(errors="ignore")

    def _next(self) -> str:
        if self._typed == "\x1b" and select.select([self._in], [], [], ESCAPE_SECONDS)[0]:
            self._read()
        for sequence, name in KEYS.items():
            if self._typed.startswith(sequence):
                self._typed = self._typed[len(sequence) :]
                return name
        key, self._typed = self._typed[0], self._typed[1:]
        return key


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)
