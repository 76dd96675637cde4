"""How long a command takes from its start to its end, beside a Python that does nothing.

Each round runs every command once, so that all meet the same load. Bytecode is kept in a directory of the benchmark's
own: an installed package has it, a checkout in which Python may not write has not, and would be compiled at each start.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from benchmarks.measure import Row, Scale, interleaved, most_row
from benchmarks.processes import Cluster

AT_MOST_MS = 150.0
LISTED = 100_000
LISTED_AT_MOST_S = 3.0
BATCH = 4096
NOTHING = "python -c pass"
VERBS = {
    "get": ["get", "there"],
    "put": ["put", "written", "--upsert", "/etc/hostname"],
    "exists": ["exists", "there"],
    "ls": ["ls", "th"],
    "stat": ["stat", "there"],
    "rm": ["rm", "written"],
    "status": ["status"],
    "get, nobody listens": ["get", "there", "--address", "127.0.0.1:1"],
}


def run(scale: Scale) -> list[Row]:
    listed = scale.of(LISTED, 2_000)
    with Cluster("1GiB") as cluster, cluster.connect_warm() as cache:
        cache.put("there", b"v" * 64)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"HOLDFAST_ADDRESS": cluster.address, "PYTHONPYCACHEPREFIX": f"{cluster.folder}/bytecode"}

        def seconds(*words: str) -> float:
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,  # Nobody listening is a failure, and one that is measured.
            )
            return time.perf_counter() - began

        turns = {NOTHING: lambda _: seconds("-c", "pass")}
        turns |= {name: lambda _, words=words: seconds("-m", "holdfast", *words) for name, words in VERBS.items()}
        for turn in turns.values():
            turn(0)  # Writes the bytecode.
        took = interleaved(scale.of(15, 3), turns)
        keys = [f"listed/{number:06}" for number in range(listed)]
        for at in range(0, listed, BATCH):
            cache.put_many(dict.fromkeys(keys[at : at + BATCH], b"v" * 64))
        longest = statistics.median(seconds("-m", "holdfast", "ls", "--long", "listed/") for _ in range(scale.of(3, 1)))
    nothing = statistics.median(took[NOTHING])
    rows = [
        most_row(
            f"holdfast {name}",
            median * 1e3,
            "ms",
            AT_MOST_MS,
            note=f"{median / nothing:.1f} of {NOTHING} ({nothing * 1e3:.0f} ms); least {min(took[name]) * 1e3:.0f} ms",
        )
        for name in VERBS
        for median in [statistics.median(took[name])]
    ]
    return [*rows, most_row(f"holdfast ls --long of {listed:,} keys", longest, "s", LISTED_AT_MOST_S)]
