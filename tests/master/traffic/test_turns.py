"""Turns of the loop: everybody who waits gets one, costly steps are paid for, and a defect costs its own only."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from holdfast.instant import SYSTEM_CLOCK, read_from
from holdfast.master.traffic.turns import TURN_SECONDS, Turns


class Loop:
    """Callbacks that are due, and a clock that only steps move."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.now_ns = 0
        self.may_reply = True
        self.turns = Turns(self.due.append, lambda: self.may_reply)

    def turn(self) -> None:
        self.due.popleft()()


@dataclass(eq=False)
class Waiter:
    loop: Loop
    name: str
    cost_ns: int
    steps: int
    served: list[str]
    credit: float = 0.0
    gave_up: bool = False

    def take_turn(self) -> bool:
        self.loop.now_ns += self.cost_ns
        self.served.append(self.name)
        self.steps -= 1
        if self.steps < 0:
            raise ArithmeticError("a defect")
        return self.steps > 0

    def give_up(self) -> None:
        self.gave_up = True


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    read_from(lambda: loop.now_ns)
    yield loop
    read_from(SYSTEM_CLOCK)


TURN_NS = int(TURN_SECONDS * 1e9)


def test_one_turn_of_the_loop_ends_when_its_time_is_used_up(loop: Loop) -> None:
    served: list[str] = []
    for number in range(10):
        loop.turns.enter(Waiter(loop, str(number), TURN_NS // 4 + 1, 1, served))
    assert len(loop.due) == 1, "one callback for all"
    loop.turn()
    assert served == ["0", "1", "2", "3"]
    loop.turn()
    loop.turn()
    assert served == [str(number) for number in range(10)]
    assert not loop.due
    assert loop.turns.is_idle


def test_one_connection_has_one_step_in_a_turn(loop: Loop) -> None:
    """However little it takes: others are read between its steps."""
    served: list[str] = []
    loop.turns.enter(Waiter(loop, "a", 1, 3, served))
    loop.turn()
    assert served == ["a"]


def test_costly_steps_get_no_more_time_than_cheap_ones(loop: Loop) -> None:
    served: list[str] = []
    loop.turns.enter(Waiter(loop, "costly", 50 * TURN_NS, 1_000, served))
    loop.turns.enter(Waiter(loop, "cheap", TURN_NS, 100_000, served))
    while len(served) < 1_000:
        loop.turn()
    count = Counter(served)
    assert 0.5 < 50 * count["costly"] / count["cheap"] < 2


def test_whoever_waits_alone_owes_nobody(loop: Loop) -> None:
    served: list[str] = []
    loop.turns.enter(Waiter(loop, "costly", 5_000 * TURN_NS, 3, served))
    for _ in range(3):
        loop.turn()
    assert served == ["costly"] * 3


def test_a_defect_ends_its_own_connection_and_the_others_go_on(loop: Loop) -> None:
    served: list[str] = []
    broken, sound = Waiter(loop, "broken", 1, 0, served), Waiter(loop, "sound", 1, 2, served)
    loop.turns.enter(broken)
    loop.turns.enter(sound)
    loop.turn()
    loop.turn()
    assert served == ["broken", "sound", "sound"]
    assert broken.gave_up


def test_nobody_is_served_while_too_many_replies_are_unread(loop: Loop) -> None:
    served: list[str] = []
    loop.may_reply = False
    loop.turns.enter(Waiter(loop, "a", 1, 2, served))
    loop.turn()
    assert served == []
    assert not loop.due, "it does not spin"
    loop.may_reply = True
    loop.turns.go_on()
    loop.turn()
    loop.turn()
    assert served == ["a", "a"]
