"""Nothing leaves a master, and nothing is lent again, before the records that it rests on are durable."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from holdfast.core.copies.plan import begin
from holdfast.core.objects import reads, removals
from holdfast.core.primary.decision import Parked, Unfinished
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.ids import GrantId, object_id
from holdfast.instant import Instant
from holdfast.master.engine.engine import MAX_PENDING_BYTES, Engine
from holdfast.master.engine.shell import FOR_EVER, EngineShell
from holdfast.master.engine.waiting_room import Waiting
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import of_sessions as ss
from holdfast.messages import requests as q
from holdfast.messages.shapes import Attachment, Message
from holdfast.replication.batches import Position
from holdfast.replication.log_writer import PendingLog

CLIENT = 7


class Writer:
    """An engine whose log is written when the test says so."""

    def __init__(self, **rules: float) -> None:
        self.log = PendingLog(Position())
        self.leads_until: Instant = FOR_EVER
        self.on_durable: Callable[[], None] = lambda: None
        shell = EngineShell(
            leads_until=lambda: self.leads_until,
            on_durable=lambda: self.on_durable(),  # noqa: PLW0108 - a test may set it later.
        )
        self.engine = Engine(Primary(State(), Rules(**rules)), self.log, shell=shell)  # type: ignore[arg-type]
        self.engine.start_log(1, "test", b"secret", 0)
        self.engine.start_epoch(1, 0)
        self.now = 1_000
        self.sent: list[Message] = []
        self.ask(ss.OpenSession(5, "a"))
        self.ask(n.RegisterNode(5, 5, 0, "host", "a:1", "/a", [64 << 10]))
        self.write()

    def ask(self, request: Message) -> Message | None:
        """The reply if it may leave now; otherwise it will be in `sent`."""
        reply, after = self.engine.handle(request, CLIENT, 1, self.now)
        while isinstance(reply, Unfinished):
            reply, after = self.engine.handle(reply.step, CLIENT, 1, self.now)
        if isinstance(reply, Parked):
            assert isinstance(request, q.GrantRanges)
            self.engine.park(Waiting(request, CLIENT, 1, self.now + 1_000, self.sent.append), self.now)
            return None
        if not after:
            return reply
        self.engine.when_durable(after, lambda: self.sent.append(reply))
        return None

    def write(self) -> list[Message]:
        """Make everything durable; what left because of it."""
        before = len(self.sent)
        while (cut := self.log.cut(1 << 20)) is not None:
            batch, position = cut
            self.log.is_durable(position, batch)
            self.engine.after_durable(self.now)
        return self.sent[before:]

    def store(self, serial: int, key: str, size: int = 64) -> None:
        """A durable object."""
        self.grant(serial, size)
        self.write()
        self.commit(serial, key, size)
        self.write()

    def grant(self, serial: int, size: int) -> Message | None:
        return self.ask(q.GrantRanges(GrantId(CLIENT, serial), struct.pack("<Q", size), attached=[Attachment(1, 1)]))

    def commit(self, serial: int, key: str, size: int = 64, **more: object) -> Message | None:
        rows = struct.pack("<3Q", 0, size, 1)
        return self.ask(q.CommitPuts(GrantId(CLIENT, serial), [key], rows, **more))  # type: ignore[arg-type]


def test_a_grant_and_a_commit_leave_only_when_durable() -> None:
    """I1, I11"""
    writer = Writer()
    assert writer.grant(1, 64) is None
    [granted] = writer.write()
    assert isinstance(granted, q.Granted)
    assert writer.commit(1, "k") is None
    assert writer.write() == [q.Committed(b"\1")]


def test_a_reply_about_a_key_waits_for_that_keys_record_and_others_do_not() -> None:
    """I1: nobody is told of an object, or of its absence, that a crash could take back."""
    writer = Writer()
    writer.grant(1, 64)
    writer.write()
    writer.commit(1, "k")
    assert writer.ask(q.Exists(["other"])) == q.Presence(b"\0")
    for request in (q.Exists(["k"]), q.Locate(["other", "k"]), q.ListKeys(), q.Stat(["k"]), q.Explain(["k"])):
        assert writer.ask(request) is None
    assert len(writer.write()) == 6
    assert writer.ask(q.Exists(["k"])) == q.Presence(b"\1")
    assert writer.ask(q.Remove(["k"], 9, force=True)) is None
    assert writer.ask(q.Exists(["k"])) is None, "its absence rests on the removal"
    assert writer.ask(q.Remove(["k"], 9, force=True)) is None, "asked again, the answer waits as well"
    assert len(writer.write()) == 3


def test_pins_are_told_only_when_they_are_durable() -> None:
    """I1: who was told of a hard pin relies on it through a crash (I8)."""
    writer = Writer()
    writer.store(1, "k")
    writer.store(2, "other")
    assert writer.ask(q.ChangePins(["k"], hard_pin=True)) is None
    assert writer.ask(q.Stat(["k"])) is None, "it would show the pin"
    assert isinstance(writer.ask(q.Stat(["other"])), q.Stats)
    assert writer.ask(q.ChangePins(["k"], hard_pin=True)) is None, "asked again, the answer waits as well"
    first, stat, again = writer.write()
    assert (first, again) == (q.Presence(b"\1"), q.Presence(b"\1"))
    assert isinstance(stat, q.Stats)
    assert stat.stats[0] is not None
    assert stat.stats[0].hard_pin


def test_a_place_that_was_added_is_shown_only_when_that_is_durable() -> None:
    """I2: a primary that does not know of the copy lends its place again at once. Found by seed 7059."""
    writer = Writer()
    writer.ask(ss.OpenSession(6, "b"))
    writer.ask(n.RegisterNode(6, 6, 0, "host", "b:1", "/b", [64 << 10]))
    writer.store(1, "k")
    primary = writer.engine.primary
    catalogue = primary.state.catalogue
    slot = catalogue.by_key.slots_of(["k"])[0]
    place = catalogue.replicas(slot)[0]
    other = next(one for one in primary.state.memory_segments() if one.handle != place.segment)
    copy, _ = begin(primary, c.RECOVER, [(slot, place)], other, writer.now)
    writer.engine.carry_out(copy, writer.now)
    writer.write()
    row = struct.pack("<5Q", catalogue.id_at[slot], 0, place.segment, place.offset, catalogue.checksum_at[slot])
    added = n.AddReplicas(other.name.node, GrantId(0, object_id(1, 1)), row, b"")
    assert writer.ask(added) is None
    assert len(catalogue.replicas(slot)) == 2
    assert writer.ask(q.Locate(["k"])) is None
    assert [type(reply) for reply in writer.write()] == [q.Done, q.Located]


def test_a_put_that_does_not_wait_leaves_the_log_unawaited_until_a_reader_or_a_command_needs_it() -> None:
    """The log may then be written when it suits, and nobody waits longer than for an append."""
    writer = Writer()
    writer.grant(1, 64)
    writer.write()
    assert writer.commit(1, "k", durability="memory") is not None
    assert writer.engine.waits_for_log
    assert not writer.engine.replies_wait
    assert writer.ask(q.Exists(["k"])) is None
    assert writer.engine.replies_wait
    writer.write()
    assert not writer.engine.replies_wait
    assert writer.grant(2, 64) is None
    writer.write()
    writer.commit(2, "k2", durability="memory")
    writer.engine.notify("a", "test", b"", writer.now)
    assert writer.engine.replies_wait


def test_memory_durability_does_not_wait() -> None:
    writer = Writer()
    writer.grant(1, 64)
    writer.write()
    assert writer.commit(1, "k", durability="memory") == q.Committed(b"\1")
    assert writer.ask(q.Exists(["k"])) is None, "others still wait for its record"
    assert len(writer.write()) == 1


def test_memory_that_comes_with_a_commit_is_durable_before_it_is_answered() -> None:
    """I11: in every durability, as any grant."""
    writer = Writer()
    writer.grant(1, 64)
    writer.write()
    ahead = q.GrantRanges(GrantId(CLIENT, 2), struct.pack("<Q", 64), attached=[Attachment(1, 1)])
    assert writer.commit(1, "k", durability="memory", ahead=ahead) is None
    [committed] = writer.write()
    assert isinstance(committed, q.Committed)
    assert committed.ahead is not None
    refused = q.GrantRanges(GrantId(CLIENT, 3), struct.pack("<Q", 64 << 10))
    assert writer.commit(2, "l", durability="memory", ahead=refused) == q.Committed(b"\1"), "there was none"


def test_a_freed_range_is_lent_again_only_when_that_is_durable() -> None:
    """I9"""
    writer = Writer(high_watermark=1.0)
    writer.grant(1, 64 << 10)
    writer.write()
    writer.commit(1, "k", 64 << 10)
    writer.write()
    writer.ask(q.Remove(["k"], 1))
    assert writer.engine.primary.free_bytes == 0
    assert writer.grant(2, 64) is None
    assert writer.engine.parked == 1
    assert [type(reply) for reply in writer.write()] == [q.Removed, q.Granted]
    assert writer.engine.parked == 0


def test_past_its_leadership_deadline_it_decides_nothing() -> None:
    """I12"""
    writer = Writer()
    writer.leads_until = 2_000
    writer.now = 1_999
    assert writer.ask(q.Exists(["k"])) == q.Presence(b"\0")
    writer.now = 2_000
    for request in (q.Exists(["k"]), q.Locate(["k"]), q.GrantRanges(GrantId(CLIENT, 5), bytes(8)), q.Remove(["k"], 3)):
        reply = writer.ask(request)
        assert isinstance(reply, q.Failed)
        assert reply.code == "not_leader"
    assert writer.engine.tick(2_000) is False
    assert writer.log.index == writer.log.durable


def test_while_the_log_is_far_behind_puts_are_turned_away_and_nothing_is_dropped() -> None:
    writer = Writer()
    writer.log.bytes = MAX_PENDING_BYTES + 1
    reply = writer.grant(1, 64)
    assert isinstance(reply, q.Failed)
    assert reply.code == "log_slow"
    assert writer.ask(q.Exists(["k"])) == q.Presence(b"\0")


def test_after_a_takeover_by_guess_nothing_is_taken_away_until_it_is_settled() -> None:
    """I2: the old primary may still hand out leases on what would be removed."""
    writer = Writer()
    writer.engine.primary.doubt.until = 5_000
    for request in (q.Remove(["k"], 1), q.RemoveMatching("", 2)):
        reply = writer.ask(request)
        assert isinstance(reply, q.Failed)
        assert reply.code == "settling"
    writer.grant(1, 64)
    writer.write()
    upsert = writer.commit(1, "k", upsert=True)
    assert isinstance(upsert, q.Failed)
    assert writer.commit(1, "k") is None
    assert writer.write() == [q.Committed(b"\1")]
    writer.now = 5_000
    assert writer.ask(q.Remove(["k"], 3)) is None
    [removed] = writer.write()
    writer.engine.primary.doubt.until = 9_000
    assert writer.ask(q.Remove(["k"], 3)) == removed, "it is done: asking again takes nothing away"


def test_whoever_connects_is_told_the_segments_while_the_log_takes_no_more() -> None:
    """I10: reads need the segments, and these are durable."""
    writer = Writer()
    writer.grant(1, 64)
    assert isinstance(writer.ask(q.ListSegments()), q.SegmentList)
    writer.ask(ss.OpenSession(6, "b"))
    writer.write()
    writer.ask(n.RegisterNode(6, 6, 0, "host", "b:1", "/b", [64 << 10]))
    assert writer.ask(q.ListSegments()) is None, "now they are not"
    assert q.SegmentList in [type(reply) for reply in writer.write()]


def test_a_reader_renews_while_the_log_takes_no_more_unless_its_object_is_on_its_way_out() -> None:
    """I2, I10."""
    writer = Writer()
    writer.store(1, "key")
    located = writer.ask(q.Locate(["key"]))
    assert isinstance(located, q.Located)
    oid, segment, offset, _, _ = struct.unpack("<5Q", located.rows)
    seen = q.RenewLeases(struct.pack("<3Q", oid, segment, offset))
    writer.grant(2, 64)
    renewed = writer.ask(seen)
    assert isinstance(renewed, q.Presence)
    assert renewed.found == b"\1"
    writer.ask(q.Remove(["key"], 1, force=True))
    assert writer.ask(seen) is None, "a removal that may yet be undone is not told"
    assert writer.write()[-1] == q.Presence(b"\0", 10_000)


def test_what_is_on_its_way_to_be_free_is_not_evicted_for_again() -> None:
    """While the record of an eviction waits for a slow log, ticks and puts must not evict the rest of the cache."""
    writer = Writer(high_watermark=0.9, eviction_margin=0.1)
    for serial in range(1, 16):
        writer.store(serial, f"k{serial}", 4_096)
    for _ in range(20):
        writer.now += 50
        writer.engine.tick(writer.now)
    gone = writer.engine.evicted
    assert 0 < gone <= 3, "down to 80% of sixteen"
    for serial in range(20, 30):
        assert writer.grant(serial, 6_000) is None
    assert writer.engine.evicted <= gone + 3
    writer.write()
    assert writer.engine.primary.unlent_bytes == 0


def test_a_full_log_refuses_changes_by_name_and_answers_reads() -> None:
    """I10, I17: nothing more is decided that could not be written, and past the deadline the reason is the same."""
    writer = Writer()
    writer.store(1, "key")
    writer.log.full = "the disk of x.db is full; nothing was written; free some space there"
    index = writer.log.index
    for request in (q.RemoveMatching("k", 1), q.GrantRanges(GrantId(CLIENT, 2), struct.pack("<Q", 64))):
        refused = writer.ask(request)
        assert isinstance(refused, q.Failed)
        assert refused.code == "log_full"
        assert "free some space there" in refused.text
    assert writer.log.index == index
    assert isinstance(writer.ask(q.Exists(["key"])), q.Presence)
    writer.leads_until = 0
    refused = writer.ask(q.Exists(["key"]))
    assert isinstance(refused, q.Failed)
    assert refused.code == "log_full"
    writer.log.full = ""
    refused = writer.ask(q.Exists(["key"]))
    assert isinstance(refused, q.Failed)
    assert refused.code == "not_leader"


def test_a_node_is_asked_to_clean_only_when_the_end_of_the_grant_is_durable() -> None:
    """I6, I11: after a failover without that record the grant would be live, and its writer closed."""
    writer = Writer()
    heard: list[Message] = []
    grant = GrantId(CLIENT, 1)
    writer.ask(q.GrantRanges(grant, struct.pack("<Q", 64)))
    writer.write()
    keepalive = ss.KeepAlive(5, 1, 1)
    writer.engine.handle(keepalive, 0, 1, writer.now)
    writer.engine.park(Waiting(keepalive, 0, 1, writer.now + 60_000, heard.append), writer.now)
    writer.ask(q.ReturnGrants([grant], settled=False))
    writer.engine.tick(writer.now)
    assert heard == []
    writer.write()
    [answer] = heard
    assert isinstance(answer, ss.KeptAlive)
    [command] = answer.commands
    assert (command.name, c.decode_body(c.Clean, command.body).grants) == (c.CLEAN, [grant])


def test_the_answer_of_a_removal_in_steps_waits_for_the_records_of_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: also if the last step had nothing to remove."""
    monkeypatch.setattr(removals, "STEP_OBJECTS", 1)
    writer = Writer()
    writer.store(1, "k")
    assert writer.ask(q.Remove(["k", "none"], 9)) is None
    assert writer.write() == [q.Removed(1, missing=1)]


