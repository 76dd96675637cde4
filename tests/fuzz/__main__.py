"""Altered bytes at everything that reads bytes of others, for a time, from a seed: `make fuzz`.

    python -m tests.fuzz --seconds 600 [--seed N] [--only TARGET ...] [--most N] [--crashes FOLDER]
    python -m tests.fuzz --replay FOLDER/TARGET-HASH

A failing input is written to the folder, and the command that replays it is printed. Decoders run in this process, and
under atheris where it is installed; ports run against a real master and node on loopback.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import secrets
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import msgspec

from tests.fuzz.live import PORTS, LiveCluster, PortFailed, fuzz_port, live_cluster
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.web import fuzz_http

CORPUS = Path(__file__).parent / "corpus"
GUIDED = ("log", "snapshots", "renewals", "identities")
"""Whose code is in Python: the others are msgspec's, which atheris does not see into."""
HTTP = "http"


class Report:
    def __init__(self, crashes: Path) -> None:
        self.crashes = crashes
        self.failed = 0

    def failure(self, name: str, data: bytes, told: str) -> None:
        self.failed += 1
        self.crashes.mkdir(parents=True, exist_ok=True)
        path = self.crashes / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"{told}\n{name} FAILED; replay it with: python -m tests.fuzz --replay {path}", flush=True)


def fuzz_decoder(target: Target, mutator: Mutator, seconds: float, most: int, report: Report) -> int:
    """How many inputs were run. The first failure ends it."""
    good = target.seeds()
    kept = [path.read_bytes() for path in sorted(CORPUS.glob(f"{target.name}-*"))]
    until, count = time.monotonic() + seconds, 0
    pending = [*good, *kept]
    while count < most and (pending or time.monotonic() < until):
        data = pending.pop() if pending else target.alter(mutator, mutator.random.choice([*good, *kept]))
        try:
            target.run(data)
        except Exception:  # noqa: BLE001 - every error that is not of the target's own kind is a finding.
            report.failure(target.name, data, traceback.format_exc())
            return count
        count += 1
    return count


def fuzz_guided(name: str, seed: int, seconds: float, report: Report) -> None:
    report.crashes.mkdir(parents=True, exist_ok=True)
    arguments = [name, str(int(seconds)), str(seed % (1 << 31) or 1), str(report.crashes)]
    ended = subprocess.run([sys.executable, "-m", "tests.fuzz.guided", *arguments], capture_output=True, text=True)
    told = ended.stdout + ended.stderr
    runs = next((line.split()[-1] for line in told.splitlines() if "number_of_executed_units" in line), "?")
    print(f"{name + ', guided':<24}{runs:>10} inputs", flush=True)
    if ended.returncode:
        report.failed += 1
        print(
            f"{told[-3_000:]}\n{name} FAILED; replay: python -m tests.fuzz --replay {report.crashes}/{name}-crash-..."
        )


def replay(path: Path) -> None:
    name, data = path.name.rsplit("-", 1)[0].removesuffix("-crash"), path.read_bytes()
    if name in TARGETS:
        TARGETS[name].run(data)
        return
    with tempfile.TemporaryDirectory() as folder, live_cluster(Path(folder)) as cluster:
        for one in msgspec.msgpack.decode(data, type=list[bytes]):
            PORTS[name][2](cluster, one)
        cluster.check()


def fuzz_ports(names: list[str], seed: int, each_s: float, most: int, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder, live_cluster(Path(folder)) as cluster:
        for name in names:
            began, count = time.monotonic(), 0
            try:
                count = fuzz_one(cluster, name, seed, each_s, most)
            except PortFailed as failed:
                report.failure(name, msgspec.msgpack.encode(failed.inputs), str(failed))
            except AssertionError as failed:
                report.failure(name, b"", f"{failed}\nreplay with --only {name} --seed {seed}")
            print(f"{name:<24}{count:>10} inputs {time.monotonic() - began:6.0f} s", flush=True)
        grown = [round((now - first) / (1 << 20)) for now, first in cluster.memory()]
        print(
            f"the good client was served {cluster.served} times; memory grew by {grown} MiB (master, node)", flush=True
        )


def fuzz_one(cluster: LiveCluster, name: str, seed: int, each_s: float, most: int) -> int:
    if name == HTTP:
        return fuzz_http(cluster, seed, each_s, most)
    return fuzz_port(cluster, name, Mutator(seed), each_s, most)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--only", nargs="*", choices=[*TARGETS, *PORTS, HTTP], default=[*TARGETS, *PORTS, HTTP])
    parser.add_argument("--most", type=int, default=1_000_000, help="inputs per target")
    parser.add_argument("--crashes", type=Path, default=Path("fuzz-crashes"))
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args()
    if given.replay:
        replay(given.replay)
        return 0
    report = Report(given.crashes)
    decoders, ports = [name for name in given.only if name in TARGETS], [n for n in given.only if n not in TARGETS]
    guided = [name for name in decoders if name in GUIDED] if importlib.util.find_spec("atheris") else []
    each_s = given.seconds / (len(given.only) + len(guided))
    print(f"seed {given.seed}, {each_s:.1f} s a target, atheris: {'yes' if guided else 'no'}", flush=True)
    for name in decoders:
        began = time.monotonic()
        count = fuzz_decoder(TARGETS[name], Mutator(given.seed), each_s, given.most, report)
        print(f"{name:<24}{count:>10} inputs {time.monotonic() - began:6.0f} s", flush=True)
    for name in guided:
        fuzz_guided(name, given.seed, each_s, report)
    if ports:
        fuzz_ports(ports, given.seed, each_s, given.most, report)
    print(f"{report.failed} targets failed" if report.failed else "nothing was found", flush=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
