"""A worker's orders and the primary: a request finds whoever leads, and nothing keeps a node from stopping."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.messages.of_nodes import MountSegment
from holdfast.messages.requests import Done, Failed, Hello
from holdfast.messages.shapes import Message
from holdfast.node import primary_requests
from holdfast.node.commands.handlers import CommandWorker
from holdfast.node.primary_requests import request
from holdfast.operations.effects import Operation, Sleep, Work
from holdfast.supervisor import Supervisor
from tests.client.fake_master import Act, FakeMaster
from tests.waiting import wait_until

WORD = MountSegment("n1", 1, 0, 4096)


class Orders:
    """A worker, and what came of its orders."""

    def __init__(self, address: str) -> None:
        self.worker = CommandWorker("copies", address, "", Supervisor())
        self.replies: list[Message | HoldfastError] = []

    def say(self) -> None:
        def order() -> Operation[None]:
            try:
                self.replies.append((yield from request(WORD, Done)))
            except HoldfastError as error:
                self.replies.append(error)
                raise

        self.worker.add("an order", order())

    def said(self) -> Message | HoldfastError:
        wait_until(lambda: self.replies, what="the order has ended")
        return self.replies.pop()


@pytest.fixture
def ordered() -> Iterator[Callable[[str], Orders]]:
    made: list[Orders] = []

    def make(address: str) -> Orders:
        made.append(Orders(address))
        made[-1].worker.start()
        return made[-1]

    yield make
    for orders in made:
        orders.worker.stop()


def answering(*first: Act | Message) -> Callable[[Message], Act | Message]:
    """Requests of orders are answered so, one after the other, and then well."""
    left = list(first)

    def judge(message: Message) -> Act | Message:
        if isinstance(message, Hello):
            return Act.USUAL
        return left.pop(0) if left else Done(1)

    return judge


def test_a_request_is_sent_again_when_its_answer_is_lost(ordered: Callable[[str], Orders]) -> None:
    with FakeMaster(None) as master:
        master.judge = answering(Act.DROP, Act.DO_AND_DROP)
        orders = ordered(master.address)
        orders.say()
        assert orders.said() == Done(1)
        assert len(master.asked(MountSegment)) == 3


def test_a_request_goes_to_the_master_that_another_one_names(ordered: Callable[[str], Orders]) -> None:
    with FakeMaster(None) as master, FakeMaster(None) as other:
        master.judge = answering(Failed("not_leader", "another leads", hint=other.address))
        other.judge = answering()
        orders = ordered(master.address)
        orders.say()
        assert orders.said() == Done(1)
        assert len(other.asked(MountSegment)) == 1


def test_a_standby_is_passed_over_within_one_round(ordered: Callable[[str], Orders]) -> None:
    """Before, only the first address was tried, and the next one after a pause."""
    with FakeMaster(None) as standby, FakeMaster(None) as master:
        standby.judge = lambda message: Failed("not_leader", "it stands by")
        master.judge = answering()
        orders = ordered(f"{standby.address},{master.address}")
        orders.say()
        assert orders.said() == Done(1)
        assert (len(standby.asked(Hello)), len(master.asked(Hello))) == (1, 1)


def test_a_refusal_ends_the_order_and_not_the_worker(ordered: Callable[[str], Orders]) -> None:
    with FakeMaster(None) as master:
        master.judge = answering(Failed("unknown_node", "register again"))
        orders = ordered(master.address)
        for _ in range(2):
            orders.say()
        wait_until(lambda: len(orders.replies) == 2)
        assert [getattr(reply, "code", "done") for reply in orders.replies] == ["unknown_node", "done"]


def test_a_master_that_stops_for_long_does_not_end_the_worker(
    ordered: Callable[[str], Orders], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is stopping: the node is not."""
    monkeypatch.setattr(primary_requests, "REQUEST_SECONDS", 0.01)
    with FakeMaster(None) as master:
        master.judge = lambda message: Act.USUAL if isinstance(message, Hello) else Failed("stopping", "it stops")
        orders = ordered(master.address)
        orders.say()
        assert getattr(orders.said(), "code", "") in ("stopping", "unreachable")
        monkeypatch.setattr(primary_requests, "REQUEST_SECONDS", 20.0)
        master.judge = answering()
        orders.say()
        assert orders.said() == Done(1)


@pytest.mark.parametrize("waits", ["it sleeps", "nobody answers"])
def test_an_order_that_waits_does_not_keep_the_node_from_stopping(waits: str) -> None:
    begun, ended = threading.Event(), threading.Event()

    def order() -> Operation[Any]:
        try:
            yield Work(begun.set)
            if waits == "it sleeps":
                yield Sleep(3_600.0)
            yield from request(WORD, Done)
        finally:
            ended.set()

    with FakeMaster(None) as master:
        master.judge = lambda message: Failed("stopping", "it stops")
        worker = CommandWorker("copies", master.address, "", Supervisor())
        worker.start()
        worker.add("an order", order())
        assert begun.wait(20)
        worker.stop()
        assert ended.wait(0), "the thread was waited for, and has ended"
        assert not worker._thread.is_alive()
