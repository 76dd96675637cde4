"""`doctor`: is this machine fit, and does the cluster do what it should, end to end?

Each check is a small function that gives a finding: ok, warn or fail, and what to do about it. Those that need
the cluster are skipped, and say so, when no master answers.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from holdfast import __version__
from holdfast.cli import connection
from holdfast.cli.exit_codes import FAILED, LATER, OK
from holdfast.cli.options import takes
from holdfast.cli.output import Output, human_bytes
from holdfast.coordination.urls import redacted
from holdfast.errors import HoldfastError
from holdfast.settings import ClientSettings

if TYPE_CHECKING:
    from holdfast.client.cache import Cache
    from holdfast.messages.requests import Status

FILES_WANTED = 4096
TRIAL_BYTES = 4096
EXTRAS = {
    "server": (
        "numpy",
        "typer",
        "rich",
        "pydantic_settings",
        "fastapi",
        "uvicorn",
        "prometheus_client",
        "structlog",
        "re2",
    ),
    "etcd": ("grpc", "google.protobuf"),
    "zookeeper": ("kazoo",),
}


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""


@takes(ClientSettings)
def doctor(settings: ClientSettings, out: Output) -> int:
    """Check this machine and the cluster, and say what to do about what is wrong."""
    findings = [check() for check in MACHINE_CHECKS]
    reached, of_cluster = check_cluster(settings)
    findings += of_cluster
    failed = any(finding.state == "fail" for finding in findings)
    if out.as_json:
        out.data({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        out.table(("", "CHECK", "FOUND"), [(one.state, one.check, one.text) for one in findings])
        for one in findings:
            if one.advice:
                out.line(f"-> {one.check}: {one.advice}")
    if not failed:
        return OK
    return FAILED if reached else LATER


def check_python() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.implementation.name != "cpython":
        return Finding("python", "warn", found, "holdfast is tested on CPython only")
    return Finding("python", "ok", found)


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # Not even the package around it.
        return False


def check_extras() -> Finding:
    absent = {extra: [name for name in names if not is_installed(name)] for extra, names in EXTRAS.items()}
    there = [extra for extra, names in absent.items() if not names]
    text = f"installed: {', '.join(there) or 'none'}"
    if absent["server"]:
        lacking = ", ".join(absent["server"])
        return Finding("extras", "warn", f"{text}; server lacks {lacking}", "pip install 'holdfast[server]'")
    return Finding("extras", "ok", text)


def check_memory_files() -> Finding:
    try:
        os.close(os.memfd_create("holdfast-doctor"))
    except (AttributeError, OSError) as error:
        return Finding("memfd", "fail", str(error), "nodes need Linux 3.17 or later; a sandbox may forbid memfd_create")
    return Finding("memfd", "ok", f"{platform.system()} {platform.release()}")


def check_open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES_WANTED:
        advice = f"raise it before starting a master or node: ulimit -n {FILES_WANTED}"
        return Finding("open files", "warn", f"limit {soft:,}", advice)
    return Finding("open files", "ok", "no limit" if soft == resource.RLIM_INFINITY else f"limit {soft:,}")


def check_clock() -> Finding:
    try:
        asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    except (AttributeError, OSError) as error:
        return Finding("clock", "fail", str(error), "leases need CLOCK_BOOTTIME: Linux 2.6.39 or later")
    slept = f"; the machine has slept {asleep_s:.0f} s since it started" if asleep_s > 1 else ""
    return Finding("clock", "ok", f"CLOCK_BOOTTIME{slept}")


MACHINE_CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_extras,
    check_memory_files,
    check_open_files,
    check_clock,
)


def check_cluster(settings: ClientSettings) -> tuple[bool, list[Finding]]:
    """Did a master answer, and the findings."""
    try:
        cache = connection.open_cache(settings)
    except HoldfastError as error:
        advice = "start one with `holdfast up`, or name another with --address"
        return False, [Finding("master", "fail", str(error), advice)]
    with cache:
        return True, list(_of_cluster(cache, settings.address))


def _of_cluster(cache: Cache, address: str) -> Iterator[Finding]:
    try:
        status = cache.status()
        yield Finding(
            "master", "ok", f"{status.name} answers at {redacted(address)} ({status.role}, epoch {status.epoch})"
        )
        yield _versions(__version__, status.version)
        yield _protection(status)
        yield _memory(cache)
        yield _round_trip(cache)
    except HoldfastError as error:
        yield Finding("cluster", "fail", str(error), "see the logs of the master and the nodes")


def _versions(ours: str, theirs: str) -> Finding:
    if ours != theirs:
        advice = "they may differ during an upgrade; install the same version in the end"
        return Finding("versions", "warn", f"here {ours}, master {theirs}", advice)
    return Finding("versions", "ok", ours)


def _protection(status: Status) -> Finding:
    if status.insecure:
        advice = "protect it as docs/guides/security.md shows, and start it without --insecure"
        return Finding("protection", "warn", "; ".join(status.insecure), advice)
    if status.identities_fault:
        advice = "mend the file of identities; until then the former identities are in force"
        return Finding("protection", "warn", status.identities_fault, advice)
    return Finding("protection", "ok", "no port of the master is open to strangers")


def _memory(cache: Cache) -> Finding:
    nodes = cache.nodes().nodes
    silent = [node.name for node in nodes if not node.available]
    if len(silent) == len(nodes):
        return Finding("nodes", "fail", f"none of {len(nodes)} is available", "start one: holdfast node --name node-1")
    lent = sum(node.capacity_bytes for node in nodes)
    text = f"{len(nodes) - len(silent)} of {len(nodes)} available, {human_bytes(lent)} in all"
    if silent:
        return Finding("nodes", "warn", text, f"look after {', '.join(silent)}")
    return Finding("nodes", "ok", text)


def _round_trip(cache: Cache) -> Finding:
    key, value = f"doctor/{secrets.token_hex(8)}", os.urandom(TRIAL_BYTES)
    began = time.perf_counter()
    cache.put(key, value)
    try:
        if cache.get(key) != value:
            return Finding("put and get", "fail", "the bytes read are not the bytes put", "stop using this cluster")
    finally:
        cache.remove(key, force=True)
    return Finding("put and get", "ok", f"{TRIAL_BYTES:,} bytes there and back in {time.perf_counter() - began:.3f} s")
