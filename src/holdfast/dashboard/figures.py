"""What people read off two overviews of a master: rates, the hit rate, quantiles of latency, the cost of a failover.

An overview holds counts since the process began. The page of the dashboard derives the same in its script;
`tests/dashboard/test_figures.py` has both derive from the same overviews, so that browser and terminal never differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Facts: TypeAlias = dict[str, Any]
"""An overview: at least the fields of `OverviewShown`."""
MINUTE_MS = 60_000
MEDIAN, TAIL = 0.5, 0.99


def _sum(counts: Mapping[str, int] | None) -> int:
    return sum((counts or {}).values())


def _per_second(count: Callable[[Facts], float]) -> Callable[[Facts, Facts, float], float]:
    return lambda now, earlier, seconds: (count(now) - count(earlier)) / seconds


def _hit_rate(now: Facts, earlier: Facts, seconds: float) -> float:
    hits, misses = now["hits"] - earlier["hits"], now["misses"] - earlier["misses"]
    return float(hits / (hits + misses))


RATES: dict[str, Callable[[Facts, Facts, float], float]] = {
    "requests": _per_second(lambda facts: _sum(facts["requests"])),
    "hit_rate": _hit_rate,
    "found_bytes": _per_second(lambda facts: facts["hit_bytes"]),
    "stored_bytes": _per_second(lambda facts: facts["stored_bytes"]),
    "evicted": _per_second(lambda facts: facts["evicted"]),
    "tcp_read_bytes": _per_second(lambda facts: facts["tcp_read_bytes"]),
    "tcp_written_bytes": _per_second(lambda facts: facts["tcp_written_bytes"]),
    "refused": _per_second(lambda facts: _sum(facts["failures"])),
}
"""Per second, and the hit rate as a share. Most of them only a primary counts."""


def rates(now: Facts, earlier: Facts) -> dict[str, float | None]:
    """None: it is not counted here, or there was nothing to count."""
    seconds = (now["uptime_ms"] - earlier["uptime_ms"]) / 1000
    found: dict[str, float | None] = {}
    for name, rate in RATES.items():
        try:
            value = rate(now, earlier, seconds)
        except (KeyError, ZeroDivisionError):
            found[name] = None
        else:
            found[name] = value if value >= 0 else None
    return found


@dataclass(frozen=True, slots=True)
class VerbFigures:
    """Requests of one verb that were answered between two overviews."""

    verb: str
    per_second: float | None
    median_seconds: float | None
    """At most so long; None: there was none, or it took longer than the last bound."""
    tail_seconds: float | None
    """99 of 100 took at most so long."""
    recent: int
    total: int


def verbs(now: Facts, before: Facts) -> list[VerbFigures]:
    """The most frequent first."""
    seconds = (now["uptime_ms"] - before["uptime_ms"]) / 1000
    bounds, found = now["latency_bounds_seconds"], []
    for verb, counts in now["latencies"].items():
        earlier = before["latencies"].get(verb) or [0] * len(counts)
        new = [count - former for count, former in zip(counts, earlier, strict=True)]
        recent = new[-1]
        found.append(
            VerbFigures(
                verb,
                recent / seconds if seconds > 0 else None,
                _within(new, bounds, MEDIAN),
                _within(new, bounds, TAIL),
                recent,
                counts[-1],
            )
        )
    return sorted(found, key=lambda one: -one.total)


def _within(counts: list[int], bounds: list[float], share: float) -> float | None:
    """The bound within which this share of them was answered."""
    if not counts[-1]:
        return None
    return next((bound for bound, count in zip(bounds, counts, strict=False) if count >= share * counts[-1]), None)


def evictions(now: Facts, before: Facts) -> dict[str, float | None]:
    """Reason -> objects evicted per second; empty where they are not counted."""
    seconds = (now["uptime_ms"] - before["uptime_ms"]) / 1000
    earlier = before.get("evicted_objects", {})
    return {
        reason: (count - earlier.get(reason, 0)) / seconds if seconds > 0 else None
        for reason, count in now.get("evicted_objects", {}).items()
    }


@dataclass(frozen=True, slots=True)
class Samples:
    """The overviews of the last minute, all of one process in one role: counts of others cannot be compared."""

    minute: tuple[Facts, ...] = ()

    def with_next(self, now: Facts) -> Samples:
        kept = self.minute if self.minute and _comparable(now, self.minute[-1]) else ()
        return Samples((*(one for one in kept if one["uptime_ms"] >= now["uptime_ms"] - MINUTE_MS), now))

    @property
    def now(self) -> Facts:
        return self.minute[-1]

    @property
    def before(self) -> Facts:
        """The one of a minute ago, or the oldest since."""
        return self.minute[0]

    @property
    def last_rates(self) -> dict[str, float | None]:
        """Between the last two."""
        return rates(self.minute[-1], self.minute[-2]) if len(self.minute) > 1 else dict.fromkeys(RATES)


def _comparable(now: Facts, earlier: Facts) -> bool:
    same = all(now[fact] == earlier[fact] for fact in ("name", "role", "epoch"))
    return same and bool(now["uptime_ms"] > earlier["uptime_ms"])


def successors(now: Facts) -> list[str]:
    """Masters that could take over at once."""
    return [one["name"] for one in now["masters"] if one["role"] != "primary" and one["promotable"]]


def loss(now: Facts) -> str:
    """What would be lost if the primary died now."""
    if now["alone"]:
        return "Everything would be lost: this master is alone, and its log is in memory only."
    ready = " or ".join(successors(now))
    heir = f"{ready} would take over. " if ready else "Nobody could take over at once: no standby has caught up. "
    if now["role"] != "primary":
        return f"{heir}Of what was acknowledged nothing would be lost that is in the log."
    behind = now["index"] - now["durable_index"]
    if now["durability"] == "memory":
        records = f"{behind:,} record{'' if behind == 1 else 's'}"
        return f"{heir}Up to {records} would be lost that were acknowledged from memory."
    return f"{heir}Nothing that was acknowledged would be lost."
