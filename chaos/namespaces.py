"""A network of hosts inside one machine, which ends with the process that made it.

The run begins again inside network, mount and process namespaces of its own (`run_inside`). The kernel ends all
processes in them when their first one ends, however it ends, and with the last process go the links, the mounts and
the hosts: nothing has to be swept up after a run that was killed.

Every host is a network namespace with one link to the run's own namespace, which routes between them. A cut is a rule
of the router that drops what comes from one host for another, so it has a direction, and both ends see silence only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

INSIDE = "HOLDFAST_CHAOS_INSIDE"
SKIPPED = 77
"""The exit code where it cannot be run, as test suites elsewhere have it."""
HOSTS = Path("/run/netns")
NET = "10.99"
ROUTER = f"{NET}.255.254"
TOOLS = ("ip", "unshare", "nsenter", "setpriv", "mount")


def _unshare() -> list[str]:
    flags = ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    return ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), *flags]


def why_not() -> str:
    """Why this machine allows no such network; empty if it does."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} cannot be found; on Debian: apt-get install iproute2 util-linux"
    script = (
        f"mount -t tmpfs tmpfs {HOSTS.parent} && mkdir {HOSTS} && ip netns add probe && ip link add probe type veth"
    )
    tried = subprocess.run([*_unshare(), "sh", "-c", script], check=False, capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"network namespaces are not allowed here ({tried.stderr.strip()})"


def inside() -> bool:
    return bool(os.environ.get(INSIDE))


def run_inside() -> int:
    """This very program, run again inside namespaces of its own; its exit code. It dies when this process dies, and
    hears of it when this one is interrupted or told to end."""
    command = ["setpriv", "--pdeathsig", "KILL", *_unshare(), sys.executable, *sys.orig_argv[1:]]
    run = subprocess.Popen(command, env={**os.environ, INSIDE: "1"}, start_new_session=True)

    def interrupt(*_: object) -> None:
        for child in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGINT)

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, interrupt)
    return run.wait()


def prepare() -> None:
    """Once, inside: hosts are kept where nobody outside sees them, and this namespace routes between them."""
    _run("mount", "-t", "tmpfs", "tmpfs", str(HOSTS.parent))
    HOSTS.mkdir()
    _run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def make_disk(folder: Path, size_bytes: int) -> None:
    """A file system of this size at the folder, in memory; it ends with the run."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder))


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class Network:
    """Hosts by name, each with an address, and the cuts between them."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.cuts: set[tuple[str, str]] = set()

    def add(self, host: str, address: str = "") -> str:
        """A new host with this address, or any; its address."""
        number = len(self.addresses) + 1
        address, link = address or f"{NET}.{number >> 8}.{number & 255}", f"to-{number}"
        _run("ip", "netns", "add", host)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", host)
        _run("ip", "address", "add", f"{ROUTER}/32", "dev", link)
        _run("ip", "link", "set", link, "up")
        _run("ip", "route", "add", f"{address}/32", "dev", link)
        for inside in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{address}/32", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", f"{ROUTER}/32", "dev", "eth0"),
            ("route", "add", "default", "via", ROUTER),
        ):
            _run("ip", "-n", host, *inside)
        self.addresses[host] = address
        return address

    def within(self, host: str) -> tuple[str, ...]:
        """How a command line begins that shall run on this host."""
        return ("nsenter", f"--net={HOSTS / host}")

    def cut(self, sender: str, receiver: str) -> None:
        """What the one sends no longer reaches the other."""
        if (sender, receiver) not in self.cuts:
            self._rule("add", sender, receiver)
            self.cuts.add((sender, receiver))

    def mend(self, sender: str, receiver: str) -> None:
        if (sender, receiver) in self.cuts:
            self._rule("del", sender, receiver)
            self.cuts.remove((sender, receiver))

    def mend_all(self) -> None:
        for sender, receiver in sorted(self.cuts):
            self.mend(sender, receiver)

    def _rule(self, verb: str, sender: str, receiver: str) -> None:
        here, there = self.addresses[sender], self.addresses[receiver]
        _run("ip", "rule", verb, "from", f"{here}/32", "to", f"{there}/32", "blackhole")
