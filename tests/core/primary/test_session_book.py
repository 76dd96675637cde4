"""The master's book of sessions: when keepalives are answered, when sessions end, what commands confirm."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.core import upkeep
from holdfast.core.nodes import membership
from holdfast.core.primary.primary import Primary
from holdfast.core.primary.session_book import CLOSE_AGAIN_MS, MAX_COMMANDS, Book, Session, SessionTimes
from holdfast.core.promotion import promote
from holdfast.ids import GrantId
from holdfast.instant import lengthened
from holdfast.master.engine import engine
from holdfast.master.engine.waiting_room import Waiting
from holdfast.messages.of_sessions import CloseSession, EpochDiffers, KeepAlive, KeptAlive, OpenSession
from holdfast.messages.records import SessionClosed, SessionEnd
from holdfast.messages.requests import Done, Failed, Granted, GrantRanges, ReturnGrants
from holdfast.messages.shapes import Record
from tests.core.world import CLIENT, World
from tests.master.engine.test_durability import Writer

LEASE, LEFT, JEOPARDY = 12_000, 5_000, 30_000
WHOLE = lengthened(LEASE + JEOPARDY)
S = 41


class Heard:
    """A book with one session, and what its follower and its user hear."""

    def __init__(self, epoch: int = 3) -> None:
        self.book = Book(SessionTimes(LEASE, LEFT, JEOPARDY), epoch)
        self.now = 1_000
        session, _, _ = self.book.begin(S, "f", 1, self.now)
        self.book.opened(session, 1, self.now)
        self.answers: list[Any] = []
        self.confirmed: list[Any] = []
        self.serial = 0

    def keep_alive(self, handled: int = 0, refused: list[tuple[int, str]] | None = None, **more: Any) -> Any:
        self.serial += 1
        request = KeepAlive(**{"session": S, "serial": self.serial, "epoch": 3, **more}, handled=handled,
                            refused=refused or [])  # fmt: skip
        reply, _ = self.book.keep_alive(request, more.pop("connection", 1), self.now)
        if reply is None:
            self.book.hold(S, self.answers.append, self.now + 60_000, self.now)
        self.deliver()
        return reply

    def pass_time(self, ms: int) -> list[Any]:
        """The answers that came because of it."""
        before = len(self.answers)
        self.now += ms
        self.book.answer_due(self.now)
        self.deliver()
        return self.answers[before:]

    def deliver(self) -> None:
        outgoing, self.book.outgoing = self.book.outgoing, []
        for then, what in outgoing:
            then(what)

    def notify(self, name: str = "do", body: bytes = b"") -> int:
        number = self.book.notify(S, name, body, self.confirmed.append)
        self.book.say(0, self.now)
        self.deliver()
        return number


def test_a_keepalive_is_held_until_little_of_the_lease_is_left() -> None:
    heard = Heard()
    assert heard.keep_alive() is None
    assert heard.pass_time(LEASE - LEFT - 1) == []
    [answer] = heard.pass_time(1)
    assert (answer.held_ms, answer.lease_ms, answer.jeopardy_ms) == (LEASE - LEFT, LEASE, JEOPARDY)
    assert heard.keep_alive() is None
    assert heard.pass_time(LEASE - LEFT - 1) == []
    assert len(heard.pass_time(1)) == 1


def test_one_that_comes_late_is_answered_at_once() -> None:
    heard = Heard()
    heard.pass_time(LEASE - LEFT)
    assert isinstance(heard.keep_alive(), KeptAlive)


def test_a_held_keepalive_is_answered_before_its_own_deadline() -> None:
    """I10."""
    heard = Heard()
    assert heard.book.keep_alive(KeepAlive(S, 1, 3), 1, heard.now) == (None, False)
    heard.book.hold(S, heard.answers.append, heard.now + 900, heard.now)
    assert heard.pass_time(899) == []
    assert len(heard.pass_time(1)) == 1


def test_a_command_is_said_at_once_and_until_it_is_handled() -> None:
    """I6: delivered at least once."""
    heard = Heard()
    heard.keep_alive()
    number = heard.notify("recover", b"x")
    [answer] = heard.answers
    assert [(one.number, one.name, one.body) for one in answer.commands] == [(number, "recover", b"x")]
    assert [one.number for one in heard.keep_alive().commands] == [number], "that answer may have been lost"
    assert heard.confirmed == []
    assert heard.keep_alive(handled=number) is None
    assert heard.confirmed == [None]


def test_an_old_confirmation_never_confirms_a_newer_command() -> None:
    """I6."""
    heard = Heard()
    first = heard.notify()
    heard.keep_alive(handled=first)
    second = heard.notify()
    heard.keep_alive(handled=first)
    assert heard.confirmed == [None]
    heard.keep_alive(handled=second)
    assert heard.confirmed == [None, None]


def test_what_was_handled_under_another_epoch_confirms_nothing() -> None:
    """I6: an earlier master may have given out the very same number."""
    heard = Heard()
    number = heard.notify()
    assert heard.keep_alive(handled=number, epoch=2) == EpochDiffers(3)
    assert heard.confirmed == []
    heard.keep_alive(handled=number)
    assert heard.confirmed == [None]


def test_numbers_go_on_from_the_log_and_only_grow() -> None:
    """I6."""
    book = Book(SessionTimes(), 4, session_epoch=100)
    book.begin(1, "a", 1, 0)
    other, _, _ = book.begin(2, "b", 2, 0)
    assert other.session_epoch == 102
    numbers = [book.notify(session, "x", b"") for session in (1, 2, 1, 1, 2)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 103


def test_a_refused_command_is_told_to_whoever_waits_for_it() -> None:
    heard = Heard()
    number = heard.notify()
    heard.keep_alive(handled=number, refused=[(number, "unknown_command: no such command")])
    [error] = heard.confirmed
    assert isinstance(error, errors.CommandRefused)
    assert "no such command" in str(error)


def test_commands_wait_in_a_queue_that_has_an_end() -> None:
    """I17."""
    heard = Heard()
    for _ in range(MAX_COMMANDS):
        heard.book.notify(S, "x", b"")
    with pytest.raises(errors.CommandsWaiting):
        heard.book.notify(S, "x", b"")
    with pytest.raises(errors.BadValue):
        heard.book.notify(S, "", b"")
    with pytest.raises(errors.BadValue):
        heard.book.notify(S, "x", bytes(1 << 20))


def test_an_answer_holds_no_more_than_fits_and_the_rest_follows() -> None:
    """I17."""
    heard = Heard()
    numbers = [heard.book.notify(S, "x", bytes(200 << 10)) for _ in range(8)]
    heard.book.say(0, heard.now)
    first = [one.number for one in heard.keep_alive().commands]
    assert 0 < len(first) < 8
    rest = [one.number for one in heard.keep_alive(handled=first[-1]).commands]
    assert first + rest == numbers


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"session": 99}, errors.SessionExpired),
        ({"serial": 0}, errors.BadRequest),
        ({"epoch": 4}, errors.NotLeader),
        ({"handled": 77}, errors.BadRequest),
    ],
    ids=["unknown or forged", "from the past", "of a later master", "of a command never given"],
)
def test_a_keepalive_that_cannot_be_is_refused_and_changes_nothing(
    more: dict[str, int], error: type[Exception]
) -> None:
    heard = Heard()
    heard.keep_alive()
    number = heard.notify()
    session = heard.book.require(S)
    before = (session.serial, session.expires_at, session.connection)
    with pytest.raises(error):
        heard.book.keep_alive(KeepAlive(**{"session": S, "serial": 9, "epoch": 3, **more}), 2, heard.now)
    assert (session.serial, session.expires_at, session.connection) == before
    assert [queued.command.number for queued in session.commands] == [number]


def test_a_later_keepalive_takes_the_place_of_a_held_one_which_is_answered() -> None:
    """I10."""
    heard = Heard()
    heard.keep_alive()
    heard.keep_alive()
    [first] = heard.answers
    assert isinstance(first, Failed)
    assert len(heard.pass_time(LEASE - LEFT)) == 1, "the later one is answered, once"


def test_a_session_is_over_when_lease_and_jeopardy_have_passed_since_the_last_answer() -> None:
    """I4."""
    heard = Heard()
    heard.keep_alive()
    heard.notify()
    assert heard.pass_time(WHOLE - 1) == []
    assert heard.book.overdue(heard.now) == []
    heard.now += 1
    [over] = heard.book.overdue(heard.now)
    heard.book.close(over, "silence")
    heard.deliver()
    [error] = heard.confirmed
    assert isinstance(error, errors.SessionExpired), "whoever waits for a confirmation learns that none will come"


def test_ten_thousand_sessions_are_looked_after_by_one_tick() -> None:
    """I17: each is in each heap about once, however often it is renewed."""
    book = Book(SessionTimes(LEASE, LEFT, JEOPARDY), 1)
    answers: list[Any] = []
    for session in range(1, 10_001):
        opened, _, _ = book.begin(session, f"f{session}", session, session % 7_000)
        book.opened(opened, session, session % 7_000)
    for serial in range(1, 6):
        for session in range(1, 10_001):
            now = serial * 7_000 + session % 7_000
            if book.keep_alive(KeepAlive(session, serial, 1), session, now)[0] is None:
                book.hold(session, answers.append, now + 60_000, now)
        book.answer_due(serial * 7_000 + 14_000)
        assert book.overdue(serial * 7_000) == []
    assert len(book._expiries) == 10_000
    assert len(book._replies) <= 10_000
    assert len(book.overdue(10**9)) == 10_000


def test_a_session_that_was_closed_and_opened_again_is_over_once() -> None:
    heard = Heard()
    [first] = list(heard.book)
    heard.book.close(first, "goodbye")
    session, is_new, _ = heard.book.begin(S, "f", 2, heard.now)
    assert is_new
    heard.book.opened(session, 2, heard.now)
    assert heard.book.overdue(heard.now + WHOLE) == [session]


@given(
    st.lists(
        st.tuples(st.sampled_from(["open", "reopen", "close", "keep", "tick"]), st.integers(1, 2), st.integers(0, 30))
    )
)
def test_each_session_is_reported_over_once_and_exactly_when_it_is(steps: list[tuple[str, int, int]]) -> None:
    """I4. However sessions are closed and opened again under the same numbers."""
    book = Book(SessionTimes(LEASE, LEFT, JEOPARDY), 1)
    ends: dict[int, int] = {}
    now = serial = 0
    for step, number, seconds in [*steps, ("tick", 1, 3_600)]:
        now += seconds * 1_000
        session = book.get(number)
        if step == "reopen" and session is not None:
            book.close(session, "goodbye")
        if step in ("open", "reopen"):
            book.opened(book.begin(number, f"f{number}", number, now)[0], number, now)
            ends[number] = now + WHOLE
        elif step == "close" and session is not None:
            book.close(session, "goodbye")
            del ends[number]
        elif step == "keep" and session is not None:
            serial += 1
            if book.keep_alive(KeepAlive(number, serial, 1), number, now)[0] is not None:
                ends[number] = now + WHOLE
        elif step == "tick":
            over = book.overdue(now)
            assert sorted(one.id for one in over) == sorted(known for known, end in ends.items() if end <= now)
            for one in over:
                book.close(one, "silence")
                del ends[one.id]
    assert len(book) == 0


# As a primary decides on it.


def test_a_reopened_session_expires_with_the_records_of_its_pass() -> None:
    """Closed and opened again under one number, it was over twice, which ended the pass and lost its records."""
    world = World()
    world.node("a", boot=5)
    world.ask(Done, CloseSession(5))
    world.node("a", boot=5)
    world.node("b", boot=6, connection=101)
    world.put("k")
    for connection in (100, 101):
        world.engine.connection_lost(connection)
    world.pass_time(WHOLE)
    closed = [record for record in world.primary.records if isinstance(record, SessionClosed)]
    assert [(record.session, record.cause) for record in closed] == [
        (5, SessionEnd.GOODBYE),
        (5, SessionEnd.EXPIRED),
        (6, SessionEnd.EXPIRED),
    ]
    assert not world.state.segments
    world.check()


def test_a_defect_in_one_duty_costs_that_one_and_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.node("a", boot=5)
    world.node("b", boot=6, connection=101)
    unfinished, _ = world.grant(1_000)
    for connection in (100, 101):
        world.engine.connection_lost(connection)

    def expire(primary: Primary, session: Session) -> list[Record]:
        if session.name == "a" and not world.upkeep_failures:
            raise KeyError("a defect")
        return membership.expire(primary, session)

    monkeypatch.setattr(upkeep, "expire", expire)
    world.pass_time(WHOLE)
    [failure] = world.upkeep_failures
    assert (failure.kind, failure.subject) == ("session", "a")
    assert isinstance(failure.error, KeyError)
    assert world.engine.guard.failures == {"session": 1}
    assert unfinished not in world.state.grants, "the duties before it"
    assert {segment.name.node for segment in world.state.segments.values()} == {"a"}, "and after it were done"
    world.upkeep_failures.clear()
    world.upkeep_failures.append(failure)
    world.pass_time(CLOSE_AGAIN_MS)
    assert not world.state.segments, "it is done when it can be"
    world.upkeep_failures.clear()
    world.check()


def test_a_defect_in_a_whole_step_of_a_tick_does_not_keep_the_others_from_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I10: keepalives are answered and late puts refused, whatever is broken beside them."""
    world = World()
    world.node("a", boot=5)
    world.grant(1 << 20)
    request = GrantRanges(GrantId(CLIENT, 900), (4_096).to_bytes(8, "little"))
    assert world.send(request, timeout_ms=1_000) is None
    world.keep_alive(5)

    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    for name in ("duties", "plan_copies", "evict"):
        monkeypatch.setattr(engine, name, broken)
    world.now += LEASE - LEFT
    world.engine.tick(world.now)
    assert {failure.kind for failure in world.upkeep_failures} == {"duties", "copies", "eviction"}
    [late] = world.late
    assert isinstance(late, Failed)
    assert late.code == "no_room"
    assert world.primary.sessions.require(5).keepalive is None, "its keepalive was answered"


