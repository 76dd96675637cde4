"""In a network namespace of its own: a cluster on an address that other machines could reach, and what it says of that.

Prints one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.failover.cluster import Cluster, Process
from tests.waiting import wait_until

HOST = "10.99.0.1"


class Reachable(Cluster):
    def new_process(self, kind: str, name: str, *flags: str) -> Process:
        return Process(kind, self._folder / name, "--name", name, *flags, host=HOST)


def metrics(http: str) -> list[str]:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        return [line for line in answer.read().decode().splitlines() if line.startswith("holdfast_insecure")]


def main(folder: str) -> None:
    for command in (["link", "set", "lo", "up"], ["address", "add", f"{HOST}/32", "dev", "lo"]):
        subprocess.run(["ip", *command], check=True)
    with Reachable(
        Path(folder), f"sqlite://{folder}/c.db", masters=1, nodes=1, size="8MiB", report_interval_ms=200
    ) as cluster:
        master, node = cluster.masters[0], cluster.nodes[0]
        found = wait_until(lambda: len(lines := metrics(master.http)) == 2 and lines, what="the node has reported")
        shown = subprocess.run(
            [sys.executable, "-m", "holdfast", "status", "--address", master.address], capture_output=True, text=True
        )
        said = {"metrics": found, "status": master.status(), "shown": shown.stdout}
        print(json.dumps({**said, "master": master.said(), "node": node.said()}))


main(sys.argv[1])
