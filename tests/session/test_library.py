"""`holdfast.session` as a program of one's own uses it: a master and followers over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from holdfast.errors import (
    BadRequest,
    BadValue,
    CommandRefused,
    DeadlineExceeded,
    NameTaken,
    NotAuthorized,
    SessionExpired,
    UnknownNode,
)
from holdfast.instant import now_seconds
from holdfast.messages.of_sessions import KeepAlive, Opened, OpenSession
from holdfast.messages.requests import GetStatus, Hello
from holdfast.session import (
    AsyncSessionFollower,
    Event,
    Happening,
    MasterEvent,
    MasterHappening,
    Remembered,
    SessionFollower,
    SessionMaster,
    SessionTimes,
    Standing,
)
from holdfast.session.follower import MOST_REFUSALS
from holdfast.transport.async_channel import AsyncChannel
from holdfast.wire.codec import expect

TIMES = SessionTimes(lease_ms=1_000, reply_left_ms=500, jeopardy_ms=3_000)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - What is waited for is told by nobody.
            await asyncio.sleep(0.01)


class Told:
    """What a master's user and a follower's user were told."""

    def __init__(self) -> None:
        self.events: list[Happening] = []
        self.master_events: list[MasterHappening] = []
        self.remembered = Remembered()
        self.performed: list[tuple[str, bytes]] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event.kind)

    def on_master_event(self, event: MasterEvent) -> None:
        self.master_events.append(event.kind)

    def remember(self, what: Remembered) -> None:
        self.remembered = what

    def perform(self, name: str, body: bytes) -> None:
        if name == "refuse":
            raise BadValue("that cannot be")
        self.performed.append((name, body))


@pytest.fixture
def told() -> Told:
    return Told()


@asynccontextmanager
async def leading(told: Told, epoch: int = 1, port: int = 0, restored: Remembered | None = None,
                  token: str = "") -> AsyncIterator[tuple[SessionMaster, str]]:  # fmt: skip
    master = SessionMaster(epoch, TIMES, told.on_master_event, told.remember, restored, token=token,
                           add_to_answer=lambda name: f"for {name}".encode())  # fmt: skip
    address = await master.start(port=port)
    try:
        yield master, address
    finally:
        await master.stop()


@asynccontextmanager
async def following(address: str, told: Told, name: str = "f", token: str = "") -> AsyncIterator[AsyncSessionFollower]:
    follower = AsyncSessionFollower(address, name, told.perform, told.on_event, token)
    await follower.start()
    try:
        yield follower
    finally:
        await follower.stop()


async def test_a_command_is_confirmed_when_it_has_been_handled(told: Told) -> None:
    async with leading(told) as (master, address), following(address, told) as follower:
        await until(master.sessions)
        first = await master.notify("f", "work", b"1", confirm=True)
        assert told.performed == [("work", b"1")]
        second = await master.notify("f", "work", b"2")
        await until(lambda: len(told.performed) == 2)
        assert second > first
        with pytest.raises(CommandRefused, match="that cannot be"):
            await master.notify("f", "refuse", confirm=True)
        with pytest.raises(UnknownNode):
            await master.notify("nobody", "work")
        [seen] = master.sessions()
        assert (seen.name, seen.standing, seen.last_command) == ("f", Standing.SAFE, "refuse")
        assert follower.standing is Standing.SAFE


async def test_a_session_is_kept_for_many_leases_and_each_side_hears_of_it(told: Told) -> None:
    async with leading(told) as (_, address), following(address, told):
        await until(lambda: told.events.count(Happening.ANSWERED) >= 5)
        assert Happening.JEOPARDY not in told.events
        assert told.master_events[0] is MasterHappening.CREATED
        assert told.master_events.count(MasterHappening.KEEPALIVE) >= 5
    assert told.master_events[-1] is MasterHappening.GOODBYE, "the follower stopped first, and said so"
    assert told.remembered.sessions == {}


async def test_what_the_masters_user_adds_to_an_answer_reaches_the_followers_user(told: Told) -> None:
    bodies: list[bytes] = []
    async with leading(told) as (_, address):
        follower = AsyncSessionFollower(
            address, "f", on_event=lambda event: bodies.append(event.body) if event.kind is Happening.ANSWERED else None
        )
        await follower.start()
        try:
            await until(lambda: len(bodies) >= 2)
        finally:
            await follower.stop()
    assert set(bodies) == {b"for f"}


async def test_the_next_master_takes_the_sessions_over(told: Told) -> None:
    """I6: under a higher epoch, with what the first one remembered."""
    async with leading(told) as (_, address):
        port = int(address.rpartition(":")[2])
        follower = SessionFollower(address, "f", told.perform, told.on_event)
        follower.start()
        try:
            await until(lambda: Happening.ANSWERED in told.events)
            session = follower.session
        except BaseException:
            await asyncio.to_thread(follower.stop)
            raise
    try:
        async with leading(told, epoch=2, port=port, restored=told.remembered) as (second, _):
            await until(lambda: Happening.MASTER_CHANGED in told.events)
            await second.notify("f", "work", b"after", confirm=True)
            assert told.performed == [("work", b"after")]
            assert follower.session == session
            assert Happening.EXPIRED not in told.events
            await asyncio.to_thread(follower.stop)
            assert second.sessions() == []
    finally:
        await asyncio.to_thread(follower.stop)


async def test_a_follower_whose_master_never_comes_back_says_so_itself(told: Told) -> None:
    """I4."""
    async with leading(told) as (_, address):
        follower = AsyncSessionFollower(address, "f", told.perform, told.on_event)
        await follower.start()
        await until(lambda: Happening.ANSWERED in told.events)
    await until(lambda: Happening.EXPIRED in told.events)
    assert told.events[-2:] == [Happening.JEOPARDY, Happening.EXPIRED]
    assert follower.standing is Standing.EXPIRED
    await follower.stop()


async def test_a_master_without_the_sessions_has_them_opened_anew(told: Told) -> None:
    async with leading(told) as (_, address):
        port = int(address.rpartition(":")[2])
        follower = AsyncSessionFollower(address, "f", told.perform, told.on_event)
        await follower.start()
        await until(lambda: Happening.ANSWERED in told.events)
    async with leading(told, port=port) as (second, _):
        await until(second.sessions)
        await until(lambda: told.events.count(Happening.OPENED) == 2)
        assert Happening.EXPIRED in told.events
        await follower.stop()


async def test_no_refusal_is_lost_however_many_there_are_at_once(told: Told) -> None:
    """I6: a command that was refused and counts as done would be taken for done."""
    async with leading(told) as (master, address), following(address, told):
        await until(master.sessions)
        orders = [master.notify("f", "refuse", confirm=True) for _ in range(3 * MOST_REFUSALS)]
        results = await asyncio.gather(*orders, return_exceptions=True)
        assert all(isinstance(one, CommandRefused) for one in results)


async def test_a_second_follower_with_a_live_name_is_refused(told: Told) -> None:
    async with leading(told) as (master, address), following(address, told) as first:
        await until(master.sessions)
        async with following(address, Told()) as second:
            await until(lambda: second.failure)
            assert isinstance(second.failure, NameTaken)
        assert [one.session for one in master.sessions()] == [first.session]


async def test_a_wrong_token_is_refused(told: Told) -> None:
    async with leading(told, token="right") as (_, address), following(address, told, token="wrong") as follower:
        await until(lambda: follower.failure)
        assert isinstance(follower.failure, NotAuthorized)


async def test_a_forged_session_and_a_foreign_request_are_refused_and_harm_nobody(told: Told) -> None:
    async with leading(told) as (master, address), following(address, told):
        await until(master.sessions)
        channel = await AsyncChannel.open(address, Hello(1), now_seconds() + 5)
        with pytest.raises(SessionExpired, match="knows no such session"):
            expect(await channel.call(KeepAlive(4711, 1, 1), now_seconds() + 5), KeepAlive)
        with pytest.raises(BadRequest, match="GetStatus is not served"):
            expect(await channel.call(GetStatus(), now_seconds() + 5), GetStatus)
        channel.close()
        await master.notify("f", "work", confirm=True)


async def test_a_confirmation_that_does_not_come_in_time_is_an_error_that_says_so(told: Told) -> None:
    """I10."""
    async with leading(told) as (master, address):
        channel = await AsyncChannel.open(address, Hello(1), now_seconds() + 5)
        expect(await channel.call(OpenSession(9, "mute"), now_seconds() + 5), Opened)
        with pytest.raises(DeadlineExceeded, match="may yet take it"):
            await master.notify("mute", "work", confirm=True, within=0.1)
        with pytest.raises(SessionExpired):
            await master.notify("mute", "work", confirm=True)
        assert told.master_events[-1] is MasterHappening.EXPIRED
        channel.close()


def test_times_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadValue, match="within its lease"):
        SessionTimes(lease_ms=1_000, reply_left_ms=1_000)
