"""The steps of docs/upgrades.md, and clients of a release that are at work meanwhile."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast.messages.of_masters import HandOver
from holdfast.messages.requests import ChangeMode, Done
from tests.failover.cluster import Cluster, Process, call
from tests.failover.releases import Release
from tests.waiting import wait_until

CLIENT = str(Path(__file__).parent / "scripts" / "client_at_work.py")
STEP_S = 60.0
STOP_S = 5.0


class ClientAtWork:
    """A process of a release that runs `client_at_work.py`."""

    def __init__(self, release: Release, address: str, name: str, shared: bool, token_file: str = "") -> None:
        self.release = release
        command = release.command(CLIENT, address, name, "shared" if shared else "tcp", token_file)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=release.environment, text=True
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.last = ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def goes_on(self) -> None:
        """Wait until it has made ten steps more, from now on."""
        for _ in range(self._lines.qsize() + 2):
            self.last = self._lines.get(timeout=STEP_S)
            if not self.last.strip().isdigit():
                pytest.fail(f"{self.release.version}: {self.last}")

    def end(self) -> dict[str, Any]:
        """Its verdict."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(STEP_S) == 0
        self._reader.join(STEP_S)
        while not self._lines.empty():
            self.last = self._lines.get()
        verdict: dict[str, Any] = json.loads(self.last)
        return verdict

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(STEP_S)
        self._reader.join(STEP_S)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


@contextlib.contextmanager
def with_nodes_of(release: Release, cluster: Cluster) -> Iterator[None]:
    """Its masters, and two nodes beside them, as processes of that release."""
    for master in cluster.masters:
        master.release = release
    with cluster:
        for name in ("node-1", "node-2"):
            node = cluster.new_process("node", name, "--address", cluster.address, "--size", "256MiB")
            node.release = release
            cluster.nodes.append(node)
            node.start()
        for node in cluster.nodes:
            node.wait_until_ready()
        yield


def end(process: Process) -> None:
    """Have it end. A master of release 0.2.0 may miss the signal in the moment in which it sees that another one leads;
    then it is killed, as every service manager does."""
    if process.release.version != "0.2.0":
        assert process.stop() == 0
        return
    process.process.terminate()
    try:
        assert process.process.wait(STOP_S) == 0
    except subprocess.TimeoutExpired:
        process.kill()


def replace_master(master: Process, release: Release) -> None:
    """Stop it, and start it as another release; until it could take over."""
    end(master)
    master.release = release
    master.start()
    master.wait_until_ready()
    wait_until(lambda: master.status().get("promotable"), STEP_S, "the replaced master follows the log")
    assert master.status()["version"] == release.version


def hand_over(cluster: Cluster, primary: Process) -> Process:
    with primary.channel() as channel:
        assert isinstance(call(channel, HandOver()), Done)
    return cluster.primary(but=primary)


def replace_masters(cluster: Cluster, release: Release) -> None:
    """Standbys first; then the primary hands over and is replaced."""
    primary = cluster.primary()
    for standby in [one for one in cluster.masters if one is not primary]:
        replace_master(standby, release)
    hand_over(cluster, primary)
    wait_until(lambda: primary.status().get("promotable"), STEP_S, "the former primary follows")
    replace_master(primary, release)


def change_mode(cluster: Cluster, node: str, mode: str) -> None:
    with cluster.primary().channel() as channel:
        assert isinstance(call(channel, ChangeMode(node, mode), STEP_S), Done)


def is_empty(cluster: Cluster, name: str) -> bool:
    with cluster.connect() as cache:
        found = next(node for node in cache.nodes().nodes if node.name == name)
    return found.mode == "draining" and not found.bytes_left and not found.objects_left


def replace_nodes(cluster: Cluster, release: Release) -> None:
    """Each is emptied before it is stopped, and takes objects again after."""
    for number, node in enumerate(cluster.nodes):
        name = f"node-{number + 1}"
        change_mode(cluster, name, "draining")
        wait_until(lambda name=name: is_empty(cluster, name), STEP_S, f"{name} is empty")
        end(node)
        node.release = release
        node.start()
        node.wait_until_ready()
        change_mode(cluster, name, "open")
