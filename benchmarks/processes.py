"""A real master and real nodes, as processes, for as long as a `with` block."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import holdfast
from holdfast.cli.processes.run import PARENT
from holdfast.client.cache import Cache
from tests.waiting import wait_until

SOURCE = str(Path(holdfast.__file__).parents[1])
START_WITHIN_S = 60.0
STOP_WITHIN_S = 15.0


class Cluster:
    """Masters and their nodes. Without `coordination` there is one master, and its log is in memory."""

    _popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen

    def __init__(self, size: str, nodes: int = 1, masters: int = 1, coordination: str = "", **master: object) -> None:
        self._size = size
        self._nodes = nodes
        self._masters = masters
        self._coordination = coordination
        self._flags = [part for name, value in master.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        self._started: list[subprocess.Popen[bytes]] = []
        self.masters: dict[str, tuple[subprocess.Popen[bytes], dict[str, str]]] = {}
        """By name: the process and what its ready file says."""
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.last_start_s = 0.0
        """How long the last process took until it served."""
        self._token = str(master.get("token", ""))
        self._settings = {name: value for name, value in os.environ.items() if name.startswith("HOLDFAST_")}
        """All processes of one cluster have the settings that were in force when it began, also those started later."""
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-bench-")

    def __enter__(self) -> Self:
        try:
            if self._coordination == "sqlite":
                self._coordination = f"sqlite:///{self._folder.name}/cluster.db"
            for number in range(self._masters):
                self.start_master(f"master-{number}")
            for number in range(self._nodes):
                self.add_node(f"bench-{number}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            process.terminate()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_WITHIN_S)
        self._folder.cleanup()

    @property
    def folder(self) -> str:
        return self._folder.name

    @property
    def address(self) -> str:
        return ",".join(facts["address"] for _, facts in self.masters.values())

    @property
    def master(self) -> subprocess.Popen[bytes]:
        """The only one."""
        return self.masters["master-0"][0]

    def start_master(self, name: str = "master-0") -> dict[str, str]:
        """At any free port, or again at the one it had."""
        listen = self.masters[name][1]["address"] if name in self.masters else "127.0.0.1:0"
        flags = ["--http", "127.0.0.1:0", "--name", name, *self._flags]
        if self._coordination:
            flags += ["--coordination", self._coordination, "--data-dir", f"{self._folder.name}/{name}"]
        facts = self._start("master", *flags, listen=listen)
        self.masters[name] = (self._started[-1], facts)
        return facts

    def add_node(self, name: str, *more: str) -> None:
        flags = [*more, "--token", self._token] if self._token else [*more]
        self._start("node", "--address", self.address, "--size", self._size, "--name", name, *flags)
        self.nodes.append(self._started[-1])

    def connect(self, **options: Any) -> Cache:
        return holdfast.connect(self.address, **{"timeout": 60, **options})

    def connect_warm(self, **options: Any) -> Cache:
        """A client that has been at work for a moment. One that has just mapped a node's memory fills in its page
        tables in the background, which takes a core for a second."""
        cache = self.connect(**options)
        cache.put("warm", b"up")
        cache.get("warm")
        cache.remove("warm", force=True)
        wait_until_mapped()
        return cache

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._started]

    def master_rss(self) -> int:
        return memory_of(self.master.pid)

    def _start(self, kind: str, *flags: str, listen: str = "127.0.0.1:0") -> dict[str, str]:
        ready = Path(self._folder.name) / f"{kind}-{len(self._started)}.json"
        log = ready.with_suffix(".log")
        paths = [SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("wb") as output:
            process = self._popen(
                [sys.executable, "-m", "holdfast", kind, "--listen", listen, "--ready-file", str(ready), *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    **self._settings,
                    "PYTHONPATH": os.pathsep.join(paths),
                    PARENT: str(os.getpid()),
                    "HOLDFAST_LOG_LEVEL": "warning",
                },
            )
        self._started.append(process)
        began = time.monotonic()
        deadline = began + START_WITHIN_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the {kind} did not start:\n{log.read_text()}")
            time.sleep(0.02)
        self.last_start_s = time.monotonic() - began
        facts: dict[str, str] = json.loads(ready.read_text())
        return facts


@contextlib.contextmanager
def apart(servers: list[int]) -> Iterator[None]:
    """This process on a core of its own, the servers on the others.

    Left to itself the scheduler puts a lone client and its server on one core, or on two, as it likes, and waking
    the other core can cost several times the work: a ratio of two such measurements is a throw of dice.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        _place(os.getpid(), {cores[0]})
        for pid in servers:
            _place(pid, set(cores[1:]))
    try:
        yield
    finally:
        for pid in [os.getpid(), *servers]:
            _place(pid, set(cores))


def _place(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        # A thread that has ended since needs no place.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def wait_until_mapped() -> None:
    """Until this process's clients have filled in the page tables of what they have mapped."""
    wait_until(lambda: not any(thread.name == "populate" for thread in threading.enumerate()), 60, "all is mapped")


def memory_of(pid: int | str = "self", field: str = "VmRSS") -> int:
    """Bytes of a process's memory, as the kernel counts them."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None, f"{field} is not in /proc/{pid}/status"
    return int(found[1]) * 1024