def test_a_defect_about_one_waiting_put_is_told_to_it_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """I10."""
    world = World()
    world.node("a", boot=5)
    _, granted = world.grant(1 << 20)
    full = GrantId(CLIENT, world.serial)
    for serial in (900, 901):
        assert world.send(GrantRanges(GrantId(CLIENT, serial), (4_096).to_bytes(8, "little"))) is None
    decide = engine.decide

    def broken(primary: Primary, request: Any, client: int, now: int) -> Any:
        if isinstance(request, GrantRanges) and request.grant.serial == 900:
            raise ZeroDivisionError
        return decide(primary, request, client, now)

    monkeypatch.setattr(engine, "decide", broken)
    world.ask(Done, ReturnGrants([full]))
    first, second = world.late
    assert isinstance(first, Failed)
    assert "internal error" in first.text
    assert isinstance(second, Granted)
    assert granted.length == 1 << 20


def test_a_goodbye_is_in_the_log_and_asked_again_it_is_done() -> None:
    world = World()
    world.node("a", connection=100, boot=5)
    world.put("k")
    assert world.ask(Done, CloseSession(5)).count == 1
    assert world.ask(Done, CloseSession(5)).count == 0
    assert world.primary.records[-2] == SessionClosed(5, SessionEnd.GOODBYE)
    assert world.has("k") == [False]
    world.check()


