"""Real etcd and real ZooKeeper, each in a directory and on ports of its own, ended by whoever started them."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Self

import grpc.aio

from holdfast.coordination.etcd import rpc
from holdfast.coordination.interface import Coordination, Term
from tests.contract.stories import soon
from tests.namespaces import APART
from tests.ports import free_ports
from tests.waiting import stop_all_threads, wait_until

# Its manifest does not name all parts of netty, which TLS needs.
ZOOKEEPER_CLASSPATH = ":".join(
    ["/etc/zookeeper/conf", "/usr/share/java/zookeeper.jar"]
    + [f"/usr/share/java/netty-{part}.jar" for part in ("codec", "resolver", "transport-native-unix-common")]
)


def answers(host: str, port: int, question: bytes, answer: bytes) -> bool:
    """Whether it serves: a port that is open is not enough."""
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            connection.sendall(question)
            with connection.makefile("rb") as said:
                return answer in said.read()
    except OSError:
        return False


class Server:
    """One process that can be stopped, continued and killed."""

    def __init__(
        self, command: list[str], folder: Path, port: int, health: tuple[bytes, bytes], host: str = "127.0.0.1"
    ) -> None:
        self.host = host
        self.port = port
        self._health = health
        self._log = (folder / "log").open("ab")
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._log_path = folder / "log"

    def wait_until_it_serves(self) -> None:
        def serves() -> bool:
            assert self.process.poll() is None, self._log_path.read_text()[-2000:]
            return answers(self.host, self.port, *self._health)

        wait_until(serves, 60, f"a server on port {self.port}")

    def __enter__(self) -> Self:
        try:
            self.wait_until_it_serves()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def pause(self) -> None:
        stop_all_threads(self.process)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)
        self._log.close()


def start_etcd(folder: Path, *more: str) -> Server:
    client, peer = free_ports(2)
    return start_member(folder, "one", client, peer, f"one=http://127.0.0.1:{peer}", *more)


def start_member(
    folder: Path,
    name: str,
    client: int,
    peer: int,
    members: str,
    *more: str,
    host: str = "127.0.0.1",
    within: Sequence[str] = (),
) -> Server:
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *within,
        *("etcd", "--name", name, "--data-dir", str(folder / "data"), "--initial-cluster", members),
        *("--listen-client-urls", f"http://{host}:{client}"),
        *("--advertise-client-urls", f"http://{host}:{client}"),
        *("--listen-peer-urls", f"http://{host}:{peer}"),
        *("--initial-advertise-peer-urls", f"http://{host}:{peer}"),
        *more,
    ]
    return Server(command, folder, client, (b"GET /health HTTP/1.0\r\n\r\n", b"true"), host)


@contextmanager
def etcd_of_three(folder: Path) -> Iterator[dict[str, Server]]:
    ports = free_ports(6)
    names = ("a", "b", "c")
    peers = ",".join(f"{name}=http://127.0.0.1:{ports[3 + number]}" for number, name in enumerate(names))
    members = {
        name: start_member(folder / name, name, ports[number], ports[3 + number], peers)
        for number, name in enumerate(names)
    }
    try:
        for member in members.values():
            member.wait_until_it_serves()
        yield members
    finally:
        for member in members.values():
            member.end()


def start_zookeeper(folder: Path, port: int = 0, more: str = "", java: Sequence[str] = ()) -> Server:
    """`more`: further lines of its configuration; `java`: further options of its process."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_ports(1)[0]
    (folder / "zoo.cfg").write_text(
        f"tickTime=200\ndataDir={folder / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        f"admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n{more}"
    )
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    # Nobody tests what a loss of power does to it, and on a busy disk one sync may take seconds.
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.forceSync=no"]
    return Server(
        [*command, *java, "-cp", ZOOKEEPER_CLASSPATH, main, str(folder / "zoo.cfg")], folder, port, (b"srvr", b"Mode:")
    )


@contextmanager
def leader_process(url: str, *more: str, apart: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that leads the cluster, with a leader_ttl of 1.5 s. Apart: no process here can see it."""
    command = [*(APART if apart else ()), sys.executable, str(Path(__file__).with_name("leading.py")), url, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("leads")
        yield process
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


async def term_after(coordination: Coordination, process: subprocess.Popen[str], sent: signal.Signals) -> Term:
    """The term of a candidate that waited while the leader's process was sent this signal."""
    waiting = asyncio.create_task(coordination.campaign("here:7070"))
    process.send_signal(sent)
    return await soon(waiting)


@asynccontextmanager
async def guarded_etcd(folder: Path, password: str) -> AsyncIterator[Server]:
    """An etcd that serves only its user root, who has this password."""
    with start_etcd(folder) as server:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            auth = rpc.stub(channel, "Auth")
            await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password=password), timeout=10)
            await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"), timeout=10)
            await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"), timeout=10)
            await auth.AuthEnable(rpc.AuthEnableRequest(), timeout=10)
        yield server


class OwnEtcd:
    """One member of a test's own, which can be started again at its port: with its data, or without any (`wipe`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, self._peer = free_ports(2)
        self._server: Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def server(self) -> Server:
        assert self._server is not None, "it was never started"
        return self._server

    def start(self) -> None:
        members = f"one=http://127.0.0.1:{self._peer}"
        self._server = start_member(self._folder, "one", self.port, self._peer, members)
        self._server.wait_until_it_serves()

    def end(self) -> None:
        if self._server is not None:
            self._server.end()
            self._server = None

    def wipe(self) -> None:
        self.end()
        shutil.rmtree(self._folder / "data")
        self.start()

    def url(self, cluster: str) -> str:
        return f"etcd://127.0.0.1:{self.port}/{cluster}"
