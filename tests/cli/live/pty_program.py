"""A command of ours on a terminal of the test's own: what it draws is read, and keys are typed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from typing import Any, Self

from benchmarks.processes import SOURCE
from tests.waiting import wait_until

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
DRAWN_S = 60.0


class PtyProgram:
    """`holdfast ARGUMENTS` on a terminal of this size."""

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(columns, lines)
        self.settings = self.terminal_settings()
        self.written = ""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "holdfast", *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env={**os.environ, "PYTHONPATH": SOURCE, "TERM": "xterm", "COLUMNS": "", "LINES": ""},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def terminal_settings(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self) -> str:
        """All that it has written so far."""
        while select.select([self.master], [], [], 0)[0]:
            with contextlib.suppress(OSError):
                self.written += os.read(self.master, 65536).decode(errors="replace")
        return self.written

    def page(self) -> list[str]:
        """The lines of the last page that was drawn to its end."""
        pages = self.read().split("\x1b[H")
        whole = [page for page in pages[1:] if "\x1b[J" in page]
        if not whole:
            return []
        return ESCAPES.sub("", whole[-1].partition("\x1b[J")[0]).split("\r\n")

    def until(self, part: str, within_s: float = DRAWN_S) -> list[str]:
        """The first page with this in it."""

        def found() -> list[str] | None:
            assert self.process.poll() is None, f"it ended: {self.read()[-2000:]}"
            page = self.page()
            return page if any(part in line for line in page) else None

        try:
            page = wait_until(found, within_s, f"{part!r} is shown")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.page()])) from None
        assert page is not None
        return page

    def end(self, how: int | str) -> int:
        """Its exit code, after a signal, or these keys."""
        if isinstance(how, str):
            self.type(how)
        else:
            self.process.send_signal(how)
        wait_until(lambda: (self.read(), self.process.poll() is not None)[1], DRAWN_S, "it ends")
        self.read()
        return self.process.returncode

    def is_given_back(self) -> bool:
        """The first screen, a visible cursor and the settings that there were."""
        return (
            self.read().rfind("\x1b[?1049l") > self.written.rfind("\x1b[?1049h")
            and self.written.rfind("\x1b[?25h") > self.written.rfind("\x1b[?25l")
            and self.terminal_settings() == self.settings
        )
