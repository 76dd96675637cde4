"""Both runners: deadlines while another operation dials, waits that end, work that is interrupted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import errors
from holdfast.instant import now_seconds
from holdfast.messages.requests import Exists, Hello, Presence
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Ahead, Call, LeaveMaster, Operation, Pause, Reply, Sleep, Work
from holdfast.operations.link import LATE_TEXT, LinkOptions, PlainCaller
from holdfast.operations.masters import Masters
from holdfast.operations.tasks import TaskRunner
from holdfast.operations.threads import ThreadRunner
from tests.client.fake_master import Act, FakeMaster
from tests.waiting import wait_until

LONG = 30.0


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    with FakeMaster(None) as master:
        yield master


class Running:
    """A runner of either kind, whose operations a test begins and awaits alike."""

    def __init__(self, kind: str, address: str, closed_as: type[errors.HoldfastError] = errors.Unreachable) -> None:
        self._kind = kind
        self._loop = asyncio.new_event_loop()
        self._looping = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._looping.start()
        caller = PlainCaller(Hello(1, control=True), closed_as)
        self.runner: Any = (
            ThreadRunner(Masters(address), caller, LinkOptions(LONG))
            if kind == "threads"
            else self._in_loop(lambda: TaskRunner(Masters(address), caller, LinkOptions(LONG)))
        )

    def _in_loop(self, make: Callable[[], Any]) -> Any:
        async def made() -> Any:
            return make()

        return asyncio.run_coroutine_threadsafe(made(), self._loop).result(20)

    def begin(self, operation: Operation[Any], deadline: float | None = None) -> Callable[[], Any]:
        """Begin it; the result is a function that waits for its own."""
        due = now_seconds() + LONG if deadline is None else deadline
        if self._kind == "tasks":
            running = asyncio.run_coroutine_threadsafe(self.runner.run(operation, due), self._loop)
            return lambda: running.result(20)
        done: list[Any] = []

        def run() -> None:
            try:
                done.append((True, self.runner.run(operation, due)))
            except BaseException as error:  # noqa: BLE001 - The thread that waits raises it.
                done.append((False, error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def ended() -> Any:
            thread.join(20)
            good, result = done[0]
            if good:
                return result
            raise result

        return ended

    def run(self, operation: Operation[Any], deadline: float | None = None) -> Any:
        return self.begin(operation, deadline)()

    def hang_up(self, reason: str) -> None:
        if self._kind == "tasks":
            self._in_loop(lambda: self.runner.hang_up(reason))
        else:
            self.runner.hang_up(reason)

    def close(self) -> None:
        self.hang_up("the test has ended")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._looping.join(20)
        self._loop.close()


Run = Callable[..., Running]


@pytest.fixture(params=["threads", "tasks"])
def runs(request: pytest.FixtureRequest) -> Iterator[Run]:
    opened: list[Running] = []

    def opener(address: str, **named: Any) -> Running:
        opened.append(Running(request.param, address, **named))
        return opened[-1]

    yield opener
    for each in opened:
        each.close()


def asks(deadline: float, dial: bool = True) -> Operation[Message]:
    return (yield Call(Exists(["key"], False), deadline, dial=dial))  # type: ignore[no-any-return]


def hold_the_next_welcome(master: FakeMaster) -> tuple[threading.Event, threading.Event]:
    came, answer = threading.Event(), threading.Event()

    def judge(request: Message) -> Act:
        if isinstance(request, Hello) and not came.is_set():
            came.set()
            assert answer.wait(20)
        return Act.USUAL

    master.judge = judge
    return came, answer


def test_a_call_ends_at_its_own_deadline_while_another_one_dials(master: FakeMaster, runs: Run) -> None:
    """I10: whoever dials may have much more time. Also where the operation has none, as a session's."""
    here = runs(master.address)
    came, answer = hold_the_next_welcome(master)
    try:
        first = here.begin(asks(now_seconds() + LONG), float("inf"))
        wait_until(came.is_set)
        # If it had waited for its turn to dial, it would say that no time was left to connect.
        with pytest.raises(errors.Unreachable, match=LATE_TEXT):
            here.run(asks(now_seconds() + 0.3), float("inf"))
        answer.set()
        assert isinstance(first(), Presence)
    finally:
        answer.set()


def test_a_call_that_may_not_dial_is_sent_over_an_open_connection_only(master: FakeMaster, runs: Run) -> None:
    here = runs(master.address)
    with pytest.raises(errors.Unreachable, match="no connection"):
        here.run(asks(now_seconds() + LONG, dial=False))
    assert not master.requests
    here.run(asks(now_seconds() + LONG))
    assert isinstance(here.run(asks(now_seconds() + LONG, dial=False)), Presence)


