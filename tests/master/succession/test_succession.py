"""The primary's side of durability `standby`: what may leave on a successor's word, and when it waits for the log."""

from __future__ import annotations

import pytest

from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.shell import FOR_EVER, EngineShell
from holdfast.master.succession import succession
from holdfast.master.succession.succession import WANTED_MS, Succession
from holdfast.messages import of_nodes as n
from holdfast.messages import of_sessions as ss
from holdfast.messages import requests as q
from holdfast.messages.log_versions import SUCCESSORS
from holdfast.messages.records import ObjectsCommitted, SuccessorNamed
from holdfast.messages.rows import PutRow
from holdfast.messages.shapes import Message
from holdfast.replication.batches import Position, decode_record
from holdfast.replication.log_writer import PendingLog

CLIENT = 7
LIFE = 99


class Story:
    """A primary whose log is written, and whose successor answers, when the test says so."""

    def __init__(self, default: str = "durable", read_by_all: int = SUCCESSORS) -> None:
        self.log = PendingLog(Position())
        self.leads_until: Instant = FOR_EVER
        primary = Primary(State(), Rules())
        primary.read_by_all = lambda: read_by_all
        self.engine = Engine(primary, self.log, default, shell=EngineShell(leads_until=lambda: self.leads_until))
        self.engine.start_log(1, "test", b"secret", 0)
        self.engine.start_epoch(1, 0)
        self.now = 1_000
        self.received: list[tuple[int, list[bytes]]] = []
        self.sent: list[str] = []
        self._puts = 0
        self.ask(ss.OpenSession(5, "a"))
        self.ask(n.RegisterNode(5, 5, 0, "host", "a:1", "/a", [1 << 20]))
        self.grant = q.GrantRanges(q.GrantId(CLIENT, 1), (64 << 10).to_bytes(8, "little"))
        self.write()
        assert isinstance(self.ask(self.grant)[0], q.Granted)
        self.write()

    @classmethod
    def with_successor(cls, default: str = "durable") -> Story:
        """The log names the successor, which holds all records so far."""
        story = cls(default)
        story.name()
        story.write()
        story.answer()
        return story

    @property
    def succession(self) -> Succession:
        assert self.engine.succession is not None
        return self.engine.succession

    def ask(self, request: Message) -> tuple[object, int]:
        return self.engine.handle(request, CLIENT, 1, self.now)

    def put(self, key: str, durability: str = "standby") -> None:
        """The key is in `sent` once the reply has left."""
        row = PutRow.pack(64 * self._puts, 64, 0)
        self._puts += 1
        reply, after = self.ask(q.CommitPuts(self.grant.grant, [key], row, durability=durability))
        assert isinstance(reply, q.Committed), reply
        self.engine.when_durable(after, lambda: self.sent.append(key))

    def write(self) -> None:
        while (cut := self.log.cut(1 << 20)) is not None:
            self.log.is_durable(cut[1], cut[0])
        self.engine.after_durable(self.now)

    def name(self) -> bool:
        return self.succession.name_one(
            "b", LIFE, lambda first, records: self.received.append((first, records)), self.now
        )

    def answer(self) -> bool:
        """The successor holds what it was sent last."""
        first, records = self.received[-1]
        return self.succession.answered(first + len(records) - 1, self.now)

    @property
    def of_last(self) -> list[object]:
        return [decode_record(record) for record in self.received[-1][1]]


def test_a_put_leaves_when_the_successor_holds_its_record_and_the_log_does_not_yet() -> None:
    story = Story()
    assert story.name()
    story.write()
    assert story.of_last == [SuccessorNamed("b", LIFE)]
    assert story.answer()
    story.put("k")
    assert [type(record) for record in story.of_last] == [ObjectsCommitted]
    assert story.sent == []
    assert story.answer()
    assert story.sent == ["k"]
    assert story.log.durable < story.log.index


def test_one_request_is_under_way_and_the_next_takes_all_that_came_meanwhile() -> None:
    story = Story.with_successor()
    for key in "abc":
        story.put(key)
    assert len(story.of_last) == 1
    story.answer()
    assert (story.sent, len(story.of_last), story.succession.lag) == (["a"], 2, 2)
    story.answer()
    assert (story.sent, story.succession.lag) == (["a", "b", "c"], 0)


