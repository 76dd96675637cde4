"""Every branch of the session document's keepalive loop, on a clock that the test turns: lease 12 s, answered with
5 s left, jeopardy 30 s, back-off of 1.5 s growing to 6 s."""

from __future__ import annotations

import itertools

import pytest

from holdfast.errors import (
    HoldfastError,
    NameTaken,
    NotAuthorized,
    NotLeader,
    ReplyLost,
    SessionExpired,
    UnknownCommand,
    Unreachable,
)
from holdfast.messages.of_sessions import KeepAlive, OpenSession, SessionCommand
from holdfast.messages.shapes import Message
from holdfast.session import Happening, Standing
from tests.session.scripted_master import JEOPARDY_MS, LEASE_MS, START_MS, Played

SAFE_MS = LEASE_MS - LEASE_MS // 100
WHOLE_MS = LEASE_MS + JEOPARDY_MS - (LEASE_MS + JEOPARDY_MS) // 100


def opened() -> Played:
    played = Played()
    played.run_for(1)
    assert played.happened(Happening.OPENED)
    return played


def test_the_master_sets_the_pace_seven_seconds_a_round() -> None:
    played = opened()
    played.run_for(70_000)
    times = [at for at, _ in played.keepalives()]
    assert {later - sooner for sooner, later in itertools.pairwise(times)} == {7_002}
    assert not played.happened(Happening.JEOPARDY, Happening.EXPIRED), "no round ends in jeopardy"
    assert played.follower.standing() is Standing.SAFE
    assert not any(isinstance(message, OpenSession) for _, message in played.sent[1:])


def test_a_request_never_waits_past_the_lease() -> None:
    """Step 3: the timeout takes the lease that is left into account."""
    played = opened()
    played.run_for(30_000)
    first, *later = played.deadlines[1:]
    assert first <= SAFE_MS
    # Sent when the answer came: the lease counts from when the answered keepalive was sent, plus 7 s of holding.
    assert all(SAFE_MS - 200 <= left <= SAFE_MS for left in later)


def test_step_1_jeopardy_is_told_once_when_the_lease_is_over_and_the_loop_goes_on() -> None:
    played = opened()
    played.master = played.silent
    played.run_for(25_000)
    assert played.happened(Happening.JEOPARDY) == [Happening.JEOPARDY]
    assert played.at(Happening.JEOPARDY) == SAFE_MS
    assert played.deadlines[-1] == LEASE_MS, "nor does it wait for a silent master through the whole window"
    assert played.follower.standing() is Standing.JEOPARDY
    assert played.follower.session, "it is not over"


def test_step_1_expired_is_told_when_the_window_is_over_and_a_new_session_is_opened() -> None:
    played = opened()
    old = played.follower.session
    played.master = played.fails(Unreachable("nobody"))
    played.run_for(60_000)
    assert played.at(Happening.EXPIRED) == WHOLE_MS
    opening = [message for _, message in played.sent if isinstance(message, OpenSession)]
    assert len(opening) > 1
    assert opening[-1].session != old
    played.master = played.alive
    played.run_for(5_000)
    assert played.happened(Happening.OPENED) == [Happening.OPENED] * 2
    assert played.follower.session == opening[-1].session


def test_step_2_the_wait_before_each_try_grows_from_1_5_to_6_seconds() -> None:
    played = opened()
    played.master = played.fails(Unreachable("nobody"))
    played.run_for(35_000)
    times = [at for at, _ in played.keepalives()]
    waits = [round((later - sooner) / 500) * 500 for sooner, later in itertools.pairwise(times)]
    assert waits[:5] == [1_500, 3_000, 4_500, 6_000, 6_000]
    assert len(played.left) == len(times), "each try looks for the master again"


def test_step_2_a_master_found_again_inside_the_window_saves_the_session() -> None:
    """A failover of up to 30 s costs nothing."""
    played = opened()
    session = played.follower.session
    played.master = played.fails(Unreachable("nobody"))
    played.run_for(LEASE_MS + 20_000)
    played.master = played.alive
    played.run_for(10_000)
    assert played.happened(Happening.JEOPARDY, Happening.SAFE_AGAIN, Happening.EXPIRED) == [
        Happening.JEOPARDY,
        Happening.SAFE_AGAIN,
    ]
    assert played.follower.session == session
    assert played.follower.standing() is Standing.SAFE


