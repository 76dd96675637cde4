"""Engines on a machine of their own, with traffic through every face, while links are cut and the coordination stops.

    cut_off.py FOLDER

Writes FOLDER/calls, a line per call, and FOLDER/faults.json: each fault, when it struck and when it was over.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.cluster import ETCD, ROOT, ChaosCluster, Plan
from chaos.namespaces import inside, prepare, run_inside
from chaos.tracebacks import tracebacks
from tests.failover.cluster import SOURCE
from tests.integrations.scripts.engines import FACES
from tests.waiting import wait_until

TIMEOUT_S = 1.0
SLOW_S = TIMEOUT_S / 2
CALLS = 5
"""A fault lasts until every face has ended this many calls in it: one that waits for the fault's end is found."""
BACK_S = 60.0
ENGINES = "engines"
OTHER_MACHINE = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
"""Shared memory is for those whose machine has the same boot id; over TCP alone, a cut takes everything."""


class Calls:
    """The lines of the engines, as far as they are written."""

    def __init__(self, file: Path) -> None:
        self._lines = file.open()
        self._half = ""
        self._put: set[tuple[str, int]] = set()
        self._since = 0.0
        self._ended: Counter[str] = Counter()
        self._missed = self._was_slow = False
        self.at_work: set[str] = set()
        """The faces that have put and then read a batch, both since they were last forgotten."""

    def forget(self) -> None:
        """Only what begins from now on counts."""
        self._since = time.monotonic()
        self._put.clear()
        self._ended.clear()
        self._missed = self._was_slow = False
        self.at_work.clear()

    def felt(self) -> bool:
        """Every face has ended calls meanwhile, and there were misses and slow ones among them."""
        self.follow()
        return self._missed and self._was_slow and all(self._ended[face] >= CALLS for face in FACES)

    def follow(self) -> None:
        *whole, self._half = (self._half + self._lines.read()).split("\n")
        for call in map(json.loads, whole):
            if call["began"] < self._since:
                continue
            self._ended[call["face"]] += 1
            self._was_slow |= call["ended"] - call["began"] > SLOW_S
            self._missed |= call["outcome"] in ("miss", "part")
            if call["outcome"] != "good":
                continue
            batch = (call["face"], call["batch"])
            if call["verb"] == "put":
                self._put.add(batch)
            elif call["verb"] == "get" and batch in self._put:
                self.at_work.add(call["face"])


@contextmanager
def engines(cluster: ChaosCluster, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    cluster.network.add(ENGINES)
    boot_id = folder / "boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    start = [*cluster.network.within(ENGINES), "unshare", "--mount", "sh", "-c", OTHER_MACHINE, str(boot_id)]
    program = [sys.executable, str(Path(__file__).with_name("engines.py"))]
    given = [cluster.address, cluster.etcd_url, str(TIMEOUT_S), str(folder / "calls")]
    with (folder / "engines.log").open("wb") as log:
        process = subprocess.Popen(
            [*start, *program, *given],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def cut(cluster: ChaosCluster, one: str, other: str) -> Iterator[None]:
    cluster.network.cut(one, other)
    cluster.network.cut(other, one)
    yield
    cluster.network.mend_all()


@contextmanager
def stopped_coordination(cluster: ChaosCluster) -> Iterator[None]:
    cluster.etcd.pause()
    yield
    cluster.etcd.resume()


def faults(cluster: ChaosCluster) -> dict[str, Callable[[], Any]]:
    def primary() -> str:
        return cluster.primary().folder.name

    return {
        "engines and primary cut": lambda: cut(cluster, ENGINES, primary()),
        "engines and node cut": lambda: cut(cluster, ENGINES, "node-1"),
        "primary and coordination cut": lambda: cut(cluster, primary(), ETCD),
        "coordination stopped": lambda: stopped_coordination(cluster),
    }


def main(folder: Path) -> None:
    prepare()
    plan = Plan(seed=0, masters=2, nodes=2, clients=0, disks=False)
    struck: list[dict[str, object]] = []
    with ChaosCluster(folder, plan) as cluster, engines(cluster, folder) as process:

        def ended_early() -> str:
            return (folder / "engines.log").read_text()[-3000:] if process.poll() is not None else ""

        wait_until(lambda: (folder / "calls").exists() or ended_early(), BACK_S, "the engines run")
        calls = Calls(folder / "calls")

        def all_at_work() -> bool:
            assert not ended_early(), ended_early()
            calls.follow()
            return calls.at_work == FACES.keys()

        wait_until(all_at_work, BACK_S, "every face puts and reads")
        for name, fault in faults(cluster).items():
            cluster.settle()
            began = time.monotonic()
            with fault():
                calls.forget()
                wait_until(calls.felt, BACK_S, f"every face ends its calls during: {name}")
            healed = time.monotonic()
            calls.forget()
            wait_until(all_at_work, BACK_S, f"every face puts and reads after: {name}")
            struck.append({"name": name, "began": began, "healed": healed, "over": time.monotonic()})
        process.terminate()
        process.wait(BACK_S)
    told = {"faults": struck, "code": process.returncode, "tracebacks": tracebacks(folder)}
    (folder / "faults.json").write_text(json.dumps(told))


if __name__ == "__main__":
    if not inside():
        sys.exit(run_inside())
    main(Path(sys.argv[1]))