def test_what_has_gathered_goes_in_pieces_that_fit_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story.with_successor()
    monkeypatch.setattr(succession, "MOST_SENT_BYTES", 150)
    for number in range(6):
        story.put(f"{number}" * 40)
    pieces = []
    while len(story.sent) < 6:
        pieces.append(len(story.received[-1][1]))
        assert story.answer()
    assert (len(pieces) > 2, sum(pieces)) == (True, 6)


def test_its_word_counts_only_when_the_log_names_it() -> None:
    """Otherwise a master that wins the term would not know of it (I1)."""
    story = Story()
    story.name()
    story.answer()
    story.put("k")
    story.answer()
    assert story.sent == []
    story.write()
    assert story.sent == ["k"]


def test_its_word_counts_only_while_the_term_is_valid() -> None:
    """I12."""
    story = Story.with_successor()
    story.put("k")
    story.leads_until = story.now
    story.answer()
    assert story.sent == []


@pytest.mark.parametrize("named", [False, True], ids=["nobody is named", "it does not answer"])
def test_without_its_word_a_put_waits_for_the_log(named: bool) -> None:
    story = Story.with_successor() if named else Story()
    story.put("k")
    assert story.sent == []
    story.write()
    assert story.sent == ["k"]


def test_when_it_is_given_up_what_waits_for_it_waits_for_the_log() -> None:
    story = Story.with_successor()
    story.put("k")
    assert story.log.waiting == 0
    story.succession.end(story.now)
    assert (story.log.waiting, story.succession.waiting, story.sent) == (1, 0, [])
    story.put("l")
    assert len(story.received) == 2, "it is sent nothing more"
    story.write()
    assert story.sent == ["k", "l"]
    assert story.engine.state.successor.name == ""


def test_nobody_is_named_before_the_end_of_the_last_one_is_durable() -> None:
    """What was acknowledged on its word might be in no log, and it drops that when it is named again (I1)."""
    story = Story()
    story.name()
    story.write()
    story.succession.end(story.now)
    assert not story.name()
    story.write()
    assert story.name()


def test_an_answer_for_other_records_than_were_sent_is_not_believed() -> None:
    story = Story()
    story.name()
    story.write()
    first, records = story.received[-1]
    assert not story.succession.answered(first + len(records), story.now)
    assert not story.succession.answered(first - 1, story.now)


def test_while_an_older_master_is_known_nobody_is_named() -> None:
    """ADR 64: it could lead next, and would know nothing of a successor."""
    story = Story(read_by_all=SUCCESSORS - 1)
    index = story.log.index
    assert not story.name()
    assert (story.log.index, story.log.copied, story.succession.name) == (index, None, "")
    story.put("k")
    story.write()
    assert story.sent == ["k"]


def test_a_put_of_a_key_that_is_there_rides_on_the_word_too() -> None:
    story = Story.with_successor()
    story.put("k")
    story.answer()
    story.put("k")
    assert story.sent == ["k", "k"]


@pytest.mark.parametrize(("default", "asked", "leaves"), [
    ("durable", "", False), ("durable", "standby", True), ("standby", "", True), ("standby", "durable", False),
    ("standby", "memory", True),
])  # fmt: skip
def test_the_request_or_the_masters_setting_says_what_a_put_waits_for(default: str, asked: str, leaves: bool) -> None:
    story = Story.with_successor(default)
    story.put("k", asked)
    story.answer()
    assert (story.sent == ["k"]) is leaves


def test_everything_but_the_put_waits_for_the_log() -> None:
    """A reader might otherwise act on what two failures take back."""
    story = Story.with_successor("standby")
    story.put("k")
    story.answer()
    grant = q.GrantRanges(q.GrantId(CLIENT, 2), (64).to_bytes(8, "little"))
    for request in (q.Locate(["k"]), q.Exists(["k"]), grant, q.Remove(["k"], serial=1, force=True)):
        reply, after = story.ask(request)
        assert after > story.log.durable, reply
        story.engine.when_durable(after, lambda: story.sent.append("other"))
        story.answer()
    assert story.sent == ["k"]


def test_a_successor_that_nobody_needs_is_idle_after_a_while() -> None:
    story = Story.with_successor()
    assert not story.succession.is_idle(story.now + WANTED_MS)
    assert story.succession.is_idle(story.now + WANTED_MS + 1)
    story.put("k")
    assert not story.succession.is_idle(story.now + WANTED_MS + 1)
