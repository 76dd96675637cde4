"""A primary and its standby without processes: the engine, batches of its records that the standby takes, renewals
beside them, and two clocks, one of which is ahead by any amount.

Nothing passes from one to the other by itself: `replicate`, `renew` and `evict_on_standby` say when it does, so that a
story can crash the primary between any two of them.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from holdfast.core.objects.standby_eviction import evict_alone
from holdfast.core.primary.primary import Primary
from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.master.engine.engine import Engine
from holdfast.messages.shapes import Record
from holdfast.replication.batches import Position, encode_batch, encode_record
from holdfast.replication.renewals import RenewalReceiver, RenewalSender
from holdfast.replication.standby import Standby
from holdfast.settings import PRESETS, PresetName
from tests.core.world import World, check_partition

MIB = 1 << 20
LEADER_TTL_MS = 5_000


def rules_of(preset: PresetName, **more: object) -> Rules:
    chosen = PRESETS[preset]
    rules = replace(Rules(), **more)  # type: ignore[arg-type]
    return replace(
        rules,
        lease_sync=chosen.lease_sync,
        standby_eviction=chosen.standby_eviction,
        standby_eviction_grace_ms=rules.lease_ttl_ms if chosen.grace_ms is None else chosen.grace_ms,
    )


class Pair(World):
    """The world of a primary, with a standby beside it."""

    def __init__(self, preset: PresetName = "follow", ahead_ms: int = 987_654_321, **rules: object) -> None:
        super().__init__(**asdict(rules_of(preset, **rules)))
        self.ahead_ms = ahead_ms
        """How much further the standby's clock is."""
        self.standby = Standby()
        self.position = Position()
        self.receiver = RenewalReceiver()
        self.sender = RenewalSender(self.state, self.primary.rules, 1, self.now, MIB)
        self.published: dict[str, bytes] = {}
        """As coordination would hold it."""

    @property
    def rules(self) -> Rules:
        return self.primary.rules

    @property
    def standby_now(self) -> int:
        return self.now + self.ahead_ms

    def replicate(self) -> None:
        """Everything that was logged reaches the standby."""
        fresh: list[Record] = self.primary.records[self.position.index :]
        if fresh:
            batch, self.position = encode_batch(self.position, [encode_record(record) for record in fresh])
            self.standby.take(self.position.batch, batch, self.standby_now)

    def write_renewals(self) -> int:
        """As the primary's timer does; how many values."""
        if self.rules.lease_sync != "batched":
            return 0
        values = self.sender.take(self.now)
        for name, value, part in values:
            self.published[name] = value
            self.sender.wrote(value, part, 1)
        return len(values)

    def hear_renewals(self) -> None:
        """As the standby's watch does."""
        assert self.receiver.take(self.standby.state, self.published, self.standby_now) == []

    def renew(self) -> None:
        """The timer's turn: all that was renewed becomes known, in whichever way the preset has."""
        self.write_renewals()
        self.hear_renewals()
        self.replicate()

    def evict_on_standby(self) -> int:
        gone = 0
        while step := evict_alone(self.standby.state, self.rules, self.standby_now):
            gone += step
        return gone

    def standby_has(self, *keys: str) -> list[bool]:
        """Would it know them, if it were promoted now?"""
        return [self.standby.state.catalogue.by_key.slot_of(key) >= 0 for key in keys]

    def known_lease(self, key: str) -> int:
        """What the standby believes to be left of it."""
        catalogue = self.standby.state.catalogue
        return max(0, catalogue.lease_at[catalogue.by_key.slot_of(key)] - self.standby_now)

    def known_age(self, key: str) -> int:
        """How long the standby believes it not to have been used."""
        catalogue = self.standby.state.catalogue
        return self.standby_now - catalogue.used_at[catalogue.by_key.slot_of(key)]

    def crash(self, proven: bool = True) -> Successor:
        """The primary is gone; the standby takes over with what it holds."""
        return Successor(self, proven)


class Successor(World):
    """What the standby became."""

    def __init__(self, pair: Pair, proven: bool) -> None:
        self.now = pair.standby_now
        self.serial = pair.serial + 1_000
        self.late = []
        self.told, self.commands = {}, []
        self.proven = proven
        promoted: Primary = promote(pair.standby.state, pair.rules, LEADER_TTL_MS, proven, self.now)
        self.primary = promoted  # type: ignore[assignment]
        self.engine = Engine(promoted)
        self.engine.start_epoch(2, self.now)
        check_partition(promoted)

    @property
    def guard_ms(self) -> int:
        return self.primary.rules.lease_ttl_ms + (0 if self.proven else LEADER_TTL_MS)

    def lease_left(self, key: str) -> int:
        catalogue = self.state.catalogue
        return catalogue.lease_at[catalogue.by_key.slot_of(key)] - self.now
