"""Object events: every master tells the same of a batch under the same number, and nothing that is not durable."""

from __future__ import annotations

import struct

from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.ids import GrantId
from holdfast.master.engine.engine import Engine
from holdfast.master.object_events.events import ObjectEvents, Told
from holdfast.messages import of_nodes as n
from holdfast.messages import of_sessions as ss
from holdfast.messages import requests as q
from holdfast.messages.shapes import Attachment, Message
from holdfast.replication.batches import Position
from holdfast.replication.log_writer import PendingLog
from holdfast.replication.standby import Standby

CLIENT = 7


class Heard:
    def __init__(self) -> None:
        self.told: list[Told] = []

    def publish(self, told: Told) -> None:
        self.told.append(told)

    @property
    def keys(self) -> set[str]:
        """What a subscriber makes of it."""
        found: set[str] = set()
        for told in self.told:
            if told.cleared:
                found.clear()
            for stored, keys in told.changes:
                (found.update if stored else found.difference_update)(keys)
        return found


class Pair:
    """A primary whose log is written when the test says so, and a standby that follows it."""

    def __init__(self) -> None:
        self.log = PendingLog(Position())
        self.at_primary, self.at_standby = Heard(), Heard()
        state, events = State(), ObjectEvents(self.at_primary)
        events.follow(state)
        self.engine = Engine(Primary(state, Rules()), self.log, object_events=events)
        self.standby = Standby()
        self.standby_events = ObjectEvents(self.at_standby)
        self.standby_events.follow(self.standby.state)
        self.now = 1_000
        self.serial = 0
        self.engine.start_log(1, "test", b"secret", 0)
        self.engine.start_epoch(1, 0)
        self.ask(ss.OpenSession(5, "a"))
        self.ask(n.RegisterNode(5, 5, 0, "host", "a:1", "/a", [64 << 10]))
        self.write()

    def ask(self, request: Message) -> None:
        self.engine.handle(request, CLIENT, 1, self.now)

    def put(self, *keys: str, upsert: bool = False) -> None:
        self.serial += 1
        sizes = struct.pack(f"<{len(keys)}Q", *[64] * len(keys))
        grant = GrantId(CLIENT, self.serial)
        self.ask(q.GrantRanges(grant, sizes, list(keys), attached=[Attachment(1, 1)], upsert=upsert))
        rows = b"".join(struct.pack("<3Q", 64 * place, 64, 1) for place in range(len(keys)))
        self.ask(q.CommitPuts(grant, list(keys), rows, upsert=upsert))

    def write(self) -> None:
        while (cut := self.log.cut(1 << 20)) is not None:
            batch, position = cut
            self.log.is_durable(position, batch)
            self.engine.after_durable(self.now)
            self.standby.take(position.batch, batch, self.now)
            self.standby_events.taken(position.batch, self.standby.state)


def test_a_standby_tells_what_the_primary_tells_under_the_same_numbers() -> None:
    pair = Pair()
    pair.put("a", "b")
    pair.write()
    pair.put("c")
    pair.ask(q.Remove(["a"], 1, force=True))
    pair.write()
    pair.ask(q.GrantRanges(GrantId(CLIENT, 99), struct.pack("<Q", 64), attached=[Attachment(1, 1)]))
    pair.write()
    assert pair.at_primary.told == pair.at_standby.told
    assert [told.number for told in pair.at_primary.told] == [1, 2, 3, 4], "also where no key changed"
    assert pair.at_primary.told[0].cleared
    assert pair.at_primary.told[3].changes == []
    assert pair.at_primary.keys == {"b", "c"}


def test_nothing_is_told_before_it_is_durable() -> None:
    """I1: a crash could take it back."""
    pair = Pair()
    before = list(pair.at_primary.told)
    pair.put("a")
    assert pair.at_primary.told == before
    pair.write()
    assert pair.at_primary.keys == {"a"}


def test_a_replaced_object_is_stored_in_the_end() -> None:
    pair = Pair()
    pair.put("a")
    pair.write()
    pair.put("a", upsert=True)
    pair.write()
    assert pair.at_primary.keys == pair.at_standby.keys == {"a"}


def test_a_lost_node_takes_its_keys_with_it() -> None:
    pair = Pair()
    pair.put("a", "b")
    pair.write()
    pair.ask(ss.OpenSession(6, "a"))
    pair.ask(n.RegisterNode(6, 6, 0, "host", "a:1", "/a", [64 << 10]))
    pair.write()
    assert pair.at_primary.keys == pair.at_standby.keys == set()


def test_a_master_that_follows_again_does_not_repeat_what_it_has_told() -> None:
    pair = Pair()
    batches = []
    pair.put("a")
    cut = pair.log.cut(1 << 20)
    assert cut is not None
    batches.append(cut)
    batch, position = cut
    pair.log.is_durable(position, batch)
    pair.engine.after_durable(pair.now)
    told = list(pair.at_primary.told)
    # Deposed, it starts over with what a standby holds, under the same object.
    events = pair.engine.object_events
    assert events is not None
    pair.put("never durable")
    events.follow(pair.standby.state)
    pair.standby.take(position.batch, batch, pair.now)
    events.taken(position.batch, pair.standby.state)
    assert pair.at_primary.told == told
    events.durable(position.batch + 1, position.index + 1)
    assert pair.at_primary.told[-1].changes == [], "what was not durable is forgotten"


def test_a_master_without_a_log_numbers_what_it_tells() -> None:
    heard = Heard()
    engine = Engine(Primary(State(), Rules()), object_events=ObjectEvents(heard))
    engine.start_log(1, "test", b"secret", 0)
    engine.start_epoch(1, 0)
    engine.handle(ss.OpenSession(5, "a"), CLIENT, 1, 1_000)
    engine.handle(n.RegisterNode(5, 5, 0, "host", "a:1", "/a", [64 << 10]), CLIENT, 1, 1_000)
    grant = GrantId(CLIENT, 1)
    engine.handle(q.GrantRanges(grant, struct.pack("<Q", 64), ["k"], attached=[Attachment(1, 1)]), CLIENT, 1, 1_000)
    engine.handle(q.CommitPuts(grant, ["k"], struct.pack("<3Q", 0, 64, 1)), CLIENT, 1, 1_000)
    assert [told.number for told in heard.told] == [1, 2]
    assert heard.told[0].cleared
    assert heard.keys == {"k"}
