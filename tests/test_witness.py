"""When a process may say that another one has ended: only about its own machine, and never about one that may go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import witness
from holdfast.ids import ProcessName
from holdfast.witness import can_see, is_gone, this_process
from tests.namespaces import APART, needs_namespaces
from tests.waiting import wait_until

NAME_YOURSELF = "from holdfast.witness import this_process; print(*this_process(), sep='|', flush=True);"


@contextmanager
def named_process(*before: str, then: str = "input()") -> Iterator[tuple[subprocess.Popen[str], ProcessName]]:
    """A process and the name that it gives itself."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", NAME_YOURSELF + then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(witness.__file__).parents[1])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pid, started, machine = process.stdout.readline().strip().split("|")
        yield process, ProcessName(int(pid), int(started), machine)
    finally:
        process.kill()
        process.wait(20)
        process.stdin.close()
        process.stdout.close()


def test_a_process_is_gone_when_it_was_killed_before_its_parent_has_waited_for_it() -> None:
    with named_process() as (process, name):
        assert can_see(name)
        assert not is_gone(name)
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: is_gone(name), what="the killed process is gone")
        assert process.returncode is None, "nobody has waited for it: it is a zombie"
        process.wait(20)
        assert is_gone(name)


def test_a_stopped_process_is_not_gone() -> None:
    with named_process() as (process, name):
        process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="it has stopped")
        assert not is_gone(name)


def test_a_process_that_became_another_program_is_not_gone() -> None:
    program = (
        "import os, sys; input(); os.execv(sys.executable, [sys.executable, '-c', 'print(1, flush=True); input()'])"
    )
    with named_process(then=program) as (process, name):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("become another\n")
        process.stdin.flush()
        assert process.stdout.readline() == "1\n"
        assert not is_gone(name)


def test_a_process_whose_first_thread_has_ended_is_not_gone() -> None:
    """The kernel shows it as a zombie, and yet its other threads run."""
    program = (
        "import ctypes, threading; threading.Thread(target=lambda: (print(1, flush=True), input())).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with named_process(then=program) as (process, name):
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", what="its first thread has ended")
        assert not is_gone(name)


def test_a_number_that_was_given_to_another_process_means_that_the_first_is_gone() -> None:
    here = this_process()
    assert not is_gone(here)
    assert is_gone(here._replace(started=here.started - 1))


def test_nothing_is_said_of_a_process_that_is_not_shown() -> None:
    """hidepid: that /proc does not show a process says nothing, as long as its number is taken."""

    class Hiding(witness.KernelSight):
        def see(self, pid: int) -> witness.Seen | None:
            seen = super().see(pid)
            return seen._replace(started=0) if seen is not None else None

    here = this_process()
    witness.see_through(Hiding())
    try:
        assert not is_gone(here)
    finally:
        witness.see_through(witness.KERNEL)


def test_nothing_is_said_of_a_process_of_another_machine_or_of_no_known_one() -> None:
    here = this_process()
    for machine in ("", "another boot", here.machine.replace("pid:[", "pid:[1")):
        name = ProcessName(1 << 21, 1, machine)
        assert not can_see(name)
        assert not is_gone(name)


@needs_namespaces
def test_a_process_of_another_namespace_says_nothing() -> None:
    with named_process(*APART) as (process, name):
        assert name.pid == 1
        assert name.machine
        assert not can_see(name)
        process.kill()
        process.wait(20)
        assert not is_gone(name)


@needs_namespaces
def test_a_process_that_sees_the_numbers_of_another_namespace_has_no_machine() -> None:
    """Its /proc is of the namespace outside: what that shows of a number is of another process."""
    with named_process("unshare", "--pid", "--fork", "--kill-child") as (_, name):
        assert (name.pid, name.machine) == (1, "")
