"""The cluster under faults: etcd, masters, nodes and clients, each on a host of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from chaos.namespaces import Network, make_disk
from tests.contract.servers import Server, start_member
from tests.failover.cluster import SOURCE, Cluster, Process
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
ETCD = "etcd"
ETCD_QUOTA_BYTES = 96 << 20
MASTER_DISK_BYTES = 64 << 20
NODE_DISK_BYTES = 64 << 20
END_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    masters: int = 3
    nodes: int = 3
    clients: int = 4
    leader_ttl_ms: int = 1_500
    lease_ttl_ms: int = 2_000
    node_size: str = "96MiB"
    copies: int = 1
    """The fewest that a put asks for."""
    disks: bool = True
    pause_s: float = 0.01
    """Of a client between two calls."""


class Client:
    """A client process; each of its lives has a history of its own."""

    def __init__(self, number: int, folder: Path, within: tuple[str, ...], *flags: str) -> None:
        self.name = f"client-{number + 1}"
        self._number = number
        self._folder = folder
        self._within = within
        self._flags = flags
        self._life = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        history = self._folder / f"{self.name}.{self._life}.history"
        command = [sys.executable, "-m", "chaos.client", "--client", str(self._number), "--life", str(self._life)]
        with (self._folder / f"{self.name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [*self._within, *command, "--history", str(history), *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"},
                start_new_session=True,
            )
        self._life += 1

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(END_S)

    def send(self, one: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(one)

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def finish(self) -> str:
        """After the call that is under way; what went wrong with it."""
        if not self.alive:
            return f"{self.name} ended by itself; its log says why"
        assert self._process is not None
        self.resume()
        self.send(signal.SIGTERM)
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self.name} did not end within {END_S:g} s: a call hangs (I10)"
        return f"{self.name} ended with {code}; its log says why" if code else ""


class ChaosCluster(Cluster):
    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.network = Network()
        self._etcd_address = self.network.add(ETCD)
        self._etcd_ports = free_ports(2)
        self.etcd_url = f"etcd://{self._etcd_address}:{self._etcd_ports[0]}/chaos"
        self.etcd = self.start_etcd(folder)
        super().__init__(
            folder,
            self.etcd_url,
            masters=plan.masters,
            nodes=plan.nodes,
            leader_ttl_ms=plan.leader_ttl_ms,
            lease_ttl_ms=plan.lease_ttl_ms,
            size=plan.node_size,
            snapshot_bytes=256 << 10,
        )
        self.folder = folder
        self.clients = [self._new_client(number) for number in range(plan.clients)]

    def start_etcd(self, folder: Path) -> Server:
        """Also again, with the data that it has."""
        client, peer = self._etcd_ports
        members = f"one=http://{self._etcd_address}:{peer}"
        quota = ("--quota-backend-bytes", str(ETCD_QUOTA_BYTES))
        where = {"host": self._etcd_address, "within": self.network.within(ETCD)}
        return start_member(folder / ETCD, "one", client, peer, members, *quota, **where)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        self.etcd.wait_until_it_serves()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            if client.alive:
                client.kill()
        super().__exit__()
        self.etcd.end()

    def new_process(self, kind: str, name: str, *flags: str) -> Process:
        host = self.network.add(name)
        folder = self._folder / name
        if kind == "master":
            make_disk(folder / "data", MASTER_DISK_BYTES)
        elif self.plan.disks:
            make_disk(folder / "disk", NODE_DISK_BYTES)
            flags = (*flags, "--disk", str(folder / "disk" / "files"), "--disk-size", str(NODE_DISK_BYTES // 2))
        return Process(kind, folder, "--name", name, *flags, host=host, within=self.network.within(name))

    def _new_client(self, number: int) -> Client:
        name = f"client-{number + 1}"
        self.network.add(name)
        plan = self.plan
        flags = ["--seed", str(plan.seed), "--lease-ms", str(plan.lease_ttl_ms), "--pause", str(plan.pause_s)]
        flags += ["--copies", str(plan.copies), str(max(plan.copies, min(2, plan.nodes)))]
        flags += ["--address", self.etcd_url if number % 4 == 3 else self.address]
        flags += ["--asyncio"] if number % 2 else []
        flags += ["--shared"] if number % 4 in (0, 3) else []
        return Client(number, self._folder, self.network.within(name), *flags)

    def hosts(self, role: str) -> list[str]:
        if role == ETCD:
            return [ETCD]
        if role == "client":
            return [client.name for client in self.clients]
        return [one.folder.name for one in (self.masters if role == "master" else self.nodes)]

    def leader(self) -> Process | None:
        """Whoever says that it leads, now."""
        return next(iter(self.primaries()), None)

    def revive(self) -> None:
        self.network.mend_all()
        if self.etcd.process.poll() is not None:
            self.etcd = self.start_etcd(self._folder)
        self.etcd.resume()
        self.etcd.wait_until_it_serves()
        super().revive()
