"""A full node with objects that must stay, here and there: what puts evict, and how long a choice of victims takes.

No process and no socket: the engine is asked as a client asks it, small puts through shared grants. What stays is
chosen at random when the node is full: half of it leased, half pinned. Usage is looked at after every put.
"""

from __future__ import annotations

import random
import struct
import time
from dataclasses import dataclass, field

import numpy as np

from benchmarks.measure import Row, Scale, least_row, most_row
from holdfast.core.catalogue.catalogue import HARD_PIN
from holdfast.core.primary.decision import Parked
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.ids import GrantId, extent_of
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.waiting_room import Waiting
from holdfast.messages.of_nodes import RegisterNode
from holdfast.messages.of_sessions import OpenSession
from holdfast.messages.requests import CommitPuts, Failed, Granted, GrantRanges
from holdfast.messages.shapes import Message

KIB, MIB = 1 << 10, 1 << 20
CLIENT, CONNECTION = 7, 1
TICK_EVERY = 64
"""Puts between two ticks of the master."""
MIXED = (4 * KIB, 64 * KIB, MIB, 16 * MIB)
FOR_EVER = 1 << 60
STARTED = 1_000
MILLION = 1_000_000


@dataclass(slots=True)
class FullNode:
    """An engine with one node, and a client that puts into it."""

    size_bytes: int
    rules: Rules = field(default_factory=Rules)
    engine: Engine = field(init=False)
    now: int = STARTED
    grants: int = 0
    puts: int = 0
    refused: int = 0
    fullest: float = 0.0
    longest_s: float = 0.0
    """Of processor time, of one decision."""
    _serial: int = 0
    _shared: GrantId | None = None
    _left: int = 0
    _at: int = 0

    def __post_init__(self) -> None:
        self.engine = Engine(Primary(State(), self.rules))
        self.engine.start_log(1, "bench", bytes(32), 0)
        self.engine.start_epoch(1, 0)
        self._ask(OpenSession(1, "n"))
        sizes = [self.size_bytes]
        node = RegisterNode(session=1, boot=1, log_id=0, host="h", data_address="h:1", socket_path="", sizes=sizes)
        if self._ask(node) is None:
            raise SystemExit(f"a node of {self.size_bytes:,} bytes was refused")

    def _ask(self, request: Message) -> Message | None:
        started = time.thread_time()
        reply, _ = self.engine.handle(request, CLIENT, CONNECTION, self.now)
        self.longest_s = max(self.longest_s, time.thread_time() - started)
        if not isinstance(reply, Parked):
            return None if isinstance(reply, Failed) else reply
        assert isinstance(request, GrantRanges)
        found: list[Message] = []
        self.engine.park(Waiting(request, CLIENT, CONNECTION, FOR_EVER, found.append), self.now)
        while not found and self.engine.tick(self.now):
            pass
        if found:
            return found[0]
        self.engine.connection_lost(CONNECTION)
        return None

    def put(self, size: int) -> bool:
        """False: there was no room."""
        self.puts += 1
        self._serial += 1
        extent = extent_of(size)
        if size > self.rules.shared_grant_bytes // 8:
            grant, at = self._granted(struct.pack("<Q", size), [f"k{self._serial}"], 0), 0
        else:
            at = -(-self._at // KIB // 4) * KIB * 4 if size >= 64 * KIB else self._at
            if self._shared is None or at + extent > self._left:
                self._shared = self._granted(struct.pack("<Q", self.rules.shared_grant_bytes), [], size)
                at = 0
            grant, self._at = self._shared, at + extent
        if grant is None:
            self.refused += 1
            return False
        finished = [grant] if grant is not self._shared else []
        self._ask(CommitPuts(grant, [f"k{self._serial}"], struct.pack("<3Q", at, size, 1), finished=finished))
        self.fullest = max(self.fullest, self.used)
        if self._serial % TICK_EVERY == 0 or size >= MIB:
            self.tick()
        return True

    def _granted(self, sizes: bytes, keys: list[str], least: int) -> GrantId | None:
        self.grants += 1
        grant = GrantId(CLIENT, self.grants)
        finished = [self._shared] if self._shared is not None and not keys else []
        reply = self._ask(GrantRanges(grant, sizes, keys, finished=finished, least_bytes=least))
        if not isinstance(reply, Granted):
            return None
        if not keys:
            self._left = reply.length
        return grant

    def tick(self) -> None:
        started = time.thread_time()
        while self.engine.tick(self.now):
            self.longest_s = max(self.longest_s, time.thread_time() - started)
            started = time.thread_time()

    @property
    def used(self) -> float:
        primary = self.engine.primary
        return 1 - primary.free_bytes / primary.capacity_bytes

    def age(self, rng: np.random.Generator) -> None:
        """Everything was used at some time in the last hour."""
        catalogue = self.engine.state.catalogue
        catalogue.last_used[: catalogue.top] = self.now - rng.integers(1, 3_600_000, catalogue.top)

    def keep(self, share: float, rng: np.random.Generator) -> None:
        """Half of this share of the objects is leased from now on, half is pinned."""
        catalogue = self.engine.state.catalogue
        live = catalogue.live()
        chosen = rng.permutation(live)[: max(1, int(share * len(live)))]
        catalogue.lease_until[chosen[::2]] = FOR_EVER
        catalogue.flags[chosen[1::2]] |= HARD_PIN


@dataclass(frozen=True, slots=True)
class Found:
    used_least: float
    evicted: float
    """Bytes per byte put."""
    refused: int
    grants_per_put: float
    longest_ms: float


def measure(size_bytes: int, fill: tuple[int, ...], put_bytes: int, share: float, in_order: bool = False) -> Found:
    """Fill a node up to the watermark, keep some of it, and put 40% of its size anew."""
    rng, chance = np.random.default_rng(1), random.Random(1)
    node = FullNode(size_bytes)
    while node.fullest < node.rules.high_watermark - node.rules.eviction_margin / 2:
        # As many bytes of each size.
        node.put(chance.choices(fill, [1 / size for size in fill])[0])
    if not in_order:
        node.age(rng)
    node.keep(share, rng)
    node.grants = node.puts = node.refused = 0
    node.grants += node.engine.state.index  # Ids that were never used.
    first, node.longest_s = node.grants, 0.0
    stored, was = 0, _object_bytes(node)
    least = 1.0
    while stored < 0.4 * size_bytes:
        node.now += 1 if node.puts % 16 == 0 else 0
        if node.put(put_bytes):
            stored += extent_of(put_bytes)
        elif node.refused > 8:
            break
        least = min(least, node.used)
    evicted = (was + stored - _object_bytes(node)) / stored if stored else 0.0
    return Found(least, evicted, node.refused, (node.grants - first) / node.puts, 1e3 * node.longest_s)


def _object_bytes(node: FullNode) -> int:
    catalogue = node.engine.state.catalogue
    return sum(extent_of(catalogue.size_at[slot]) for slot in catalogue.live().tolist())


def run(scale: Scale) -> list[Row]:
    rows: list[Row] = []
    for share in (0.005, 0.05):
        for put_bytes in MIXED:
            size = scale.of(4096, 1024) * MIB if put_bytes > MIB else 256 * MIB
            rows += _rows(
                f"{_named(put_bytes)} into a node of such",
                measure(size, (put_bytes,), put_bytes, share),
                share,
                put_bytes,
            )
        for put_bytes in (64 * KIB, MIB):
            found = measure(256 * MIB, MIXED[:3], put_bytes, share)
            rows += _rows(f"{_named(put_bytes)} into a node of 4 KiB to 1 MiB", found, share, put_bytes)
    return [*rows, *_run_million(scale)]


def _rows(name: str, found: Found, share: float, put_bytes: int) -> list[Row]:
    name = f"{name}, {share:.1%} stay"
    rules = Rules()
    note = f"{found.grants_per_put:.3f} grants per put; longest decision {found.longest_ms:.1f} ms"
    floor = rules.high_watermark - 2 * rules.eviction_margin
    return [
        least_row(f"{name}: used memory at least", found.used_least, "of 1", round(floor, 3), note=note),
        most_row(f"{name}: evicted per byte put", found.evicted, "bytes", 1.5 if put_bytes <= MIB else 3),
        most_row(f"{name}: puts refused", found.refused, "puts", 0),
    ]


def _named(size: int) -> str:
    return f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"


def _run_million(scale: Scale) -> list[Row]:
    """The same choice among very many objects, used in random order: no request may wait long behind it."""
    objects = scale.of(MILLION, MILLION // 16)
    rows = []
    for put_bytes in (4 * KIB, MIB, 16 * MIB):
        rng = np.random.default_rng(1)
        node = FullNode(objects * 4 * KIB * 10 // 9 // MIB * MIB)
        while node.fullest < node.rules.high_watermark - node.rules.eviction_margin / 2:
            node.put(4 * KIB)
        node.age(rng)
        node.keep(0.0001, rng)
        node.grants, node.longest_s = node.engine.state.index, 0.0
        before, started = node.puts, time.thread_time()
        stored = 0
        while stored < 256 * MIB:
            node.now += 1 if node.puts % 16 == 0 else 0
            if not node.put(put_bytes):
                raise SystemExit("a put was refused")
            stored += put_bytes
        seconds = time.thread_time() - started
        note = f"{(node.puts - before) / seconds:,.0f} puts/s, one after another, without their bytes"
        name = f"{objects:,} objects of 4 KiB, puts of {_named(put_bytes)}: longest decision"
        rows.append(most_row(name, 1e3 * node.longest_s, "ms", 100, note=note))
    return rows
