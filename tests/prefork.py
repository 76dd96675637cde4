"""Processes for tests that start at once: forked from one that has imported everything already.

Python needs most of a second to import what a master is made of, and the suites start hundreds of masters, nodes and
commands. A fork server has done that once. The life of a process that it makes:

1. The test asks over a socket: command, directory, environment, and the descriptors for 0, 1 and 2.
2. The server forks a process that forks the wanted one and ends. The kernel hands the orphan to the nearest ancestor
   that adopts orphans, which the test's process does for this moment: the new process is its own child, like one that
   it had started itself. It can be waited for, its parent is who it expects, it dies with it.
3. The new process, told to go on, puts descriptors, directory, environment and arguments in place and runs the
   module as `python -m` does. Sockets, threads and loops are all its own: the server has none.

Tests of the command line itself and of `holdfast up` start real commands, and so does everything in a namespace.
`COLD_START=1` makes every test do so.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PR_SET_CHILD_SUBREAPER = 36
ANSWER_S = 60.0
LENGTH = struct.Struct("!I")
NUMBER = struct.Struct("!i")

# Whatever a process imports. Nothing here may start a thread or a loop: the server checks that it has one thread.
WARM = (
    "fastapi.openapi.utils",
    "grpc.aio",
    "holdfast.cli.app",
    "holdfast.cli.processes.logs",
    "holdfast.client.async_cache",
    "holdfast.coordination.etcd.backend",
    "holdfast.coordination.memory",
    "holdfast.coordination.sqlite.backend",
    "holdfast.coordination.zookeeper.backend",
    "holdfast.master.process",
    "holdfast.node.process",
    "holdfast.replication.shared_snapshots",
    "rich.console",
    "uvloop",
)


class Request(NamedTuple):
    module: str
    arguments: list[str]
    directory: str
    environment: dict[str, str]
    new_session: bool
    standard: list[int]
    """Which of 0, 1 and 2 come as descriptors with the request; the others are the server's."""


class Server:
    """The fork server, as the process that it works for sees it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_S)
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.prefork", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                # One thread is all it may have; a library of linear algebra starts one per core.
                env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
            )

    def fork(self, request: Request, descriptors: Sequence[int]) -> int:
        """The number of the new process, which is this one's child."""
        content = json.dumps(request).encode()
        with self._lock, adopting_orphans():
            socket.send_fds(self._socket, [LENGTH.pack(len(content))], descriptors)
            self._socket.sendall(content)
            answer = self._socket.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(answer) < NUMBER.size:
            raise ChildProcessError(f"the fork server ended with {self._process.wait(ANSWER_S)}")
        return int(NUMBER.unpack(answer)[0])

    def close(self) -> None:
        self._socket.close()
        self._process.wait(ANSWER_S)


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Only for a moment: other tests' orphans, once adopted, would stay as zombies that nobody waits for."""
    _adopt(True)
    try:
        yield
    finally:
        _adopt(False)


def _adopt(orphans: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused to change who adopts orphans")


_server: Server | None = None
_allowed = False


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Within, `Popen` forks; the server is started when it is first needed."""
    global _server, _allowed
    _allowed = os.environ.get("COLD_START", "") in {"", "0"}
    try:
        yield
    finally:
        _allowed = False
        if _server is not None:
            _server.close()
            _server = None


class Popen(subprocess.Popen[Any]):
    """`python -m MODULE` from the fork server, where that is allowed; any other command as ever."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *more: Any) -> None:
        """What starts the process, once there are pipes. Private to subprocess, the same in Python 3.11 to 3.14."""
        global _server
        command = list(args)
        (_, _, directory, environment, _, _, _, stdin, _, _, stdout, _, stderr, *rest) = more
        if not _allowed or command[:2] != [sys.executable, "-m"]:
            super()._execute_child(args, executable, preexec_fn, *more)
            return
        if _server is None:
            _server = Server()
        given = {number: fd for number, fd in enumerate((stdin, stdout, stderr)) if fd != -1}
        request = Request(
            module=command[2],
            arguments=command[3:],
            directory=str(directory or os.getcwd()),
            environment=dict(environment if environment is not None else os.environ),
            new_session=bool(rest[5]),
            standard=list(given),
        )
        self.pid = _server.fork(request, list(given.values()))
        self._child_created = True
        self._close_pipe_fds(*more[7:13])


def holdfast(*arguments: str, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
    """The command line with these arguments, until it ends."""
    command = [sys.executable, "-m", "holdfast", *arguments]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, **streams) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def serve(requests: socket.socket) -> Request | None:
    """Fork for every request until nobody asks any more. Returns a request in the process that is to run it."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(requests, LENGTH.size, 3)
        if not head:
            return None
        request = Request(*json.loads(requests.recv(*LENGTH.unpack(head), socket.MSG_WAITALL)))
        pid = _fork_orphan()
        if pid == 0:
            requests.close()
            _settle_in(request, descriptors)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        requests.sendall(NUMBER.pack(pid))


def _fork_orphan() -> int:
    """Its number, and 0 in it, once it has been adopted."""
    told, tell = os.pipe()
    adopted, adopt = os.pipe()
    middle = os.fork()
    if middle == 0:
        orphan = os.fork()
        if orphan != 0:
            os.write(tell, NUMBER.pack(orphan))
            os._exit(0)
        for descriptor in (told, tell, adopt):
            os.close(descriptor)
        os.read(adopted, 1)  # Until the server, who alone holds the other end, closes it.
        os.close(adopted)
        return 0
    os.waitpid(middle, 0)
    number = int(NUMBER.unpack(os.read(told, NUMBER.size))[0])
    for descriptor in (told, tell, adopted, adopt):
        os.close(descriptor)
    return number


def _settle_in(request: Request, descriptors: Sequence[int]) -> None:
    if request.new_session:
        os.setsid()
    for number, descriptor in zip(request.standard, descriptors, strict=True):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None
    sys.argv = [request.module, *request.arguments]
    sys.orig_argv = [sys.executable, "-m", request.module, *request.arguments]


def main() -> None:
    # Ctrl-C is for the tests, which then close the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=int(sys.argv[1]))
    from holdfast.cli.app import app_for

    for name in WARM:
        importlib.import_module(name)
    app_for([])  # Every verb.
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"a fork copies one thread, and there are {len(threads)}"
    gc.collect()
    gc.freeze()  # The collector of a child would write to every page that it shares with this process.
    request = serve(requests)
    if request is not None:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