def test_the_earlier_deadline_counts_of_a_call_and_of_its_operation(master: FakeMaster, runs: Run) -> None:
    here = runs(master.address)
    here.run(asks(now_seconds() + LONG))
    master.judge = lambda request: Act.SILENCE
    for of_call, of_operation in ((0.2, LONG), (LONG, 0.2)):
        with pytest.raises(errors.DeadlineExceeded):
            here.run(asks(now_seconds() + of_call), now_seconds() + of_operation)


def test_a_check_runs_when_there_is_a_connection_and_keeps_the_message_from_being_sent(
    master: FakeMaster, runs: Run
) -> None:
    here = runs(master.address)

    def check() -> None:
        assert master.asked(Hello)
        raise errors.NodeAway("it died meanwhile")

    def operation() -> Operation[None]:
        yield Call(Exists(["key"], False), now_seconds() + LONG, check)

    with pytest.raises(errors.NodeAway):
        here.run(operation())
    assert not master.asked(Exists)


def test_a_request_that_was_sent_ahead_is_answered_while_others_are(master: FakeMaster, runs: Run) -> None:
    def operation() -> Operation[list[Message]]:
        begun = yield Ahead(Exists(["first"], False))
        second = yield Exists(["second"], False)
        return [(yield Reply(begun)), second]

    assert [type(reply) for reply in runs(master.address).run(operation())] == [Presence, Presence]
    assert [request.keys for request in master.asked(Exists)] == [["first"], ["second"]]


def test_a_pause_ends_when_its_condition_holds_and_the_runner_is_roused(master: FakeMaster, runs: Run) -> None:
    here = runs(master.address)
    looks: list[int] = []
    news: list[int] = []

    def until() -> bool:
        looks.append(1)
        return bool(news)

    def operation() -> Operation[bool]:
        yield Pause(LONG, until)
        return True

    ended = here.begin(operation())
    wait_until(lambda: looks)
    here.runner.rouse()
    wait_until(lambda: len(looks) > 1)
    news.append(1)
    here.runner.rouse()
    assert ended()


def test_a_pause_ends_when_the_runner_is_closed(master: FakeMaster, runs: Run) -> None:
    here = runs(master.address)
    looks: list[int] = []

    def operation() -> Operation[bool]:
        yield Pause(LONG, lambda: bool(looks.append(1)))  # type: ignore[func-returns-value]
        return True

    ended = here.begin(operation())
    wait_until(lambda: looks)
    here.hang_up("it is over")
    assert ended()


def test_a_closed_runner_sends_and_sleeps_no_more_and_says_why(master: FakeMaster, runs: Run) -> None:
    here = runs(master.address, closed_as=errors.Stopping)
    here.run(asks(now_seconds() + LONG))
    here.hang_up("the node is stopping")

    def sleeps() -> Operation[None]:
        yield Sleep(0.0)

    for operation in (asks(now_seconds() + LONG), sleeps()):
        with pytest.raises(errors.Stopping, match="the node is stopping"):
            here.run(operation)


def test_a_sleeping_thread_wakes_when_its_runner_is_closed(master: FakeMaster) -> None:
    here = Running("threads", master.address, errors.Stopping)
    begun = threading.Event()

    def sleeps() -> Operation[None]:
        yield Work(begun.set)
        yield Sleep(3_600.0)

    try:
        ended = here.begin(sleeps())
        assert begun.wait(20)
        here.hang_up("the node is stopping")
        with pytest.raises(errors.Stopping):
            ended()
    finally:
        here.close()


def test_an_operation_goes_to_the_master_that_another_one_named(master: FakeMaster, runs: Run) -> None:
    with FakeMaster(None) as other:
        here = runs(master.address)

        def operation() -> Operation[Message]:
            yield Exists(["key"], False)
            yield LeaveMaster(other.address)
            return (yield Exists(["key"], False))  # type: ignore[no-any-return]

        assert isinstance(here.run(operation()), Presence)
        assert len(master.asked(Exists)) == len(other.asked(Exists)) == 1


def test_an_operation_is_ended_when_what_it_asked_for_breaks(master: FakeMaster, runs: Run) -> None:
    """I11: it gives back what it holds."""
    ended: list[int] = []

    def breaks() -> None:
        raise KeyError("defect")

    def operation() -> Operation[None]:
        try:
            yield Work(breaks)
        finally:
            ended.append(1)

    with pytest.raises(KeyError):
        runs(master.address).run(operation())
    wait_until(lambda: ended)


def test_an_interrupted_thread_ends_its_operation_and_keeps_the_connection(master: FakeMaster) -> None:
    """Ctrl-C while it works: what it holds is given back at once, and the next call needs no new connection."""
    here = Running("threads", master.address)
    ended: list[int] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    def operation() -> Operation[None]:
        try:
            yield Exists(["key"], False)
            yield Work(interrupted)
        finally:
            ended.append(1)

    try:
        with pytest.raises(KeyboardInterrupt):
            here.runner.run(operation(), now_seconds() + LONG)
        assert ended
        here.run(asks(now_seconds() + LONG))
        assert len(master.asked(Hello)) == 1
    finally:
        here.close()
