"""`global_segment_size`: the memory that an engine's process lends to the cluster, as a node that lives with it.

In Mooncake every client lends memory, which is gone with it. In holdfast nodes lend memory and live apart from engines,
so that the cache outlives their restarts. What `setup` does with a size is decided by HOLDFAST_MOONCAKE_SEGMENTS:

    auto    (the default) declined where the cluster has nodes of its own, since these hold what must outlive engines;
            where all memory is lent by engines, or none, a node of this size is started
    on      a node is started
    off     none is started

The node is a child process: it ends with `close()`, and with the process that started it, however that ends.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

from holdfast.instant import now_seconds
from holdfast.messages.requests import NodeInfo

log = logging.getLogger("holdfast.mooncake")

LENT_BY_ENGINE = "engine-"
"""The prefix of such nodes' names, which distinguishes them from nodes that outlive engines."""
PARENT = "HOLDFAST_PARENT_PID"
"""As `holdfast node` reads it: the process to die with."""
NEEDED = ("numpy", "typer", "rich", "pydantic_settings", "structlog")
"""Of the server extra, without which no node can be started."""
START_WITHIN_S = 30.0
STOP_WITHIN_S = 10.0
LEAST_BYTES = 1 << 20


def node_name(hostname: str) -> str:
    """The name of a client's own node, from its `host:port`; the process id makes it unique, as the name of a dead node
    is not free at once."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", hostname).strip("-") or "host"
    return f"{LENT_BY_ENGINE}{plain[:36]}-{os.getpid()}"


def node_prefix(segment: str) -> str:
    """The prefix of the names of nodes that a client with this `host:port` started."""
    return node_name(segment).rpartition("-")[0] + "-"


def declined(mode: str, nodes: Iterable[NodeInfo], size_bytes: int) -> str:
    """Why no node is started; empty: one is."""
    if mode == "off":
        return "HOLDFAST_MOONCAKE_SEGMENTS is off"
    apart = [node.name for node in nodes if not node.name.startswith(LENT_BY_ENGINE)]
    if mode == "auto" and apart:
        return f"the cluster has nodes of its own ({', '.join(sorted(apart)[:3])}), whose memory outlives engines"
    if size_bytes < LEAST_BYTES:
        return f"{size_bytes:,} bytes are less than a node can lend"
    if os.environ.get("HOLDFAST_TLS_CA") and not os.environ.get("HOLDFAST_TLS_CERT"):
        return "TLS is on, and a node needs a certificate to present (HOLDFAST_TLS_CERT)"
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"the server extra (holdfast[server]) is not installed here: {', '.join(missing)} missing" if missing else ""


class EngineNode:
    """A node as a child process, from `start` until `stop`.

    The kernel ends the child with the thread that started it, not with the process. So a thread of its own starts it,
    and lives as long as the node shall."""

    def __init__(self, name: str, address: str, host: str, size_bytes: int) -> None:
        self.name = name
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-node-"))
        self._ready_file = self._folder / "ready.json"
        listen = f"[{host}]:0" if ":" in host else f"{host}:0"
        self._command = [
            *(sys.executable, "-m", "holdfast", "node", "--name", name, "--address", address, "--listen", listen),
            *("--size", str(size_bytes), "--ready-file", str(self._ready_file), "--log-level", "warning"),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"holdfast {name}", daemon=True)

    def start(self) -> bool:
        """Returns when it serves; False: it does not, and what it said is on stderr."""
        self._thread.start()
        deadline = now_seconds() + START_WITHIN_S
        while not self._ready_file.exists():
            if not self._thread.is_alive() or now_seconds() > deadline:
                self.stop()
                return False
            self._stopping.wait(0.02)
        return True

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def _live(self) -> None:
        environment = {**os.environ, PARENT: str(os.getpid())}
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
        except OSError as error:
            log.error("the node %s cannot be started: %s", self.name, error)
            return
        code = self._process.wait()
        if not self._stopping.is_set():
            log.error("the node %s ended by itself (exit code %d); what it held is lost", self.name, code)

    def stop(self) -> None:
        """End it with SIGTERM, so that it says goodbye to the masters; kill it if it does not end."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            self._thread.join(STOP_WITHIN_S)
            if self._thread.is_alive():
                process.kill()
        if self._thread.is_alive():
            self._thread.join(STOP_WITHIN_S)
        shutil.rmtree(self._folder, ignore_errors=True)
