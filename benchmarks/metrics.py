"""What counting costs a single get or put at the master.

Two clusters, turn by turn: one counts, the other has a master whose latencies are not taken. As the difference is below
the noise of most machines, the statements that a request adds are timed by themselves, too, and compared with the time
of the get and the put that were measured.

And what a client's own metrics cost it: turn by turn a client that counts, one that does not, and a second one that
does not, whose difference from the first is the noise. A get under a lease asks nobody, so it is the call to which
counting adds most.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import timeit
from collections.abc import Callable
from typing import Any

from benchmarks.measure import DURABLE, Row, Scale, interleaved, rate_over, ratio_row
from benchmarks.processes import Cluster, apart
from holdfast.client.metered.metrics import ClientMetrics
from holdfast.core.primary.object_counts import ObjectCounts
from holdfast.instant import now_ns
from holdfast.master.traffic.latencies import Latencies
from holdfast.messages.requests import Locate

VALUE = os.urandom(1024)
MOST_SHARE = 0.02
OFF = "latencies not taken"
UNCOUNTED = """
import sys
from holdfast.master.traffic.latencies import Latencies
Latencies.answered = lambda latencies, verb, began_ns: None
from holdfast.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def _popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    python, *_, kind = command[:4]
    return subprocess.Popen([python, "-c", UNCOUNTED, *command[3:]] if kind == "master" else command, **options)


class UncountedCluster(Cluster):
    _popen = staticmethod(_popen)


def run(scale: Scale) -> list[Row]:
    count = scale.of(1000, 100)
    turns: dict[str, Callable[[int], float]] = {}
    with Cluster("1GiB") as on, UncountedCluster("1GiB") as off, apart([*on.pids, *off.pids]):
        for name, cluster in (("on", on), ("off", off)):
            writer, reader = cluster.connect_warm(), cluster.connect_warm()
            # Another client than the writer, and each key once: nothing is leased, so every get asks.
            turns[f"{name} put"] = lambda number, cache=writer: rate_over(  # type: ignore[misc]
                lambda key: cache.put(key, VALUE), _keys(number, count)
            )
            turns[f"{name} get"] = lambda number, cache=reader: rate_over(cache.get, _keys(number, count))  # type: ignore[misc]
        figures = interleaved(4 * scale.rounds, turns)
        of_clients = _client_rows(on, scale)
    return [
        ratio_row("put 1 KiB, counted", figures["on put"], "ops/s", figures["off put"], OFF, 1 - MOST_SHARE, DURABLE),
        ratio_row("get 1 KiB, counted", figures["on get"], "ops/s", figures["off get"], OFF, 1 - MOST_SHARE),
        _share("get", figures["on get"], scale),
        _share("put", figures["on put"], scale),
        *of_clients,
    ]


def _client_rows(cluster: Cluster, scale: Scale) -> list[Row]:
    count, leased = scale.of(1000, 100), scale.of(20_000, 1_000)
    clients = {
        "counts": cluster.connect_warm(metrics=ClientMetrics()),
        "plain": cluster.connect_warm(),
        "plain too": cluster.connect_warm(),
    }
    turns: dict[str, Callable[[int], float]] = {}
    for name, cache in clients.items():
        cache.put(f"leased by {name}", VALUE)
        turns[f"{name}: leased get"] = lambda number, cache=cache, key=f"leased by {name}": rate_over(  # type: ignore[misc]
            cache.get, [key] * leased
        )
        turns[f"{name}: put"] = lambda number, cache=cache, name=name: rate_over(  # type: ignore[misc]
            lambda key: cache.put(key, VALUE), [f"{name}/{each}" for each in _keys(number, count)]
        )
    found = interleaved(4 * scale.rounds, turns)
    rows = []
    for verb, least in (("leased get", 0.2), ("put", 0.9)):
        plain = found[f"plain: {verb}"]
        rows.append(ratio_row(f"{verb}, client metrics on", found[f"counts: {verb}"], "ops/s", plain, "off", least))
        rows.append(ratio_row(f"{verb}, off, another client", found[f"plain too: {verb}"], "ops/s", plain, "off", 0.9))
    return rows


def _keys(number: int, count: int) -> list[str]:
    return [f"single/{number}/{each}" for each in range(count)]


def _share(verb: str, per_second: list[float], scale: Scale) -> Row:
    """The time of all statements that metrics add to this request, as a share of it."""
    share = _added_seconds(scale) * statistics.median(per_second)
    return Row(
        name=f"counting's share of a {verb} of 1 KiB",
        figure=100 * share,
        unit="%",
        target=f"<= {100 * MOST_SHARE:g} %",
        reached=share <= MOST_SHARE,
    )


def _added_seconds(scale: Scale) -> float:
    """Of one request: a look at the clock and the histogram, and the counts of the object."""
    latencies, counts, times = Latencies(), ObjectCounts(), scale.of(200_000, 10_000)
    began = now_ns()

    def added() -> None:
        latencies.answered(Locate, began)
        counts.hits += 1
        counts.hit_bytes += 1024

    spent = min(timeit.repeat(added, number=times, repeat=5)) - min(timeit.repeat(_nothing, number=times, repeat=5))
    return spent / times


def _nothing() -> None:
    """The call itself, which the request does not make."""
