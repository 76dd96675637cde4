"""One run: a cluster is started, faults strike it one after another, all is healed, and every key is read."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from chaos.cluster import ChaosCluster, Plan
from chaos.faults import FAULTS
from chaos.history import Told, read_history, seen
from chaos.log_follower import LogFollower
from chaos.tracebacks import tracebacks
from chaos.verdict import PUTS, Run, Struck
from holdfast.client.cache import Cache
from holdfast.errors import HoldfastError
from tests.waiting import wait_until

KEYS_AT_ONCE = 200
CALM_S = 2.0
"""Clients work undisturbed before the first fault and after the last."""
CATCH_UP_S = 30.0


def play(folder: Path, plan: Plan, mix: dict[str, int], seconds: float, every_s: float, draw: random.Random) -> Run:
    faults: list[Struck] = []
    defects: list[str] = []
    judged: dict[str, list[int] | None] = {}
    unreadable: dict[str, str] = {}
    with ChaosCluster(folder, plan) as cluster, LogFollower(cluster.etcd_url) as log:
        began = time.monotonic_ns()
        ended = 0  # What comes after the clients' work is nobody's gap, also if the cluster does not settle then.
        try:
            for client in cluster.clients:
                client.start()
            wait_until(lambda: all(_has_begun(told) for told in histories(folder)), 60, "every client is at work")
            began = time.monotonic_ns()
            time.sleep(CALM_S)
            _strike(cluster, mix, seconds, every_s, draw, faults, defects)
            time.sleep(CALM_S)
            ended = time.monotonic_ns()
            _say(began, "all is healed")
            cluster.revive()
            time.sleep(CALM_S)
            defects += [problem for client in cluster.clients if (problem := client.finish())]
            cluster.settle()
            _say(began, "every key is read")
            with cluster.connect(shared_memory=False) as cache:
                judged, unreadable = read_all(cache, histories(folder))
            defects += _compare(cluster, log)
        except KeyboardInterrupt:
            ended = ended or time.monotonic_ns()
            _say(began, "interrupted: this is what there is")
        except AssertionError as error:
            ended = ended or time.monotonic_ns()
            defects.append(f"the cluster did not come back: {error}")
    _say(began, "what clients saw is judged")
    log.check()
    if log.failure:
        defects.append(f"the log could not be followed: {log.failure}")
    return Run(
        began_ns=began,
        ended_ns=ended,
        faults=faults,
        told=histories(folder),
        fates=list(log.checks.fates.values()),
        terms_ns=[at for at, _ in log.terms],
        leader_ttl_ms=plan.leader_ttl_ms,
        judged=judged,
        log_is_whole=not log.failure,
        away=log.away_at_last(),
        unreadable=unreadable,
        defects=[*defects, *log.violations, *tracebacks(folder)],
    )


def _strike(
    cluster: ChaosCluster,
    mix: dict[str, int],
    seconds: float,
    every_s: float,
    draw: random.Random,
    faults: list[Struck],
    defects: list[str],
) -> None:
    """One fault after another; each is over before the next begins."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        next_at = time.monotonic() + every_s
        name = draw.choices(list(mix), list(mix.values()))[0]
        lasts_s = every_s * draw.uniform(0.1, 0.7)
        fault = FAULTS[name](cluster, draw)
        struck = Struck(name, "", time.monotonic_ns())
        faults.append(struck)
        try:
            struck.whom = next(fault)
            time.sleep(lasts_s)
        finally:
            # It is undone also when the run is interrupted: a generator goes on after its yield.
            next(fault, None)
            struck.ended_ns = time.monotonic_ns()
        _say(int(began * 1e9), f"{name}: {struck.whom}, for {(struck.ended_ns - struck.began_ns) / 1e9:.1f} s")
        time.sleep(max(0.0, min(next_at, began + seconds) - time.monotonic()))
        _start_the_dead(cluster, defects)


def _start_the_dead(cluster: ChaosCluster, defects: list[str]) -> None:
    """Nothing ends by itself; what did is started again, and told."""
    for process in [*cluster.masters, *cluster.nodes]:
        if not process.alive:
            defects.append(f"{process.folder.name} ended by itself with {process.process.returncode}; its log says why")
            process.start()
    for client in cluster.clients:
        if not client.alive:
            defects.append(f"{client.name} ended by itself; its log says why")
            client.start()


def histories(folder: Path) -> list[Told]:
    return [read_history(path) for path in sorted(folder.glob("*.history"))]


def _has_begun(told: Told) -> bool:
    return any(call.outcome == "done" for call in told.calls)


def read_all(cache: Cache, told: list[Told]) -> tuple[dict[str, list[int] | None], dict[str, str]]:
    """Every key that was ever put, as it is now; and those that cannot be read, with the reason."""
    keys = sorted(
        {key for one in told for call in one.calls if call.operation.verb in PUTS for key in call.operation.keys}
    )
    judged: dict[str, list[int] | None] = {}
    unreadable: dict[str, str] = {}
    for start in range(0, len(keys), KEYS_AT_ONCE):
        some = keys[start : start + KEYS_AT_ONCE]
        errors: dict[str, HoldfastError] = {}
        try:
            found = cache.get_many(some, errors=errors)
        except HoldfastError:
            _read_one_by_one(cache, some, judged, unreadable)
            continue
        judged.update({key: seen(found.get(key)) for key in some if key not in errors})
        _read_one_by_one(cache, list(errors), judged, unreadable)
    return judged, unreadable


def _read_one_by_one(
    cache: Cache, keys: list[str], judged: dict[str, list[int] | None], unreadable: dict[str, str]
) -> None:
    for key in keys:
        try:
            judged[key] = seen(cache.get(key, None))
        except HoldfastError as error:
            unreadable[key] = f"{error.code}: {error}"


def _compare(cluster: ChaosCluster, log: LogFollower) -> list[str]:
    """Every master holds what the log says (I5); read to its end, which the verdict needs as well."""
    masters = cluster.settle()
    found = [masters["leader"], *masters["standbys"]]
    index = found[0]["applied_index"]
    wait_until(lambda: log.failure or log.position.index >= index, CATCH_UP_S, "the log is read to its end")
    expected = log.check()
    others = [one["name"] for one in found if log.position.index == index and one["digest"] != expected]
    return [f"{name} holds another catalogue than the log at record {index} (I5)" for name in others]


def _say(began_ns: int, text: str) -> None:
    print(f"[{(time.monotonic_ns() - began_ns) / 1e9:5.0f} s] {text}", file=sys.stderr, flush=True)
