"""Any sequence of requests, against a model that is too simple to be wrong.

Checked after every step: the keys and sizes (I7), that leased and pinned objects stay (I8), that a standby which
applies the same records holds the same catalogue (I5), that every byte of every segment is in one place (I9),
and that no two live objects, nor an object and memory somebody may still write or read, overlap (I2, I11). At the end
the standby is promoted, whatever it evicted by itself: its memory is accounted for too, nothing that was removed is
back (I7), and nothing that a reader may be reading is lent (I2). Evictions are logged, or not; leases travel, or not.
"""

from __future__ import annotations

import struct

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.core.promotion import promote
from holdfast.errors import HoldfastError
from holdfast.ids import GrantId, extent_of
from holdfast.master.engine.engine import Engine
from holdfast.messages import requests as q
from holdfast.messages.shapes import Attachment
from tests.core.copying import Nodes
from tests.core.world import World, check_partition

KEYS = st.sampled_from([f"key-{i}" for i in range(24)])
SIZES = st.sampled_from([1, 64, 65, 1_000, 4_096, 65_536, 70_000])
NODE_BYTES = 256 << 10
CLIENTS = st.sampled_from([7, 8])


class Machine(RuleBasedStateMachine):
    @initialize(nodes=st.integers(1, 3), watermark=st.sampled_from([0.5, 0.9, 1.0]), disks=st.integers(0, 2),
                eviction=st.sampled_from(["follow", "independent", "none"]),
                sync=st.sampled_from(["off", "batched", "every"]), guessed=st.booleans())  # fmt: skip
    def begin(self, nodes: int, watermark: float, disks: int, eviction: str, sync: str, guessed: bool) -> None:
        self.world = World(
            high_watermark=watermark,
            lease_ttl_ms=1_000,
            grant_timeout_ms=5_000,
            standby_eviction=eviction,
            lease_sync=sync,
        )
        self.nodes = nodes
        self.guessed = guessed
        """How the standby takes over at the end."""
        for i in range(nodes):
            self.world.node(f"n{i}", size=NODE_BYTES, boot=10 + i, connection=100 + i)
        self.orders = Nodes(self.world)
        for i in range(min(disks, nodes)):
            self.orders.mount_disk(f"n{i}", 10 + i, 70 + i, 256 << 10)
        self.model: dict[str, int] = {}
        """key -> size"""
        self.leased: dict[str, int] = {}
        """key -> until, and what must not go before"""
        self.pinned: set[str] = set()
        self.open: list[tuple[GrantId, int]] = []
        """Grants and how far each is filled."""
        self.removed: set[str] = set()

    def sync(self) -> None:
        """Evictions are the engine's choice; check that the choice was allowed, then follow it."""
        there = dict(zip(self.model, self.world.has(*self.model), strict=True)) if self.model else {}
        for key, found in there.items():
            if not found:
                assert key not in self.pinned, "I8: a hard pin was evicted"
                assert self.leased.get(key, 0) <= self.world.now, "I8: a leased object was evicted"
                del self.model[key]
                self.leased.pop(key, None)

    @rule(size=st.integers(1, 40), client=CLIENTS, writer=st.sampled_from([0, 1, 2]), replicas=st.integers(1, 2))
    def grant(self, size: int, client: int, writer: int, replicas: int) -> None:
        replicas = min(replicas, self.nodes)
        self.world.serial += 1
        grant = GrantId(client, self.world.serial)
        request = q.GrantRanges(grant, struct.pack("<Q", size * 4_096), replicas=replicas)
        if writer:
            request.attached = [Attachment(handle, writer) for handle in self.world.state.segments]
        reply = self.world.send(request, client)
        if isinstance(reply, q.Granted):
            self.open.append((grant, 0))
        self.sync()

    @rule(pick=st.integers(0, 50), keys=st.lists(KEYS, min_size=1, max_size=20, unique=True), size=SIZES,
          upsert=st.booleans(), hard=st.booleans(), soft=st.booleans())  # fmt: skip
    def commit(self, pick: int, keys: list[str], size: int, upsert: bool, hard: bool, soft: bool) -> None:
        if not self.open:
            return
        at = pick % len(self.open)
        grant, filled = self.open[at]
        if size >= 65_536:
            filled = -(-filled // 4_096) * 4_096
        rows = [(key, filled + i * extent_of(size), size) for i, key in enumerate(keys)]
        alive = grant in self.world.state.grants
        fits = alive and rows[-1][1] + extent_of(size) <= self.world.state.grants[grant].length
        try:
            stored = self.world.commit(grant, rows, upsert=upsert, hard_pin=hard, soft_pin=soft)
        except HoldfastError:
            assert not fits
            return
        if not fits:
            assert not any(stored), "a key that was there needs no place"
            return
        self.open[at] = (grant, rows[-1][1] + extent_of(size))
        for key, done in zip(keys, stored, strict=True):
            assert done == (upsert or key not in self.model), "the first commit of a key wins"
            if done:
                self.model[key] = size
                self.removed.discard(key)
                self.leased.pop(key, None)
                (self.pinned.add if hard else self.pinned.discard)(key)

    @rule(first=st.integers(0, 23), count=st.integers(1, 24), size=st.sampled_from([4_096, 8_192, 20_000]),
          replicas=st.integers(1, 2))  # fmt: skip
    def put(self, first: int, count: int, size: int, replicas: int) -> None:
        """Whole puts, one after another, so that the memory fills up."""
        for key in (f"key-{(first + i) % 24}" for i in range(count)):
            self.world.serial += 1
            grant = GrantId(9, self.world.serial)
            request = q.GrantRanges(grant, struct.pack("<Q", size), replicas=min(replicas, self.nodes))
            reply = self.world.send(request, 9, timeout_ms=0)
            self.sync()
            if isinstance(reply, q.Granted):
                stored = self.world.commit(grant, [(key, 0, size)])
                assert stored == [key not in self.model]
                self.world.ask(q.Done, q.ReturnGrants([grant]), 9)
                if stored[0]:
                    self.model[key] = size
                    self.removed.discard(key)
                    self.pinned.discard(key)

    @rule(pick=st.integers(0, 50), settled=st.booleans())
    def give_back(self, pick: int, settled: bool) -> None:
        if self.open:
            grant, _ = self.open.pop(pick % len(self.open))
            self.world.ask(q.Done, q.ReturnGrants([grant], settled), grant.client)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=20, unique=True))
    def locate(self, keys: list[str]) -> None:
        for key, (oid, _, _, size, _) in zip(keys, self.world.locate(*keys), strict=True):
            assert bool(oid) == (key in self.model)
            if oid:
                assert size == self.model[key]
                self.leased[key] = self.world.now + 1_000

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4, unique=True), force=st.booleans())
    def remove(self, keys: list[str], force: bool) -> None:
        self.world.remove(*keys, force=force)
        for key in keys:
            kept = not force and (key in self.pinned or self.leased.get(key, 0) > self.world.now)
            if not kept:
                self.removed.add(key)
                self.model.pop(key, None)
                self.leased.pop(key, None)
                self.pinned.discard(key)

    @rule(ms=st.sampled_from([1, 500, 1_001, 6_000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)
        self.sync()

    @rule(node=st.integers(0, 2), gone=st.sampled_from([(), (1,), (2,)]))
    def report(self, node: int, gone: tuple[int, ...]) -> None:
        node %= self.nodes
        self.world.report(10 + node, gone)
        self.world.report(10 + node, cleaned=tuple(self.world.asked_to_clean(10 + node)))
        self.sync()

    @rule()
    def obey(self) -> None:
        """Nodes copy what they were told to, whether or not it is still of use."""
        self.orders.obey()
        self.sync()

    @rule(node=st.integers(0, 2), mode=st.sampled_from(["open", "cordoned", "draining"]), evict=st.booleans())
    def set_aside(self, node: int, mode: str, evict: bool) -> None:
        reply = self.world.send(q.ChangeMode(f"n{node % self.nodes}", mode, evict))
        assert isinstance(reply, q.Done) or (isinstance(reply, q.Failed) and reply.code == "would_evict" and not evict)

    @rule(node=st.integers(0, 2), pages=st.integers(16, 120))
    def shrink(self, node: int, pages: int) -> None:
        request = q.ResizeNode(f"n{node % self.nodes}", pages * 4_096)
        reply = self.world.send(request)
        assert isinstance(reply, q.Done | q.Failed)

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "world"):
            return
        self.sync()  # A waiting put may have evicted something as soon as anything was freed.
        state = self.world.state
        held = {key for key in state.catalogue.keys if key is not None and state.catalogue.by_key.slot_of(key) >= 0}
        assert held == set(self.model)
        self.world.check_shown()
        self.world.check()

    @rule()
    def hear_of_it(self) -> None:
        """The standby is told of renewals, and evicts by itself."""
        self.world.pass_to_twin()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        was, twin = self.world.state, self.world.primary.twin
        now = self.world.now + 12_345
        rules = self.world.primary.rules
        logged = rules.standby_eviction == "follow"
        engine = Engine(promote(twin, rules, 5_000, not self.guessed, now, [] if self.guessed else None))
        engine.start_epoch(2, now)
        check_partition(engine.primary)
        by_key = twin.catalogue.by_key
        assert not [key for key in self.removed if by_key.slot_of(key) >= 0], "I7: what was removed is back"
        if rules.standby_eviction != "independent" or self.guessed:
            assert all(by_key.slot_of(key) >= 0 for key in self.model), "I1"
        if logged:
            assert twin.objects == was.objects
        free = {handle: allocator.free_ranges() for handle, allocator in engine.primary.allocators.items()}
        for key, until in self.leased.items():
            if until > self.world.now and key in self.model:
                for place in was.catalogue.replicas(was.catalogue.by_key.slot_of(key)):
                    end = place.offset + extent_of(self.model[key])
                    assert not [at for at, length in free[place.segment] if at < end and at + length > place.offset]


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