def test_a_session_is_opened_once_however_often_it_is_asked_for() -> None:
    world = World()
    first = world.open("a", 5, 100)
    assert world.open("a", 5, 101) == first
    assert sum(isinstance(record, SessionClosed) for record in world.primary.records) == 0
    with pytest.raises(errors.BadRequest, match="another follower's"):
        world.open("b", 5, 102)


def test_a_name_is_refused_while_its_connection_is_open_also_in_jeopardy() -> None:
    world = World()
    world.node("a", connection=100, boot=5)
    world.now += LEASE + 1_000
    with pytest.raises(errors.NameTaken, match="already called 'a'"):
        world.open("a", 6, 101)
    world.engine.connection_lost(100)
    world.open("a", 6, 101)
    world.check()


def test_nothing_is_placed_on_a_node_whose_lease_is_over_and_its_objects_are_read_on() -> None:
    world = World()
    world.node("a", connection=100, boot=5)
    world.put("k")
    world.now += LEASE
    segment = world.state.segments[1]
    assert not world.primary.available(segment, world.now)
    assert world.locate("k")[0][0]
    world.keep_alive(5)
    assert world.primary.available(segment, world.now)


def test_sessions_come_back_at_promotion_as_just_renewed() -> None:
    """I4, I6, and DESIGN 8: nobody is expired before lease and jeopardy, counted from the last moment in which the
    earlier primary may have renewed."""
    for proven in (True, False):
        world = World()
        world.node("a", connection=100, boot=5)
        primary = promote(world.primary.twin, world.primary.rules, 5_000, proven, now=9_000)
        session = primary.sessions.require(5)
        base = 9_000 if proven else 9_000 + lengthened(5_000)
        assert session.expires_at == base + WHOLE
        assert primary.sessions.session_epoch == world.state.session_epoch
        primary.sessions.epoch = 2
        assert primary.sessions.keep_alive(KeepAlive(5, 8, 1, handled=999), 200, 9_500)[0] == EpochDiffers(2)
        first, _ = primary.sessions.keep_alive(KeepAlive(5, 9, 2), 200, 9_600)
        assert isinstance(first, KeptAlive), "at once: it has just become primary"
        assert primary.sessions.keep_alive(KeepAlive(5, 10, 2), 200, 9_700)[0] is None