def test_step_2_a_failed_try_costs_no_more_waiting_once_one_succeeds() -> None:
    played = opened()
    played.master = played.fails(Unreachable("nobody"))
    played.run_for(8_000)
    played.master = played.alive
    played.run_for(20_000)
    played.master = played.fails(Unreachable("nobody"))
    before = len(played.keepalives())
    played.run_for(12_000)
    times = [at for at, _ in played.keepalives()[before:]]
    assert round((times[1] - times[0]) / 500) * 500 == 1_500


def test_step_3_1_a_renewed_lease_counts_from_sending_plus_holding() -> None:
    played = opened()
    played.run_for(7_000)
    lease = played.follower.lease
    assert lease is not None
    assert (lease.sent_at, lease.held_ms) == (START_MS + 1, 7_000)
    assert lease.safe_until == START_MS + 1 + 19_000 - 190


def test_step_3_2_a_lost_connection_is_left_and_the_session_goes_on() -> None:
    played = opened()
    failures = iter([ReplyLost("cut")])

    def once(message: Message) -> tuple[int, Message | HoldfastError | None]:
        error = next(failures, None)
        return (5, error) if error is not None else played.alive(message)

    played.master = once
    played.run_for(10_000)
    assert len(played.left) == 1
    assert played.keepalives()[1][0] - played.keepalives()[0][0] == 5 + LEASE_MS // 8
    assert not played.happened(Happening.JEOPARDY, Happening.EXPIRED)


def test_step_3_3_a_session_that_the_master_calls_over_is_over_at_once() -> None:
    played = opened()
    old = played.follower.session
    played.master = lambda message: (
        (1, SessionExpired("unknown")) if isinstance(message, KeepAlive) and message.session == old
        else played.alive(message)
    )  # fmt: skip
    played.run_for(100)
    assert played.happened(Happening.EXPIRED, Happening.OPENED)[1:] == [Happening.EXPIRED, Happening.OPENED]
    assert played.follower.session not in (0, old)


def test_step_3_4_one_that_is_not_leader_names_the_one_to_ask() -> None:
    played = opened()
    error = NotLeader("ask the other")
    error.hint = "10.0.0.2:7070"
    played.master = played.fails(error)
    played.run_for(2_000)
    assert played.left[0][1] == "10.0.0.2:7070"
    assert not played.happened(Happening.EXPIRED)


def test_step_3_5_another_epoch_is_told_and_the_loop_goes_on_under_it_at_once() -> None:
    played = opened()
    played.run_for(7_003)
    played.epoch = 2
    played.run_for(8_000)
    assert played.happened(Happening.MASTER_CHANGED) == [Happening.MASTER_CHANGED]
    at = played.at(Happening.MASTER_CHANGED)
    following = next((when, message) for when, message in played.keepalives() if message.epoch == 2)
    assert following[0] == at, "without waiting"
    assert not played.left
    assert not played.happened(Happening.EXPIRED, Happening.JEOPARDY)


def test_an_answer_of_an_older_epoch_is_not_obeyed() -> None:
    """I3."""
    played = opened()
    played.epoch = 5
    played.run_for(9_000)
    stale = played.renewed(0, SessionCommand(1, "late", b""))
    stale.epoch = 4
    played.master = lambda message: (1, stale)
    played.run_for(4_000)
    assert not played.performed
    assert played.left


def test_commands_are_performed_once_in_order_and_confirmed_with_the_next_keepalive() -> None:
    """I6: said again, a command takes effect once."""
    played = opened()
    commands = [SessionCommand(3, "a", b"1"), SessionCommand(4, "b", b"2"), SessionCommand(9, "a", b"3")]
    played.master = lambda message: (1, played.renewed(0, *commands))
    played.run_for(5)
    assert played.performed == [("a", b"1"), ("b", b"2"), ("a", b"3")]
    assert [message.handled for _, message in played.keepalives()][:3] == [0, 9, 9]


