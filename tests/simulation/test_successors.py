"""Durability `standby` (ADR 70) in simulated worlds: no put is lost with one of the two that hold it, and planted bugs
lose some. Each script is played with the delays of several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest.mock import patch

import pytest

from holdfast.core.state.state import State
from holdfast.master.succession.held_tail import HeldTail
from holdfast.master.succession.succession import Succession
from holdfast.simulation.runs.run import run
from holdfast.simulation.runs.seeds import play_seeds
from holdfast.simulation.scripts.script import PRIMARY, Fault, Operation, Script, ScriptShape
from tests.simulation.planted import Patch

SEEDS = 6
FIRST_MS, LAST_MS = 3_000, 6_500
EVERY_MS = 60


def puts() -> tuple[Operation, ...]:
    """One that brings a grant, and then many on a successor's word."""
    first = Operation(1_500, 0, "put", 1, ("first",), 1_001)
    moments = range(FIRST_MS, LAST_MS, EVERY_MS)
    return first, *(
        Operation(at_ms, 0, "put", number, (f"key/{number}",), 1_000 + number, durability="standby")
        for number, at_ms in enumerate(moments, 2)
    )


def script(seed: int, *faults: Fault, masters: int = 2) -> Script:
    return Script(seed, ScriptShape(masters=masters, nodes=1, clients=1), puts(), faults)


def resets(at_ms: int) -> list[Fault]:
    pairs = (("master-0", "master-1"), ("master-1", "master-0"))
    return [Fault(at_ms, "reset", 0, *pair) for pair in pairs]


def primary_dies_while_the_log_is_late(seed: int) -> Script:
    late = Fault(5_000, "late_store", 3_000, share=0.8)
    return script(seed, late, Fault(5_700, "kill_master", 8_000, PRIMARY), masters=2 + seed % 2)


def primary_dies_while_its_successor_answers_late(seed: int) -> Script:
    late, slow = Fault(5_000, "late_store", 3_000, share=0.8), Fault(5_000, "slow_network", 3_000, share=0.8)
    return script(seed, late, slow, Fault(5_900, "kill_master", 8_000, PRIMARY))


def primary_dies_before_the_log_names_a_successor(seed: int) -> Script:
    return script(seed, Fault(2_900, "store_outage", 2_000), Fault(3_600, "kill_master", 8_000, PRIMARY))


def primary_dies_after_it_has_lost_its_successor(seed: int) -> Script:
    out, reset = Fault(5_000, "store_outage", 1_500), resets(5_150)
    return script(seed, out, *reset, Fault(5_850, "kill_master", 8_000, PRIMARY))


def successor_is_stopped_until_another_has_led(seed: int) -> Script:
    late = Fault(5_000, "late_store", 1_200, share=0.8)
    dies, again = Fault(5_700, "kill_master", 30_000, PRIMARY), Fault(16_000, "kill_master", 2_000, PRIMARY)
    return script(seed, late, dies, Fault(5_690, "pause_master", 8_000, "master-1"), again, masters=3)


SCRIPTS: tuple[Callable[[int], Script], ...] = (
    primary_dies_while_the_log_is_late,
    primary_dies_while_its_successor_answers_late,
    primary_dies_before_the_log_names_a_successor,
    primary_dies_after_it_has_lost_its_successor,
    successor_is_stopped_until_another_has_led,
)


def acknowledge_before_the_successor_has_answered() -> Patch:
    real = Succession.when_held

    def when_held(self: Succession, index: int, then: Callable[[], None]) -> None:
        if self.name:
            then()
        else:
            real(self, index, then)

    return patch.object(Succession, "when_held", when_held)


def count_its_word_before_the_log_names_it() -> Patch:
    return patch.object(Succession, "vouches", property(lambda self: bool(self.name)))


def keep_the_tail_back_at_promotion() -> Patch:
    """The right master leads, and forgets what it has promised."""
    real = HeldTail.rest

    def rest(self: HeldTail, state: State) -> list[bytes]:
        real(self, state)
        return []

    return patch.object(HeldTail, "rest", rest)


def promote_another_standby_without_asking() -> Patch:
    real = HeldTail.rest

    def rest(self: HeldTail, state: State) -> list[bytes]:
        return real(self, state) if state.successor.life == self.life else []

    return patch.object(HeldTail, "rest", rest)


def name_again_before_the_last_end_is_durable() -> Patch:
    """A standby that is named anew drops what it held before, though the log may not have that."""
    return patch.object(Succession, "may_name", property(lambda self: not self.name))


@contextmanager
def append_the_tail_of_an_older_term() -> Iterator[None]:
    """Whatever it holds goes to the log, also if that went on without it."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(HeldTail, "confirm"))
        stack.enter_context(patch.object(HeldTail, "rest", lambda self, state: [*self._records]))
        yield


class Planted(NamedTuple):
    plant: Callable[[], Patch]
    script: Callable[[int], Script]
    promises: tuple[str, ...]


PLANTED = (
    Planted(acknowledge_before_the_successor_has_answered, primary_dies_while_its_successor_answers_late, ("I1",)),
    Planted(count_its_word_before_the_log_names_it, primary_dies_before_the_log_names_a_successor, ("I1",)),
    Planted(keep_the_tail_back_at_promotion, primary_dies_while_the_log_is_late, ("I1",)),
    Planted(promote_another_standby_without_asking, primary_dies_while_the_log_is_late, ("I1",)),
    Planted(name_again_before_the_last_end_is_durable, primary_dies_after_it_has_lost_its_successor, ("I1",)),
    Planted(
        append_the_tail_of_an_older_term, successor_is_stopped_until_another_has_led, ("I2", "I5", "I7", "I9", "I10")
    ),
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("drawn", SCRIPTS, ids=lambda one: one.__name__)
def test_no_put_is_lost_with_one_of_the_two_that_hold_it(drawn: Callable[[int], Script]) -> None:
    """I1."""
    for seed in range(SEEDS):
        violation = run(drawn(seed)).violation
        assert violation is None, f"seed {seed}: {violation}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.plant.__name__)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    with bug.plant():
        found = [run(bug.script(seed)).violation for seed in range(SEEDS)]
    broken = {violation.promise for violation in found if violation is not None}
    assert broken & {*bug.promises}, f"found nothing, or something else: {found}"


@pytest.mark.timeout(900)
def test_seeds_with_such_puts_keep_every_promise() -> None:
    for one in play_seeds(range(8), 2, scene="successor"):
        assert one.violation is None, one
