"""`bench`: a quick look at what a client of this cluster gets, through the public client.

It puts at most a quarter of the free memory, so that it evicts nobody's objects, and removes what it put. It is
a look, not a measurement: `make bench` compares with raw sockets and memory copies in the same run.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import connection
from holdfast.cli.options import takes
from holdfast.cli.output import Output, human_bytes
from holdfast.errors import NoRoom
from holdfast.instant import now_seconds
from holdfast.settings import ClientSettings

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

BATCH = 512
SMALL_BYTES = 1 << 10
LARGE_BYTES = 1 << 20
MOST_SMALL = 16_384
MOST_BATCHES = 32
MOST_LARGE = 256
PHASES = 8


@dataclass(frozen=True, slots=True)
class BenchRow:
    what: str
    per_second: float
    unit: str


@dataclass(frozen=True, slots=True)
class Phase:
    """How long one figure may take, and how much it may put."""

    seconds: float
    room_bytes: int

    def rate(self, step: Callable[[int], None], most: int | None = None) -> float:
        """Steps per second."""
        began = now_seconds()
        done = 0
        while now_seconds() - began < self.seconds and (most is None or done < most):
            step(done)
            done += 1
        return done / max(now_seconds() - began, 1e-9)

    def fits(self, most: int, each_bytes: int) -> int:
        return max(1, min(most, self.room_bytes // each_bytes))


@takes(ClientSettings)
def bench(
    settings: ClientSettings,
    out: Output,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="About how long to measure.")] = 4.0,
) -> None:
    """Measure puts, gets and probes against the cluster, one client, one thread."""
    with connection.open_cache(settings) as cache:
        status = cache.status()
        phase = Phase(seconds / PHASES, status.free_bytes // 12)
        if phase.room_bytes < LARGE_BYTES:
            raise NoRoom(
                f"only {human_bytes(status.free_bytes)} are free and bench evicts nobody's objects; nothing was put. "
                "Add a node, or remove objects"
            )
        prefix = f"bench/{secrets.token_hex(6)}/"
        try:
            rows = [*_singles(cache, prefix, phase), *_batches(cache, prefix, phase), *_large(cache, prefix, phase)]
        finally:
            cache.remove_matching(f"^{re.escape(prefix)}", force=True)
    if out.as_json:
        out.data({"rows": rows_of(rows), "objects": status.objects, "durability": "the cluster's own"})
        return
    out.table(("WHAT", "A SECOND", ""), [(row.what, f"{row.per_second:,.0f}", row.unit) for row in rows], ("A SECOND",))


def rows_of(rows: list[BenchRow]) -> list[dict[str, object]]:
    return [{"what": row.what, "per_second": round(row.per_second, 1), "unit": row.unit} for row in rows]


def _singles(cache: Cache, prefix: str, phase: Phase) -> list[BenchRow]:
    value = os.urandom(SMALL_BYTES)
    most = phase.fits(MOST_SMALL, SMALL_BYTES)
    cache.put(f"{prefix}one", value)
    return [
        BenchRow("put 1 KiB", phase.rate(lambda step: _ignore(cache.put(f"{prefix}s{step}", value)), most), "calls"),
        BenchRow("exists", phase.rate(lambda _: _ignore(cache.exists(f"{prefix}one"))), "calls"),
        BenchRow("get 1 KiB, same key", phase.rate(lambda _: _ignore(cache.get(f"{prefix}one"))), "calls"),
    ]


def _batches(cache: Cache, prefix: str, phase: Phase) -> list[BenchRow]:
    value = os.urandom(SMALL_BYTES)
    most = phase.fits(MOST_BATCHES, BATCH * SMALL_BYTES)

    def keys(step: int) -> list[str]:
        return [f"{prefix}b{step}/{number}" for number in range(BATCH)]

    put = phase.rate(lambda step: _ignore(cache.put_many(dict.fromkeys(keys(step), value))), most)
    first = keys(0)
    exists = phase.rate(lambda _: _ignore(cache.exists_many(first)))
    got = phase.rate(lambda _: _ignore(cache.get_many(first)))
    return [
        BenchRow("put_many of 512, 1 KiB", put * BATCH, "keys"),
        BenchRow("exists_many of 512", exists * BATCH, "keys"),
        BenchRow("get_many of 512, 1 KiB", got * BATCH, "keys"),
    ]


def _large(cache: Cache, prefix: str, phase: Phase) -> list[BenchRow]:
    value = os.urandom(LARGE_BYTES)
    most = phase.fits(MOST_LARGE, LARGE_BYTES)
    put = phase.rate(lambda step: _ignore(cache.put(f"{prefix}l{step}", value)), most)
    buffer = bytearray(LARGE_BYTES)
    got = phase.rate(lambda _: _ignore(cache.get_into(f"{prefix}l0", buffer)))
    return [BenchRow("put 1 MiB", put, "MiB"), BenchRow("get_into 1 MiB", got, "MiB")]


def _ignore(_: object) -> None:
    """A step gives nothing back."""
