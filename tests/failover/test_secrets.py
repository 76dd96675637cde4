"""Secrets are planted everywhere, and looked for wherever people and programs look: logs, metrics, REST, events,
errors, ready files and command lines of real processes, through traffic, wrong tokens, a failover and a dead node."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import holdfast
from holdfast.client.cache import Cache
from holdfast.errors import HoldfastError, NotAllowed, NotAuthorized
from holdfast.identity.identities import hash_of
from holdfast.transport.tls import client_context
from tests import prefork
from tests.contract.servers import Server, guarded_etcd
from tests.e2e.test_tls import make_authority, sign
from tests.failover.cluster import Process
from tests.failover.guarded import shown_everywhere
from tests.waiting import wait_until

TOKEN = "tok-planted-1f0c62f39b"
"""Shown by the masters to each other, given on their command lines."""
PASSWORD = "pw-planted-77d01c2ea4"
OPERATOR = "tok-planted-of-the-operator-5e"
WRONG = "tok-planted-and-wrong-93ab"
PLANTED = (TOKEN, PASSWORD, OPERATOR, WRONG)
REAL = ("env",)
"""Begins a command line that is a process of its own, whose arguments others see, and not a fork of the test's."""

IDENTITIES = f"""
[[identity]]
name = "masters"
roles = ["master"]
tokens = ["{hash_of(TOKEN)}"]
[[identity]]
name = "nodes"
roles = ["node"]
certificates = ["node"]
[[identity]]
name = "engine"
roles = ["writer"]
certificates = ["engine"]
[[identity]]
name = "operator"
roles = ["operator"]
tokens = ["{hash_of(OPERATOR)}"]
"""


@pytest_asyncio.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[Server]:
    async with guarded_etcd(tmp_path / "etcd", PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder, "ours")
    for name in ("master", "node", "engine", "stranger"):
        sign(folder, "ours", name, "127.0.0.1")
    return folder


class House:
    """Two masters and two nodes over TLS with client certificates."""

    def __init__(self, folder: Path, url: str, certificates: Path) -> None:
        self.certificates = certificates
        self.url = url
        listed = folder / "identities.toml"
        listed.write_text(IDENTITIES)
        listed.chmod(0o600)
        timing = ["--leader-ttl-ms", "1500", "--lease-ttl-ms", "2000"]
        self.masters = [
            Process("master", folder / name, "--name", name, "--token", TOKEN, "--coordination", url, "--identities",
                    str(listed), "--data-dir", str(folder / name / "data"), "--log-level", "debug", *timing,
                    *self._tls("master"), within=REAL)
            for name in ("master-1", "master-2")
        ]  # fmt: skip
        self.nodes = [
            Process("node", folder / name, "--name", name, "--address", url, "--size", "64MiB", "--log-level", "debug",
                    *self._tls("node"), within=REAL)
            for name in ("node-1", "node-2")
        ]  # fmt: skip

    def _tls(self, name: str) -> list[str]:
        found = ["--tls-ask-clients"]
        for flag, file in (("cert", f"{name}.pem"), ("key", f"{name}.key"), ("ca", "ours.pem")):
            found += [f"--tls-{flag}", str(self.certificates / file)]
        return found

    def context(self, name: str) -> ssl.SSLContext:
        folder = self.certificates
        return client_context(folder / "ours.pem", folder / f"{name}.pem", folder / f"{name}.key")

    def connect(self, name: str, token: str = "") -> Cache:
        address = ",".join(master.address for master in self.masters)
        return holdfast.connect(address, timeout=60, token=token, tls=self.context(name))

    def says(self, *arguments: str, token: str) -> subprocess.CompletedProcess[str]:
        tls = [flag for flag in self._tls("engine") if flag != "--tls-ask-clients"]
        address = ",".join(master.address for master in self.masters)
        return prefork.holdfast(*arguments, "--address", address, "--token", token, *tls, "--timeout", "30")


@pytest.fixture
def house(tmp_path: Path, etcd: Server, certificates: Path) -> Iterator[House]:
    url = f"etcd://127.0.0.1:{etcd.port}/secrets?user=root&password={PASSWORD}"
    house = House(tmp_path, url, certificates)
    with contextlib.ExitStack() as stack:
        for process in [*house.masters, *house.nodes]:
            process.start()
            stack.callback(lambda process=process: process.alive and process.kill())
        for process in [*house.masters, *house.nodes]:
            process.wait_until_ready()
        yield house


@pytest.mark.timeout(300)
def test_a_certificate_stands_for_a_token_and_no_planted_secret_shows(house: House) -> None:
    told: list[str] = []

    def refused(verb: object, *arguments: object) -> None:
        with pytest.raises(HoldfastError) as caught:
            verb(*arguments)  # type: ignore[operator]
        told.append(f"{caught.value!r} {caught.value}")

    with house.connect("engine") as engine:
        assert engine.put_many({f"k{number}": os.urandom(500) for number in range(200)}, replicas=2) == 200
        # The certificate's name is an identity with the role of a writer, and no more.
        with pytest.raises(NotAllowed, match="'engine' has reader, writer"):
            engine.remove("k0", force=True)
        with pytest.raises(NotAuthorized):
            house.connect("stranger")
        refused(house.connect, "engine", WRONG)
        with house.connect("stranger", OPERATOR) as operator:
            leader = operator.status().name
            told.append(str(operator.status()))
            told.append(str(operator.nodes()))
        for token, arguments in (
            (OPERATOR, ["doctor"]),
            (OPERATOR, ["drain", "node-9"]),
            (WRONG, ["status"]),
            (WRONG, ["failover"]),
        ):
            done = house.says(*arguments, token=token)
            told.append(done.stdout + done.stderr)
        for dead in (next(one for one in house.masters if one.folder.name == leader), house.nodes[0]):
            dead.kill()
        assert wait_until(lambda: engine.put("after", b"1") or engine.exists("after"), 60, "it goes on")
        assert len(engine.get_many([f"k{number}" for number in range(200)])) == 200
    processes = [*house.masters, *house.nodes]
    for process in processes:
        if not process.alive:
            process.start()
            process.wait_until_ready()
    # Errors that speak of the URL: a wrong password, a cluster that nobody leads, a scheme that does not exist.
    for url in (house.url.replace(PASSWORD, WRONG), house.url.replace("/secrets", "/nobody"), "redis" + house.url[4:]):
        done = prefork.holdfast("status", "--address", url, "--timeout", "3")
        assert done.returncode != 0
        told.append(done.stdout + done.stderr)
    assert any("/nobody?user=root&password=*** names no primary" in text for text in told)
    shown = shown_everywhere(processes, OPERATOR, house.context("stranger"))
    assert "******" in shown, "the command lines were seen, without what was hidden there"
    for seen in ("serving", "holdfast_objects", "/api/v1/objects"):
        assert seen in shown, f"{seen}: nobody looked there"
    for secret in PLANTED:
        assert secret not in shown, f"{secret} is shown by a process"
        assert not [text for text in told if secret in text], f"{secret} is in an error or an answer"
    key = (house.certificates / "master.key").read_text()
    assert key.splitlines()[1] not in shown