def test_a_look_in_steps_waits_for_its_keys_alone_and_not_for_a_full_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, I10"""
    monkeypatch.setattr(reads, "STEP_OBJECTS", 1)
    writer = Writer()
    writer.store(1, "k")
    writer.grant(2, 64)
    writer.log.full = "the disk of x.db is full"
    seen = writer.ask(q.Stat(["k", "none", "other"]))
    assert isinstance(seen, q.Stats)
    assert [one is not None for one in seen.stats] == [True, False, False]


def test_a_removal_in_steps_that_the_log_cannot_take_to_its_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "STEP_OBJECTS", 1)
    writer = Writer()
    writer.store(1, "k")
    writer.store(2, "l")
    reply, _ = writer.engine.handle(q.Remove(["k", "l"], 9), CLIENT, 1, writer.now)
    assert isinstance(reply, Unfinished)
    writer.log.full = "the disk of x.db is full"
    refused, _ = writer.engine.handle(reply.step, CLIENT, 1, writer.now)
    assert isinstance(refused, q.Failed)
    assert "What it did until then counts" in refused.text
    writer.log.full = ""
    writer.write()
    assert writer.ask(q.Remove(["k", "l"], 9)) is None
    assert writer.write() == [q.Removed(2)], "sent again, it goes on"
