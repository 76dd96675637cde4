"""Three hundred worlds in which everything goes wrong: no promise may break. `make sim` plays many more."""

from __future__ import annotations

import pytest

from holdfast.simulation.runs.seeds import play_seeds

SEEDS = 300
AT_ONCE = 60
PROCESSES = 2


@pytest.mark.timeout(900)
@pytest.mark.parametrize("start", range(0, SEEDS, AT_ONCE))
def test_no_promise_breaks_in_any_of_them(start: int) -> None:
    """I1 to I18, as far as the checkers know them."""
    played = 0
    for one in play_seeds(range(start, start + AT_ONCE), PROCESSES):
        again = f"python -m holdfast.simulation replay {one.script.seed}"
        assert one.violation is None, f"seed {one.script.seed}: {one.violation}; again: {again}"
        played += 1
    assert played == AT_ONCE


@pytest.mark.timeout(900)
def test_no_promise_breaks_where_engines_reserve_and_hold() -> None:
    """The verbs that seeds do not draw by themselves: two-step puts, and leases that are counted."""
    verbs: set[str] = set()
    for one in play_seeds(range(20), PROCESSES, scene="engine"):
        again = f"python -m holdfast.simulation replay {one.script.seed} --scene engine"
        assert one.violation is None, f"seed {one.script.seed}: {one.violation}; again: {again}"
        verbs |= {operation.verb for operation in one.script.operations}
    assert verbs >= {"reserve", "abandon", "hold"}


@pytest.mark.timeout(900)
def test_no_promise_breaks_where_pins_are_changed() -> None:
    """I8, of pins that objects get and lose after their put."""
    changes: set[tuple[str, str]] = set()
    for one in play_seeds(range(10), PROCESSES, scene="changed pins"):
        again = f"python -m holdfast.simulation replay {one.script.seed} --scene 'changed pins'"
        assert one.violation is None, f"seed {one.script.seed}: {one.violation}; again: {again}"
        changes |= {(operation.verb, operation.pin) for operation in one.script.operations}
    assert changes >= {("pin", "hard"), ("pin", "soft"), ("unpin", "")}