def test_a_new_primary_with_shorter_times_honours_those_of_the_one_before() -> None:
    """I4."""
    world = World(session_lease_ms=20_000, session_jeopardy_ms=40_000)
    world.node("a", connection=100, boot=5)
    shorter = World(session_lease_ms=2_000, session_reply_left_ms=500, session_jeopardy_ms=3_000).primary.rules
    primary = promote(world.primary.twin, shorter, 5_000, proven=True, now=9_000)
    session = primary.sessions.require(5)
    assert session.expires_at == 9_000 + lengthened(60_000)
    primary.sessions.keep_alive(KeepAlive(5, 1, 1), 200, 9_100)
    assert session.expires_at == 9_000 + lengthened(60_000), "nor does a first answer shorten it"


def test_a_command_leaves_only_when_what_it_may_rest_on_is_durable() -> None:
    writer = Writer()
    heard: list[Any] = []
    request = KeepAlive(5, 1, 1)
    reply, _ = writer.engine.handle(request, 0, 1, writer.now)
    assert not isinstance(reply, KeptAlive)
    writer.engine.park(Waiting(request, 0, 1, writer.now + 60_000, heard.append), writer.now)
    writer.ask(OpenSession(6, "other"))
    writer.engine.notify("a", "do", b"", writer.now)
    assert heard == []
    writer.write()
    assert [one.name for one in heard[0].commands] == ["do"]


