"""`guide_scenes.py SCENE FOLDER`: commands of the guides as they stand there, on the machines that they name.

It runs in namespaces of its own, so that 10.0.0.1 is a machine, 127.0.0.1:7070 is free, and every process ends with
the scene. FOLDER has a directory `reader`, in which the reader types, and for a new user `checkout`, in whose
environment holdfast is installed. Whatever a command prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from chaos.namespaces import Network, inside, make_disk, prepare, run_inside
from holdfast.errors import ClientRevoked
from tests.contract.servers import Server, start_member
from tests.e2e.guide_pages import ROOT, Script
from tests.waiting import wait_until

OPERATING = "docs/guides/operating.md"
RECOVERY = "docs/guides/recovery.md"
TENANTS = "docs/guides/tenants.md"
TLS = "docs/guides/tls.md"
EVENTS = "docs/guides/events.md"
START = "docs/start.md"
LIBRARY = Path("/var/lib")
WITHIN_S = 90.0
MASTERS = ("10.0.0.1", "10.0.0.2")
CLIENT = "10.0.0.4"
"""Where commands run that the page gives no machine."""


class Reader:
    """Somebody who follows a page: a directory, an environment, and machines by their addresses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder / "reader"
        self.network = Network()
        self.environment = dict(os.environ)
        make_disk(LIBRARY, 64 << 20)
        (LIBRARY / "holdfast").mkdir()

    def add_machines(self, *addresses: str) -> None:
        for address in addresses:
            self.network.add(address, address)

    def _popen(self, text: str, machine: str, **streams: Any) -> subprocess.Popen[str]:
        # Each machine has a /var/lib/holdfast of its own.
        at = [*self.network.within(machine), "unshare", "--mount"] if machine else []
        text = f"mount -t tmpfs tmpfs {LIBRARY}/holdfast\n{text}" if machine else text
        command = [*at, "bash", "-o", "pipefail", "-ec", text]
        return subprocess.Popen(
            command, cwd=self.place, text=True, start_new_session=True, env=self.environment, **streams
        )

    def attempt(self, text: str, machine: str = "") -> subprocess.CompletedProcess[str]:
        with self._popen(text, machine, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1) as process:
            printed, told = process.communicate(timeout=WITHIN_S)
        return subprocess.CompletedProcess(text, process.returncode, printed, told)

    def run(self, text: str, machine: str = "") -> str:
        """What it prints, and nothing about an error."""
        done = self.attempt(text, machine)
        say(f"$ {text}\n{done.stdout}{done.stderr}")
        assert done.returncode == 0, f"it ended with {done.returncode}"
        assert "error" not in done.stderr.lower()
        return done.stdout

    def run_at_last(self, text: str, machine: str = "") -> str:
        """What it prints when it succeeds for the first time: the processes that it asks are about to serve."""
        last: list[subprocess.CompletedProcess[str]] = []

        def done() -> bool:
            last[:] = [self.attempt(text, machine)]
            return last[0].returncode == 0

        try:
            wait_until(done, WITHIN_S, text)
        finally:
            say(f"$ {text}\n{last[0].stdout}{last[0].stderr}" if last else text)
        return last[0].stdout

    def serve(self, text: str, machine: str = "") -> tuple[subprocess.Popen[str], Path]:
        """A command that goes on, and the file of its output."""
        text = text.removesuffix("&").strip()
        output = self.folder / f"{secrets.token_hex(4)}.log"
        say(f"$ {text} &   # {output}")
        with output.open("w") as log:
            return self._popen(f"exec {text}", machine, stdout=log, stderr=log), output


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def smaller(text: str) -> str:
    return text.replace("64GiB", "64MiB").replace("1GiB", "64MiB")


def start_store(reader: Reader, *addresses: str) -> list[Server]:
    """etcd with a member on each of these machines, empty."""
    members = ",".join(f"{address}=http://{address}:2380" for address in addresses)
    servers = []
    for address in addresses:
        within, folder = reader.network.within(address), reader.folder / f"etcd-{address}"
        shutil.rmtree(folder, ignore_errors=True)
        servers.append(start_member(folder, address, 2379, 2380, members, host=address, within=within))
    for server in servers:
        server.wait_until_it_serves()
    return servers


def masters_of(reader: Reader, more: str = "") -> list[dict[str, Any]]:
    """How each master stands; empty while none answers."""
    done = reader.attempt(f"{more}\nholdfast status --json", CLIENT)
    return list(json.loads(done.stdout)["masters"]) if done.stdout else []


