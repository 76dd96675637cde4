"""Quota, guarantee and lease share under a storm of puts, reads, pins, removals and changes of quotas by three tenants
(I20), against a model that knows nothing but what was acknowledged."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.errors import BadValue, NoRoom, OverCommitted, TenantFull
from holdfast.ids import namespace_of
from tests.core.tenants_world import KIB, TenantsWorld
from tests.core.test_tenants import PRESETS

CAPACITY = 64 * KIB
TENANTS = (0, 1, 2)
tenant = st.sampled_from(TENANTS)
name = st.integers(0, 40).map("k{}".format)


class QuotaStorm(RuleBasedStateMachine):
    @initialize(
        preset=st.sampled_from(PRESETS),
        guaranteed=st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20)),
        limits=st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)),
        shares=st.tuples(*[st.sampled_from([0.0, 0.3, 0.8, 1.0])] * 3),
        margin=st.sampled_from([0.0, 0.1]),
    )
    def begin(
        self,
        preset: str,
        guaranteed: tuple[int, ...],
        limits: tuple[int, ...],
        shares: tuple[float, ...],
        margin: float,
    ) -> None:
        self.world = TenantsWorld(standby_eviction=preset, high_watermark=0.95, eviction_margin=margin)
        self.world.node("a", size=CAPACITY)
        for number in TENANTS[1:] + TENANTS[:1]:
            limit = limits[number] * KIB
            least = min(guaranteed[number] * KIB, limit) if limit else guaranteed[number] * KIB
            self.world.define(
                number, guaranteed_bytes=least, limit_bytes=limit, lease_share=shares[number], max_objects=30
            )
        self.leased: dict[tuple[int, str], tuple[int, int]] = {}
        """(tenant, name) -> (id, until): what was promised to readers."""
        self.last: dict[tuple[str, int], float] = {}
        """(quota, tenant) -> what it had of it at the last step."""

    def held(self) -> dict[int, int]:
        """The memory of each tenant that is within its limits. Others are above one that was lowered, and may be taken
        below their guarantees by it."""
        within: dict[int, int] = {}
        for number in TENANTS:
            quota, used = self.world.state.tenants.of(number), self.world.used(number)
            if used <= (quota.limit_bytes or CAPACITY) and len(self.world.names_of(number)) <= quota.max_objects:
                within[number] = used
        return within

    def check_guarantees(self, before: dict[int, int], own: int) -> None:
        """Nobody but the tenant itself took it below its guarantee."""
        for number, used in before.items():
            least = min(used, self.world.state.tenants.of(number).guaranteed_bytes)
            assert number == own or self.world.used(number) >= least

    @rule(
        number=tenant, names=st.lists(name, min_size=1, max_size=4, unique=True), size=st.integers(1, 6), data=st.data()
    )
    def put(self, number: int, names: list[str], size: int, data: st.DataObject) -> None:
        world = self.world
        upsert, hard = data.draw(st.booleans()), data.draw(st.integers(0, 9)) == 0
        before, there = self.held(), {one: world.names_of(one) for one in TENANTS}
        error = world.store(number, *names, size=size * KIB, upsert=upsert, hard_pin=hard)
        if error is None:
            assert set(names) <= world.names_of(number), "an acknowledged put is there"
            for one in names:
                if upsert:
                    self.leased.pop((number, one), None)
        else:
            assert isinstance(error, TenantFull | NoRoom)
        if isinstance(error, TenantFull):
            assert world.names_of(number) == there[number] or self.made_room(number, there), "nothing was thrown away"
        self.check_guarantees(before, number)

    def made_room(self, number: int, there: dict[int, set[str]]) -> bool:
        """The grant before the refused commit may have evicted for its memory, as any put does."""
        return self.world.names_of(number) < there[number]

    @rule(number=tenant, names=st.lists(name, min_size=1, max_size=20, unique=True))
    def read(self, number: int, names: list[str]) -> None:
        world = self.world
        located = world.read(number, *names)
        granted = located.leased or bytes([located.lease_ttl_ms > 0]) * len(names)
        ids = world.state.catalogue.by_key.slots_of([namespace_of(number) + one for one in names])
        for one, slot, is_leased in zip(names, ids, granted, strict=True):
            if slot >= 0 and is_leased:
                until = world.now + world.primary.rules.lease_ttl_ms
                self.leased[number, one] = (world.state.catalogue.id_at[slot], until)

    @rule(
        number=tenant,
        guaranteed=st.integers(0, 30),
        limit=st.integers(0, 40),
        share=st.sampled_from([0.0, 0.5, 1.0]),
        objects=st.integers(5, 30),
    )
    def change_quotas(self, number: int, guaranteed: int, limit: int, share: float, objects: int) -> None:
        """It counts at once: nothing that is there is thrown away by the change itself, and nothing more comes."""
        there, before = {one: self.world.names_of(one) for one in TENANTS}, self.world.state.tenants.of(number)
        try:
            changed = self.world.define(
                number,
                guaranteed_bytes=guaranteed * KIB,
                limit_bytes=limit * KIB,
                lease_share=share,
                hard_pin_share=share,
                max_objects=objects,
            )
        except (BadValue, OverCommitted):
            others = sum(self.world.state.tenants.of(one).guaranteed_bytes for one in TENANTS if one != number)
            too_much = others + guaranteed * KIB > 0.95 * CAPACITY and guaranteed * KIB > before.guaranteed_bytes
            assert too_much or guaranteed > limit > 0
            assert self.world.state.tenants.of(number) == before
        else:
            assert (changed.limit_bytes, changed.guaranteed_bytes) == (limit * KIB, guaranteed * KIB)
        assert {one: self.world.names_of(one) for one in TENANTS} == there

    @rule(number=tenant, one=name)
    def remove(self, number: int, one: str) -> None:
        if self.world.remove(namespace_of(number) + one, force=True).removed:
            self.leased.pop((number, one), None)

    @rule(ms=st.sampled_from([10, 300, 3_000, 12_000]))
    def wait(self, ms: int) -> None:
        before = self.held()
        self.world.pass_time(ms)
        self.check_guarantees(before, -1)
        self.world.pass_to_twin()

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        assert world.state.catalogue.holdings is not None
        guaranteed = sum(world.state.tenants.of(number).guaranteed_bytes for number in TENANTS)
        for number in TENANTS:
            quota = world.state.tenants.of(number)
            most = CAPACITY - guaranteed + quota.guaranteed_bytes
            self.check_quota("bytes", number, world.used(number), quota.limit_bytes or CAPACITY)
            self.check_quota("objects", number, len(world.names_of(number)), quota.max_objects)
            pinned = world.state.catalogue.holdings.of(number).pinned_bytes
            self.check_quota("pins", number, pinned, quota.hard_pin_share * min(most, quota.limit_bytes or most))

    def check_quota(self, quota: str, number: int, amount: float, most: float) -> None:
        """Within the quota; or, where that was lowered under what was there, not further above it."""
        assert amount <= max(most, self.last.get((quota, number), 0)), f"{quota} of tenant {number}"
        self.last[quota, number] = amount

    @invariant()
    def leases_hold_and_stay_within_the_share(self) -> None:
        if not hasattr(self, "world"):
            return
        world, catalogue = self.world, self.world.state.catalogue
        live = {one: lease for one, lease in self.leased.items() if lease[1] > world.now}
        total = dict.fromkeys(TENANTS, 0)
        for (number, one), (oid, _) in live.items():
            slot = catalogue.by_key.slot_of(namespace_of(number) + one)
            assert slot >= 0, "what is leased is not evicted (I8)"
            assert catalogue.id_at[slot] == oid
            total[number] += catalogue.size_at[slot]
        guaranteed = {number: world.state.tenants.of(number).guaranteed_bytes for number in TENANTS}
        for number, size in total.items():
            quota = world.state.tenants.of(number)
            most = CAPACITY - sum(guaranteed.values()) + guaranteed[number]
            self.check_quota("leases", number, size, quota.lease_share * min(most, quota.limit_bytes or most))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check()


TestQuotaStorm = QuotaStorm.TestCase
TestQuotaStorm.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
