"""Which histories of one key could have happened one call after another."""

from __future__ import annotations

from holdfast.simulation.checks.linearizability import is_linearizable, steps_in_log
from holdfast.simulation.scripts.history import ClientCall, value_of
from holdfast.simulation.scripts.script import Operation, Verb

SIZE = 100


def call(
    number: int, verb: Verb, called: int, answered: int, result: object = True, durability: str | None = None
) -> ClientCall:
    operation = Operation(called, 0, verb, number, ("k",), SIZE + number, durability=durability)
    return ClientCall(operation, called, answered, "done", result)


def read(called: int, answered: int, number: int) -> ClientCall:
    return call(90 + called, "get", called, answered, value_of(number, SIZE + number) if number else None)


def possible(calls: list[ClientCall], in_log: tuple[int, ...]) -> bool | None:
    known = {("k", SIZE + number) for number in in_log}
    return is_linearizable(step for one in calls for step in steps_in_log(one, "k", known, set()))


def removal(called: int) -> ClientCall:
    """Nobody knows what became of it."""
    return ClientCall(Operation(called, 0, "remove", 50, ("k",)), called, outcome="unknown")


def test_a_put_in_memory_that_was_lost_takes_with_it_the_removal_it_stood_on() -> None:
    """I1, I7: it may be lost, and what nobody was told of may not have happened."""
    calls = [call(1, "put", 0, 1), removal(2), call(2, "put", 3, 4, durability="memory"), read(9, 10, 1)]
    assert possible(calls, in_log=(1,))


def test_a_put_that_the_log_holds_stood_on_what_was_there() -> None:
    """I7: the removal happened, and the removed object is back."""
    for durability in ("memory", None):
        calls = [call(1, "put", 0, 1), removal(2), call(2, "put", 3, 4, durability=durability), read(9, 10, 1)]
        assert possible(calls, in_log=(1, 2)) is False


def test_a_put_in_memory_may_find_one_in_its_way_that_is_lost_and_another_put_may_not() -> None:
    """I1: whoever asks for no more than memory is told of no more than that (seed 17440 was no broken promise)."""
    for durability, allowed in (("memory", True), (None, False)):
        lost, refused = call(1, "put", 0, 1, durability="memory"), call(2, "put", 2, 3, False, durability)
        assert possible([lost, refused, read(9, 10, 0)], in_log=()) is allowed


def test_reads_at_the_same_time_as_a_put_may_see_either() -> None:
    calls = [call(1, "put", 0, 10), read(1, 2, 0), read(3, 4, 1), read(5, 6, 1)]
    assert possible(calls, in_log=(1,))
    assert possible([*calls, read(7, 8, 0)], in_log=(1,)) is False, "it was seen, and then it was not"


def test_many_reads_at_once_are_decided() -> None:
    """They would have more orders than can be tried, if those that change nothing were not taken at once."""
    upserts = [call(number, "upsert", 0, 100) for number in range(1, 6)]
    reads = [read(10 + i, 90, 1 + i % 5) for i in range(60)]
    assert possible([*upserts, *reads], in_log=(1, 2, 3, 4, 5))
    gone = [read(200 + i, 300, 6) for i in range(20)]
    assert possible([*upserts, *reads, *gone], in_log=(1, 2, 3, 4, 5)) is False