def several_machines(reader: Reader, script: Script) -> None:
    """Two masters and a node with a token and TLS, the log in etcd, which is then lost."""
    stores = ("10.0.0.5", "10.0.0.6")
    reader.add_machines(*MASTERS, "10.0.0.3", CLIENT, *stores)
    store = start_store(reader, *stores)
    hosts = " ".join(f"--host {address}" for address in (*MASTERS, "10.0.0.3"))
    reader.run(f"holdfast certificates authority; holdfast certificates server server {hosts}")
    reader.run("cp certificates/server.* .; cp certificates/ca.pem ours.pem")
    token = secrets.token_hex(16)
    exported = script.take(OPERATING, "export").replace("HOLDFAST_TOKEN=...", f"HOLDFAST_TOKEN={token}")
    for text in script.take_all(OPERATING, "holdfast master --listen"):
        address = re.findall(r"--listen (\S+):", text)[0]
        reader.serve(f"bash -ec '{exported}; exec {text}'", address)
    node = smaller(script.take(OPERATING, "holdfast node"))
    reader.serve(f"bash -ec '{exported}; exec {node}'", "10.0.0.3")
    both = ",".join(f"{address}:7070" for address in MASTERS)
    address_in_store = re.findall(r"--address (\S+)", node)[0]
    reader.environment["HOLDFAST_ADDRESS"] = both
    reader.run_at_last(f"{exported}; holdfast put greeting README.md --address {address_in_store}", CLIENT)
    reader.run(f"{exported}; holdfast get greeting | cmp - README.md", CLIENT)
    told = json.loads(reader.run(f"{exported}; {script.take(OPERATING, 'curl')}", CLIENT))
    assert told["role"] in ("primary", "standby"), told
    shutil.copy(ROOT / "deploy/systemd/master.toml", reader.place / "holdfast.toml")
    reader.run(script.take(OPERATING, "holdfast config check").replace("/etc/holdfast/", ""))
    the_store_is_lost(reader, script, store, f"{exported}\n")


def the_store_is_lost(reader: Reader, script: Script, store: list[Server], exported: str) -> None:
    def stand(promotable: int) -> bool:
        found = masters_of(reader, exported)
        primaries = [one for one in found if one["role"] == "primary"]
        ready = [one for one in found if one["promotable"]]
        return len(found) == len(MASTERS) and len(primaries) == bool(promotable) and len(ready) >= promotable

    wait_until(lambda: stand(1), WITHIN_S, "the standby could take over")
    for server in store:
        server.end()
    store[:] = start_store(reader, *(server.host for server in store))
    wait_until(lambda: stand(0), WITHIN_S, "both masters wait for the operator")
    text = script.take(RECOVERY, "holdfast restore")
    for number, address in enumerate(MASTERS, 1):
        text = text.replace(f"HOST{number}", address)
    reader.run(exported + text, CLIENT)
    reader.run(exported + "holdfast get greeting | cmp - README.md", CLIENT)


def identities(reader: Reader, script: Script) -> None:
    """A cluster with certificates and identities: who is connected, revoked clients, tenants over REST."""
    reader.add_machines(*MASTERS, CLIENT, "10.0.0.9")
    start_store(reader, "10.0.0.9")
    for text in script.take_all(TLS, "holdfast certificates"):
        reader.run(text)
    for text in (*script.take_all(OPERATING, "holdfast token"), script.take(OPERATING, "chmod")):
        reader.run(text)
    shutil.copy(reader.place / "node-1.token", reader.place / "n1.token")
    reader.serve(script.take(TLS, "holdfast master"), "10.0.0.1")
    reader.serve(smaller(script.take(TLS, "holdfast node")), "10.0.0.2")
    reader.environment |= {
        "HOLDFAST_ADDRESS": "10.0.0.1:7070",
        "HOLDFAST_TLS_CA": "certificates/ca.pem",
        "CURL_CA_BUNDLE": "certificates/ca.pem",
        "TOKEN": (reader.place / "operator.token").read_text().strip(),
    }
    reader.run_at_last(script.take(OPERATING, "holdfast status"), CLIENT)
    reader.run_at_last("holdfast put greeting README.md --token-file trainer.token", CLIENT)
    operator = "export HOLDFAST_TOKEN_FILE=operator.token; "

    def handles() -> list[str]:
        listed = json.loads(reader.run(f"{operator}holdfast clients --json", CLIENT))
        return [one["handle"] for one in listed["clients"] if one["name"] == "trainer"]

    assert handles() == []
    with trainer(reader) as cache:
        assert cache.get("greeting") == (reader.place / "README.md").read_bytes()
        reader.run(operator + script.take(OPERATING, "holdfast clients"), CLIENT)
        [handle] = handles()
        reader.run(operator + script.take(OPERATING, "holdfast clients revoke").replace("1f2e3d4c5b", handle), CLIENT)
        check_revoked(cache)
    with trainer(reader) as cache:
        assert cache.exists("greeting")
        reader.run(operator + script.take(OPERATING, "holdfast clients revoke trainer"), CLIENT)
        check_revoked(cache)
    for text in script.take_all(TENANTS, "curl"):
        printed = reader.run(text.replace("curl ", "curl --fail-with-body -sS ", 1), CLIENT)
        assert "DELETE" in text or "team-a" in printed or "GET" not in text, printed