def test_what_was_handled_for_an_older_master_confirms_nothing_to_the_next() -> None:
    """I6: the number is told with the epoch that it was given in, and starts anew under another."""
    played = opened()
    played.master = lambda message: (1, played.renewed(0, SessionCommand(9, "a", b"")))
    played.run_for(3)
    played.epoch = 2
    played.master = played.alive
    played.run_for(10)
    last = played.keepalives()[-1][1]
    assert (last.epoch, last.handled) == (2, 0)


def test_a_command_that_cannot_be_done_is_reported_back_and_the_next_one_done() -> None:
    played = opened()

    def perform(name: str, body: bytes) -> None:
        if name == "dance":
            raise UnknownCommand("no such command")
        played.performed.append((name, body))

    played.perform = perform
    first = iter([played.renewed(0, SessionCommand(1, "dance"), SessionCommand(2, "work"))])
    played.master = lambda message: (1, next(first, played.renewed()))
    played.run_for(3)
    assert played.performed == [("work", b"")]
    told = played.keepalives()[1][1]
    assert (told.handled, told.refused) == (2, [(1, "unknown_command: no such command")])
    assert played.keepalives()[2][1].refused == [], "once"


@pytest.mark.parametrize("error", [NameTaken("taken"), NotAuthorized("token")])
def test_what_no_try_can_mend_ends_the_follower(error: HoldfastError) -> None:
    played = Played()
    played.master = played.fails(error)
    with pytest.raises(type(error)):
        played.run_for(10)


def test_a_follower_that_starts_before_its_master_waits_for_it() -> None:
    played = Played()
    played.master = played.fails(Unreachable("not yet"))
    played.run_for(10_000)
    assert len(played.sent) > 3
    assert len({message.session for _, message in played.sent if isinstance(message, OpenSession)}) == 1, (
        "asked again for the same session, whatever became of the first request"
    )
    played.master = played.alive
    played.run_for(3_000)
    assert played.happened(Happening.OPENED)


def test_goodbye_ends_the_loop_without_a_new_session() -> None:
    played = opened()
    played.follower.stopping = True
    goodbye = next(played.follower.farewell())
    assert getattr(goodbye, "message", None) is not None
    played.master = played.fails(SessionExpired("closed"))
    with pytest.raises(StopIteration):
        played.run_for(20_000)
    assert not played.happened(Happening.EXPIRED), "it is over because it was ended"


def test_a_follower_that_sees_its_master_dead_looks_for_the_next_at_once_and_again_soon() -> None:
    played = opened()
    played.master = played.fails(ReplyLost("the connection broke"))
    played.run_for(50)
    assert len(played.keepalives()) == 1
    # A moment passes between the end of its connections and of the process.
    played.run_for(150)
    assert len(played.keepalives()) == 1
    played.master_is_gone = True
    played.run_for(1_000)
    assert 8 <= len(played.keepalives()) <= 12
    played.epoch = 2
    played.master, played.master_is_gone = played.alive, False
    played.run_for(200)
    assert played.happened(Happening.MASTER_CHANGED)


def test_a_follower_whose_master_hands_over_looks_for_the_next_soon_and_then_less_often() -> None:
    """I17: the next one serves in a moment; it is not asked ten times a second if it does not."""
    played = opened()
    played.master = played.fails(NotLeader("this master is not the primary any more"))
    played.run_for(2)
    played.master = played.fails(Unreachable("nobody leads yet"))
    played.run_for(1_000)
    assert 3 <= len(played.keepalives()) <= 5
    played.run_for(30_000)
    assert len(played.keepalives()) <= 14
    played.epoch, played.master = 2, played.alive
    played.run_for(10_000)
    assert played.happened(Happening.MASTER_CHANGED)
    before = len(played.keepalives())
    played.master = played.fails(ReplyLost("the connection broke"))
    played.run_for(8_000)
    assert len(played.keepalives()) <= before + 4, "a lost connection says nothing of a successor"


def test_a_follower_whose_dead_master_has_no_successor_slows_down() -> None:
    """I17."""
    played = opened()
    played.master, played.master_is_gone = played.fails(Unreachable("nobody")), True
    played.run_for(6_000)
    hurried = len(played.keepalives())
    assert 45 <= hurried <= 55
    played.run_for(30_000)
    assert len(played.keepalives()) <= hurried + 6
