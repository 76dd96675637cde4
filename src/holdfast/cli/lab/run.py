"""One preset in the lab: a cluster of its own, half the requests, the primary killed or not, the other half.

Replaying stops for the moment of the killing, so that what the primary had is known exactly; a client that only reads
goes on, and tells how long nobody answered.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Self

from holdfast.cli.cluster.masters import await_primary, survey
from holdfast.cli.lab.workload import Request, key_of, value_of
from holdfast.cli.load import longest_gap_s
from holdfast.cli.processes.fleet import Fleet
from holdfast.cli.processes.local_cluster import ClusterWanted, LocalCluster
from holdfast.errors import HoldfastError, TryAgain
from holdfast.instant import now_seconds
from holdfast.messages.requests import Status

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

TIMEOUT_S = 60.0
PRIMARY_WITHIN_S = 60.0
PROBE_EVERY_S = 0.004
WINDOW_S = 60.0
"""Hit rates are compared over this time before and after the kill."""
BUCKETS = 40


@dataclass(slots=True)
class Outcome:
    """The results of one preset."""

    preset: str
    coordination_writes_per_s: float = 0.0
    coordination_bytes_per_s: float = 0.0
    renewal_delay_ms: float | None = None
    gone: int = 0
    """Objects that the primary had and its successor has neither shown nor evicted."""
    kept: int = 0
    """Objects that the primary had evicted and its successor showed again, if only until it evicted them too."""
    wrong: int = 0
    """Reads that gave other bytes than were put."""
    objects: int = 0
    hit_rate_before: float = 0.0
    """In the minute before the kill, or as much of the run as there is."""
    hit_rate_after: float = 0.0
    """In the minute after."""
    hit_rate_lost: float | None = None
    """By how much that is less than without the kill."""
    outage_ms: float | None = None
    put_wait_ms: float | None = None
    """From the kill to the first acknowledged put."""
    standby_cpu: float = 0.0
    """Share of a core."""
    requests_per_s: float = 0.0
    evicted: int = 0
    hit_rates: list[float] = field(default_factory=list)
    """Over the run, in equal parts; the primary dies in the middle."""

    def facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Replay:
    """One client and its requests."""

    cache: Cache
    requests: list[Request]
    value_size: int
    stop: Event
    rate: float = 0.0
    """Requests per second; 0: no waiting."""
    looked: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    wrong: int = 0
    first_put_at: float = 0.0

    def run(self, requests: list[Request]) -> None:
        begun = now_seconds()
        for number, request in enumerate(requests):
            due = begun + number / self.rate if self.rate else 0.0
            if self.stop.wait(max(0.0, due - now_seconds())):
                raise KeyboardInterrupt
            self._serve(request)

    def _serve(self, request: Request) -> None:
        keys = [key_of(block) for block in request]
        there = self.cache.exists_many(keys)
        leading = there.index(False) if False in there else len(there)
        found = self.cache.get_many(keys[:leading]) if leading else {}
        for block in request[:leading]:
            value = found.get(key_of(block))
            if value is not None and value != value_of(block, self.value_size):
                self.wrong += 1
        rest = {key_of(block): value_of(block, self.value_size) for block in request[leading:]}
        if rest:
            self.cache.put_many(rest)
            if not self.first_put_at:
                self.first_put_at = now_seconds()
        self.looked.append(len(request))
        self.hits.append(len(found))

    def hit_rate(self, first: int, last: int) -> float:
        return sum(self.hits[first:last]) / max(1, sum(self.looked[first:last]))


class LabProbe:
    """Reads one key over and over, and remembers when it was answered."""

    def __init__(self, open_cache: Callable[[], Cache]) -> None:
        self.answered: list[float] = []
        self._open = open_cache
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lab-probe", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        try:
            with self._open() as cache:
                while not self._ended.wait(PROBE_EVERY_S):
                    cache.exists(key_of(0))
                    self.answered.append(now_seconds())
        except HoldfastError:
            # The gap in what was answered tells it.
            return


class Trial:
    """One preset from the start of its cluster to its end. The caller must end the fleet."""

    def __init__(
        self, preset: str, requests: list[Request], value_size: int, rate: float, wanted: ClusterWanted, stop: Event
    ) -> None:
        self.outcome = Outcome(preset)
        self.cluster = LocalCluster(Fleet(stop, lambda _: None), wanted)
        self._requests = requests
        self._value_size = value_size
        self._rate = rate
        self._stop = stop

    def connect(self) -> Cache:
        import holdfast

        return holdfast.connect(self.cluster.address, timeout=TIMEOUT_S)

    def run(self, kills: bool = True) -> Outcome:
        """Without a kill it is what the others are compared with."""
        primary = self.cluster.start(self._stop)
        half = len(self._requests) // 2
        with self.connect() as cache, LabProbe(self.connect) as probe:
            replay = Replay(cache, self._requests, self._value_size, self._stop, self._rate)
            self._first_half(replay, primary, half)
            before, _ = self._listed(cache, primary.name)
            after, evicted, killed_at = before, 0, now_seconds()
            if kills:
                self._kill(primary.name)
                after, evicted = self._listed(cache, self._await_another(primary.name))
            replay.first_put_at = 0.0
            replay.run(self._requests[half:])
            self._conclude(replay, half, before, after, evicted)
            if kills:
                self._tell_outage(replay, probe, killed_at)
        return self.outcome

    def _first_half(self, replay: Replay, primary: Status, half: int) -> None:
        outcome = self.outcome
        standby = next(child for child, _ in self.cluster.masters if child.name != primary.name)
        begun, cpu = now_seconds(), cpu_seconds(standby.pid)
        was = self._status(primary.name)
        replay.run(self._requests[:half])
        seconds = max(1e-6, now_seconds() - begun)
        now = self._status(primary.name)
        writes = now.log_batches - was.log_batches + now.renewal_writes - was.renewal_writes
        size = now.log_bytes - was.log_bytes + now.renewal_bytes - was.renewal_bytes
        outcome.coordination_writes_per_s = writes / seconds
        outcome.coordination_bytes_per_s = size / seconds
        outcome.renewal_delay_ms = now.renewal_delay_ms or None
        outcome.standby_cpu = (cpu_seconds(standby.pid) - cpu) / seconds
        outcome.requests_per_s = half / seconds
        outcome.evicted = now.evicted

    def _status(self, name: str) -> Status:
        seen = survey(self.cluster.addresses, "", seconds=5.0)
        found = next((one.status for one in seen if one.status is not None and one.status.name == name), None)
        if found is None:
            raise TryAgain(f"{name} does not answer; everything was stopped. Is the machine overloaded?")
        return found

    def _kill(self, name: str) -> None:
        os.kill(self.cluster.master_named(name).pid, signal.SIGKILL)

    def _listed(self, cache: Cache, name: str) -> tuple[set[str], int]:
        """The keys that this primary shows, and how many objects it had evicted when they were listed: leases end all
        the time, and let it evict more."""
        until = now_seconds() + TIMEOUT_S
        while True:
            evicted = self._status(name).evicted
            keys = set(cache.keys("lab/"))
            if self._status(name).evicted == evicted:
                return keys, evicted
            if now_seconds() > until:
                raise TryAgain(f"{name} evicts all the time, so its keys cannot be listed; everything was stopped")

    def _await_another(self, name: str) -> str:
        found = await_primary(
            lambda: survey(self.cluster.addresses, "", seconds=1.0),
            lambda status: status.name != name,
            now_seconds() + PRIMARY_WITHIN_S,
            self._stop,
        )
        if found is None:
            raise TryAgain(f"nobody took over from {name} in time; everything was stopped. Is the machine overloaded?")
        return found.name

    def _conclude(self, replay: Replay, half: int, before: set[str], after: set[str], evicted: int) -> None:
        outcome, total = self.outcome, len(self._requests)
        window = min(half, int(self._rate * WINDOW_S)) if self._rate else max(1, half // 2)
        outcome.objects = len(before)
        missing = len(before - after)
        outcome.gone, outcome.kept = max(0, missing - evicted), len(after - before) + max(0, evicted - missing)
        outcome.wrong = replay.wrong
        outcome.hit_rate_before = replay.hit_rate(half - window, half)
        outcome.hit_rate_after = replay.hit_rate(half, half + window)
        step = max(1, total // BUCKETS)
        outcome.hit_rates = [round(replay.hit_rate(at, at + step), 4) for at in range(0, total, step)]

    def _tell_outage(self, replay: Replay, probe: LabProbe, killed_at: float) -> None:
        gap_s = longest_gap_s(probe.answered, killed_at)
        self.outcome.outage_ms = round(gap_s * 1000, 1) if gap_s is not None else None
        if replay.first_put_at:
            self.outcome.put_wait_ms = round((replay.first_put_at - killed_at) * 1000, 1)


def cpu_seconds(pid: int) -> float:
    """That this process has used so far, as the kernel counts it."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
