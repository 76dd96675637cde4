"""Engines on a machine of their own, with traffic through every face, while links are cut and the coordination stops.

    cut_off.py FOLDER

Writes FOLDER/calls, a line per call, and FOLDER/faults.json: each fault, when it struck, was felt, healed and over.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chaos.cluster import ETCD, ROOT, ChaosCluster, Plan
from chaos.namespaces import inside, prepare, run_inside
from chaos.tracebacks import tracebacks
from tests.contract.servers import Server
from tests.failover.cluster import SOURCE, Process
from tests.integrations.scripts.engines import FACES
from tests.waiting import wait_until

TIMEOUT_S = 1.0
SLOW_S = TIMEOUT_S / 2
CALLS = 5
"""A fault lasts until every face has ended this many calls in it: one that waits for the fault's end is found."""
CALLS_IN_OUTAGE = 24
"""The same while no master can answer, so that faces which wait for their timeout in each call are found."""
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

    def felt(self, calls: int) -> bool:
        """Every face has ended so many calls meanwhile, and there were misses and slow ones among them."""
        self.follow()
        return self._missed and self._was_slow and all(self._ended[face] >= calls for face in FACES)

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
def cut(cluster: ChaosCluster, hosts: list[str], other: str) -> Iterator[None]:
    for one in hosts:
        cluster.network.cut(one, other)
        cluster.network.cut(other, one)
    yield
    cluster.network.mend_all()


@contextmanager
def stopped(processes: Sequence[Process | Server]) -> Iterator[None]:
    for process in processes:
        process.pause()
    yield
    for process in processes:
        process.resume()


@contextmanager
def killed_coordination(cluster: ChaosCluster) -> Iterator[None]:
    """With kill -9; it is started again with the data that it had on its disk."""
    cluster.etcd.process.kill()
    cluster.etcd.process.wait()
    yield
    cluster.revive()


@dataclass(frozen=True, slots=True)
class Fault:
    strike: Callable[[], AbstractContextManager[None]]
    is_outage: bool = False
    """No master can answer while it lasts."""


def faults(cluster: ChaosCluster) -> dict[str, Fault]:
    def primary() -> list[str]:
        return [cluster.primary().folder.name]

    return {
        "engines and primary cut": Fault(lambda: cut(cluster, primary(), ENGINES)),
        "engines and node cut": Fault(lambda: cut(cluster, ["node-1"], ENGINES)),
        "primary and coordination cut": Fault(lambda: cut(cluster, primary(), ETCD)),
        "masters and coordination cut": Fault(lambda: cut(cluster, cluster.hosts("master"), ETCD), is_outage=True),
        "coordination stopped": Fault(lambda: stopped([cluster.etcd]), is_outage=True),
        "coordination killed": Fault(lambda: killed_coordination(cluster), is_outage=True),
        "masters stopped": Fault(lambda: stopped(cluster.masters), is_outage=True),
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
            least = CALLS_IN_OUTAGE if fault.is_outage else CALLS
            with fault.strike():
                calls.forget()
                wait_until(partial(calls.felt, least), BACK_S, f"every face ends its calls during: {name}")
                felt = time.monotonic()
            healed = time.monotonic()
            calls.forget()
            wait_until(all_at_work, BACK_S, f"every face puts and reads after: {name}")
            times = {"began": began, "felt": felt, "healed": healed, "over": time.monotonic()}
            struck.append({"name": name, "is_outage": fault.is_outage, **times})
        process.terminate()
        process.wait(BACK_S)
    told = {"faults": struck, "code": process.returncode, "tracebacks": tracebacks(folder)}
    (folder / "faults.json").write_text(json.dumps(told))


if __name__ == "__main__":
    if not inside():
        sys.exit(run_inside())
    main(Path(sys.argv[1]))
