"""How tests wait: for a condition, threads or a child, with a deadline, never for a while."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast.errors import ClientClosed

Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found], deadline_s: float = 20.0, what: str = "") -> Found:
    """What the condition gives, once that is true in a boolean sense; AssertionError at the deadline."""
    give_up_at = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > give_up_at:
            raise AssertionError(f"not within {deadline_s:g} s: {what or condition}")
        time.sleep(0.01)


def run_together(threads: Sequence[threading.Thread], deadline_s: float = 60.0) -> None:
    """Start them all, and wait for the end of each."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline_s)
        assert not thread.is_alive()


def check_closed_in_a_child(call: Callable[[], object], close: Callable[[], object]) -> None:
    """In a forked child the call is refused by name, and closing does no harm."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                call()
            except ClientClosed as error:
                code = 0 if "in the child" in str(error) else 2
            close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def stop_all_threads(process: subprocess.Popen[bytes]) -> None:
    """SIGSTOP; returns when every thread stands still, and none can answer any more."""
    process.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{process.pid}/task")

    def stopped() -> bool:
        states = [thread.read_text().rpartition(")")[2].split()[0] for thread in threads.glob("*/stat")]
        return all(state == "T" for state in states)

    wait_until(stopped, what="every thread has stopped")


async def closed_by_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """It is, within a time that only a hanging peer exceeds."""
    try:
        async with asyncio.timeout(60):
            await reader.read()
    except OSError:
        pass
    writer.close()
    return True
