"""A real cluster to be tormented: its processes can be killed, stopped, continued and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import SOURCE, Cluster
from holdfast.messages.requests import Status
from tests import prefork
from tests.waiting import stop_all_threads, wait_until

SCRIPTS = Path(__file__).parent / "scripts"


class Rig(Cluster):
    _popen = prefork.Popen

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def pause(self, process: subprocess.Popen[bytes]) -> None:
        stop_all_threads(process)

    def restart_master(self) -> None:
        """kill -9, then a new master at the same address."""
        self.kill(self.master)
        self.start_master()

    def status(self) -> Status:
        with self.connect() as cache:
            return cache.status()

    def wait_for_nodes(self, count: int) -> None:
        def answered() -> bool:
            with self.connect() as cache:
                return sum(node.available for node in cache.nodes().nodes) == count

        wait_until(answered, what=f"{count} nodes are available")

    @contextmanager
    def script(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A child process that runs one of the scripts against this cluster; killed at the end."""
        child = subprocess.Popen(
            [sys.executable, str(SCRIPTS / f"{name}.py"), self.address, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
        try:
            yield child
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.communicate()


def said(child: subprocess.Popen[str]) -> str:
    """The next line that the script prints."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


@contextmanager
def raw_connection(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        yield connection
