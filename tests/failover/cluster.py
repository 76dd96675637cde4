"""Masters and nodes as real processes on one coordination backend, to be killed, stopped and started again.

`verify` is what every story ends with: nothing that was acknowledged is lost (I1), what was removed is gone (I7), the
masters hold the same catalogue at the same record (I5), and the memory is accounted for to the last byte (I9).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import holdfast
from holdfast.cli.processes.run import PARENT
from holdfast.client.cache import Cache
from holdfast.instant import now_seconds
from holdfast.messages.requests import Hello
from holdfast.messages.shapes import Message
from holdfast.transport.channel import Channel
from tests import prefork
from tests.failover.releases import THIS
from tests.namespaces import APART
from tests.ports import free_ports
from tests.waiting import stop_all_threads, wait_until

SOURCE = THIS.source
KEYS_AT_ONCE = 1_000
START_S = 60.0
SETTLE_S = 40.0
STOP_S = 15.0
LEASE_S = 2.0


class Process:
    """One process of the cluster; started again, it has the port that it had."""

    def __init__(
        self, kind: str, folder: Path, *flags: str, host: str = "127.0.0.1", within: Sequence[str] = ()
    ) -> None:
        """`within` is the beginning of its command line: what puts it into a namespace, for example."""
        self.kind = kind
        self._within = within
        self.folder = folder
        self.flags = flags
        # Not any free port: while it is dead, the kernel would give that one to somebody else's connection.
        self.address, self.http = [f"{host}:{port}" for port in free_ports(2)]
        self.ready_file = folder / "ready.json"
        self.log_file = folder / "log"
        folder.mkdir(parents=True, exist_ok=True)
        self.release = THIS
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns at once; `wait_until_ready` waits."""
        assert not self.alive, "it runs already"
        self.ready_file.unlink(missing_ok=True)
        flags = ["--listen", self.address, "--ready-file", str(self.ready_file), *self.flags]
        flags += ["--http", self.http] if self.kind == "master" else []
        # A namespace has addresses that look like those of other machines.
        flags += [] if self.address.startswith("127.") else ["--insecure"]
        with self.log_file.open("ab") as output:
            self._process = prefork.Popen(
                [*self._within, *self._python(), "-m", "holdfast", self.kind, *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self.release.environment, PARENT: str(os.getpid())},
                # Ctrl-C is for whoever started it, who then ends it.
                start_new_session=True,
            )

    def _python(self) -> list[str]:
        # The fork server has imported this release, and so serves no other.
        return [sys.executable] if self.release is THIS else self.release.command()

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert self.alive, f"the {self.kind} ended:\n{self.said()[-3000:]}"
            return self.ready_file.exists()

        wait_until(ready, START_S, f"the {self.kind} in {self.folder.name} is ready")
        facts = json.loads(self.ready_file.read_text())
        self.address = facts.get("address") or facts["data_address"]
        self.http = facts.get("http", "")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_S)

    def pause(self) -> None:
        stop_all_threads(self.process)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM, and the exit code; killed if it does not end."""
        self.process.terminate()
        self.process.send_signal(signal.SIGCONT)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the {self.kind} did not end:\n{self.said()[-3000:]}") from None

    def said(self) -> str:
        return self.log_file.read_text(errors="replace")

    def status(self) -> dict[str, Any]:
        """What a master says of itself over HTTP; empty when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/api/v1/status", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (urllib.error.URLError, OSError):  # Dead, stopped, or about to be.
            return {}

    def readiness(self) -> tuple[bool, str]:
        """Whether a master says at `/readyz` that it serves, and why (not)."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/readyz", timeout=5) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                said = json.load(refused)
        return said["ready"], said["reason"]

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.split()[0] == name))

    @contextlib.contextmanager
    def channel(self, client: int = 0, control: bool = False, looks: bool = False) -> Iterator[Channel]:
        """A raw connection to this very master."""
        hello = Hello(client or secrets.randbits(63) | 1, control=control, looks=looks)
        channel = Channel.open(self.address, hello, now_seconds() + 10)
        try:
            yield channel
        finally:
            channel.close()


def call(channel: Channel, message: Message, within_s: float = 10.0) -> Message:
    return channel.call(message, now_seconds() + within_s)


class Cluster:
    def __init__(
        self,
        folder: Path,
        url: str,
        masters: int = 2,
        nodes: int = 1,
        leader_ttl_ms: int = 1_500,
        lease_ttl_ms: int = int(1000 * LEASE_S),
        size: str = "256MiB",
        apart: tuple[str, ...] = (),
        **more: object,
    ) -> None:
        self.url = url
        self.leader_ttl_s = leader_ttl_ms / 1000
        timing = ["--leader-ttl-ms", str(leader_ttl_ms), "--lease-ttl-ms", str(lease_ttl_ms)]
        timing += [part for name, value in more.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        self._folder = folder
        self._size = size
        self._apart = apart
        """Names of processes that run in process namespaces of their own, where nobody sees whether others live."""
        self._master_flags = ["--coordination", url, *timing]
        self.masters = [self.new_master(f"master-{number + 1}") for number in range(masters)]
        self.nodes: list[Process] = []
        self._node_count = nodes

    def new_process(self, kind: str, name: str, *flags: str) -> Process:
        return Process(kind, self._folder / name, "--name", name, *flags, within=APART if name in self._apart else ())

    def new_master(self, name: str) -> Process:
        data = self._folder / name / "data"
        return self.new_process("master", name, "--data-dir", str(data), *self._master_flags)

    def __enter__(self) -> Self:
        try:
            for master in self.masters:
                master.start()
            for master in self.masters:
                master.wait_until_ready()
            for number in range(self._node_count):
                self.add_node(f"node-{number + 1}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Everything is killed, also what is stopped: an orderly end is a story of its own."""
        for process in [*self.nodes, *self.masters]:
            if process.alive:
                process.kill()

    def add_node(self, name: str, *more: str) -> None:
        node = self.new_process("node", name, "--address", self.address, "--size", self._size, *more)
        self.nodes.append(node)
        node.start()
        node.wait_until_ready()

    @property
    def address(self) -> str:
        return ",".join(master.address for master in self.masters)

    def connect(self, address: str = "", **options: Any) -> Cache:
        return holdfast.connect(address or self.address, **{"timeout": 30, **options})

    def primaries(self, but: Process | None = None) -> list[Process]:
        asked = [one for one in self.masters if one.alive and one is not but]
        return [one for one in asked if one.status().get("role") == "primary"]

    def primary(self, but: Process | None = None) -> Process:
        """The primary, once there is one that answers, other than the one given."""

        def found() -> Process | None:
            return next(iter(self.primaries(but)), None)

        leader = wait_until(found, SETTLE_S, "there is a primary")
        assert leader is not None
        return leader

    def standby(self) -> Process:
        """A standby that could take over now."""

        def found() -> Process | None:
            return next((one for one in self.masters if one.alive and one.status().get("promotable")), None)

        ready = wait_until(found, SETTLE_S, "there is a promotable standby")
        assert ready is not None
        return ready

    def heal(self) -> None:
        """Whatever the last story did: everything runs, one leads, the others could."""
        self.revive()
        self.settle()

    def revive(self) -> None:
        """Everything runs."""
        for process in [*self.masters, *self.nodes]:
            if process.alive:
                process.resume()
            else:
                process.start()
        for process in [*self.masters, *self.nodes]:
            process.wait_until_ready()

    def settle(self) -> dict[str, Any]:
        """Until one leads, the others could, the nodes are back, and the masters stand at the same record."""

        def settled() -> dict[str, Any] | None:
            found = [one.status() for one in self.masters if one.alive]
            leaders = [status for status in found if status.get("role") == "primary"]
            if len(leaders) != 1 or not all(found):
                return None
            leader = leaders[0]
            standbys = [status for status in found if status is not leader]
            at_the_same = all(one["applied_index"] == leader["applied_index"] for one in standbys)
            quiet = leader["applied_index"] == leader["durable_index"]
            return {"leader": leader, "standbys": standbys} if at_the_same and quiet else None

        self._wait_while_the_log_grows(settled)
        with self.connect() as cache:
            wait_until(
                lambda: sum(node.available for node in cache.nodes().nodes) == len(self.nodes),
                SETTLE_S,
                "the nodes are back",
            )
        return self._wait_while_the_log_grows(settled)

    def _wait_while_the_log_grows(self, settled: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        """Lost replicas are made again and objects are saved to disks, which takes a busy machine minutes: no harm, as
        long as it goes on."""
        for _ in range(10):
            before = self._log_end()
            try:
                found = wait_until(settled, SETTLE_S, "the masters agree on who leads and where the log ends")
            except AssertionError:
                if self._log_end() <= before:
                    raise
                continue
            assert found is not None
            return found
        raise AssertionError(f"the log still grows after {10 * SETTLE_S:g} s")

    def _log_end(self) -> int:
        """The last record that any master has applied."""
        return max((int(one.status().get("applied_index", 0)) for one in self.masters if one.alive), default=0)

    def verify(self, acked: Mapping[str, bytes], removed: set[str]) -> None:
        keys = list(acked)
        with self.connect() as cache:
            for start in range(0, len(keys), KEYS_AT_ONCE):
                some = keys[start : start + KEYS_AT_ONCE]
                found = cache.get_many(some)
                lost = [key for key in some if key not in found]
                assert not lost, f"acknowledged and lost: {len(lost)} of {len(some)}, such as {cache.explain(lost[0])}"
                wrong = [key for key in some if found[key] != acked[key]]
                assert not wrong, f"other bytes than were put: {wrong[:5]}"
            gone = sorted(removed)
            back = [key for key, there in zip(gone, cache.exists_many(gone), strict=True) if there]
            assert not back, f"removed and back again: {back[:5]}"
        self._verify_masters(len(keys))

    def _verify_masters(self, at_least: int) -> None:
        def agreed() -> bool:
            found = self.settle()
            leader, standbys = found["leader"], found["standbys"]
            assert {one["digest"] for one in standbys} <= {leader["digest"]}, (
                "catalogues differ at the same record (I5)"
            )
            assert leader["objects"] >= at_least
            # The primary's `used` is what its allocators do not have free, the standby's is what its objects take.
            parts = ("used_bytes", "granted_bytes", "quarantined_bytes", "free_bytes")
            assert sum(leader[part] for part in parts) == leader["capacity_bytes"]
            return all(one[part] == leader[part] for one in standbys for part in parts[:3])

        wait_until(agreed, SETTLE_S, "the primary's free memory is what its objects leave (I9)")