def trainer(reader: Reader) -> holdfast.Cache:
    context = ssl.create_default_context(cafile=reader.place / "certificates/ca.pem")
    token = (reader.place / "trainer.token").read_text().strip()
    return holdfast.connect("10.0.0.1:7070", tls=context, token=token, timeout=WITHIN_S)


def check_revoked(cache: holdfast.Cache) -> None:
    try:
        cache.put("after", b"x")
    except ClientRevoked:
        return
    raise AssertionError("a client that was revoked was served")


def events(reader: Reader, script: Script) -> None:
    """Masters that publish what is stored, and a subscriber."""
    for text in script.take_all(EVENTS, "holdfast master"):
        reader.serve(text)
    reader.serve(smaller(script.take(EVENTS, "holdfast node")))
    reader.run_at_last("holdfast put first README.md")
    wait_until(lambda: any(one["promotable"] for one in masters_of_this_machine(reader)), WITHIN_S, "a standby")
    subscriber, output = reader.serve(script.take(EVENTS, "python examples/object_events.py"))
    reader.run(script.take(EVENTS, "holdfast put"))
    numbers = iter(range(1_000))

    def has_told() -> bool:
        # Messages of before it had connected are lost to a subscriber; the next one makes it list the keys.
        reader.run(f"holdfast put greeting-{next(numbers)} README.md")
        assert subscriber.poll() is None, output.read_text()
        return re.search(r"^message \d+: [2-9]\d* keys$", output.read_text(), re.MULTILINE) is not None

    wait_until(has_told, WITHIN_S, "the subscriber tells of the object")


def masters_of_this_machine(reader: Reader) -> list[dict[str, Any]]:
    done = reader.attempt("holdfast status --json --address 127.0.0.1:7070,127.0.0.1:7072")
    return list(json.loads(done.stdout)["masters"]) if done.stdout else []


def new_user(reader: Reader, script: Script) -> None:
    """`make up` in a fresh checkout, the README's commands, then start.md's with the primary killed."""
    reader.place = reader.folder / "checkout"
    del reader.environment["PYTHONPATH"]
    for page, kills in (("README.md", False), (START, True)):
        up, output = reader.serve(script.take(page, "make up"))
        wait_until(lambda output=output: "Ctrl-C ends it" in output.read_text(), WITHIN_S, "the cluster is up")
        with urllib.request.urlopen("http://127.0.0.1:7080/", timeout=WITHIN_S) as answer:
            assert b"<title>" in answer.read()
        for text in script.take_all(page, ".venv/bin/holdfast") if not kills else the_start(reader, script, output):
            reader.run(text.replace("head -3", "sed -n 1,3p"))  # `head` closes the pipe early.
        os.killpg(up.pid, signal.SIGINT)
        up.wait(WITHIN_S)
        assert "the log and the snapshots are kept in" in output.read_text()


def the_start(reader: Reader, script: Script, output: Path) -> list[str]:
    """What start.md has behind `make up`; runs all but its last two commands."""
    name, _, value = script.take(START, "export").removeprefix("export ").split()[0].partition("=")
    reader.environment[name] = value
    for _ in range(3):
        reader.run(script.take(START, ".venv/bin/holdfast").replace("head -3", "sed -n 1,3p"))
    wait_until(
        lambda: any(one["promotable"] for one in json.loads(reader.run(STATUS_JSON))["masters"]), WITHIN_S, "a standby"
    )
    [primary] = re.findall(r"primary, process (\d+)", output.read_text())
    reader.run(script.take(START, "kill -9").replace("PID", primary))
    return script.take_all(START, ".venv/bin/holdfast")


STATUS_JSON = ".venv/bin/holdfast status --json"
SCENES: dict[str, Callable[[Reader, Script], None]] = {
    "several machines": several_machines,
    "identities": identities,
    "events": events,
    "new user": new_user,
}


def main() -> int:
    if not inside():
        return run_inside()
    scene, folder = sys.argv[1:]
    prepare()
    script = Script(scene)
    SCENES[scene](Reader(Path(folder)), script)
    script.check_all_were_run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