def test_commands_leave_in_the_order_of_the_records_that_they_rest_on() -> None:
    """I6: each as soon as its own are durable, to whichever session."""
    heard = Heard()
    heard.keep_alive()
    first = heard.book.notify(S, "first", b"", after=5)
    second = heard.book.notify(S, "second", b"", after=7)
    heard.book.say(4, heard.now)
    heard.deliver()
    assert heard.answers == []
    assert heard.book.waits_for_log
    heard.book.say(5, heard.now)
    heard.deliver()
    [answer] = heard.answers
    assert ([one.number for one in answer.commands], answer.log_index) == ([first], 5)
    again = heard.keep_alive()
    assert [one.number for one in again.commands] == [first], "it is repeated until it is handled"
    assert heard.keep_alive(handled=first) is None
    heard.book.say(9, heard.now)
    heard.deliver()
    assert [one.number for one in heard.answers[-1].commands] == [second]
    assert not heard.book.waits_for_log


def test_a_keepalive_does_not_wait_for_a_slow_log() -> None:
    """Not even with a command in the queue: that is said when it may be, the lease is renewed all the same."""
    writer = Writer()
    writer.ask(OpenSession(6, "other"))
    number = writer.engine.notify("a", "do", b"", writer.now)
    writer.now += LEASE - LEFT
    answer = writer.ask(KeepAlive(5, 1, 1))
    assert isinstance(answer, KeptAlive)
    assert answer.commands == []
    writer.write()
    told = writer.ask(KeepAlive(5, 2, 1))
    assert isinstance(told, KeptAlive)
    assert [one.number for one in told.commands] == [number]
