"""What is said when time is up: why it was not done, not that it is late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.client.core import Core, ask
from holdfast.effects import Operation, Sleep
from holdfast.errors import NoRoom, Unreachable
from holdfast.messages import requests as m

DEADLINE = 10.0


def asked_of(clock: list[float]) -> Operation[Any]:
    """One request of a client whose clock shows what is in the list."""
    core = SimpleNamespace(check_open=lambda: None, clock=lambda: clock[0])
    return cast("Operation[Any]", ask(cast("Core", core), m.Remove(["key"], 1), m.Removed, DEADLINE))


def test_a_sleep_that_lasts_beyond_the_deadline_does_not_hide_why_it_was_waited() -> None:
    """I10: a busy machine wakes a client late."""
    clock = [0.0]
    asking = asked_of(clock)
    assert isinstance(next(asking), m.Remove)
    assert isinstance(asking.send(m.Failed("no_room", "full")), Sleep)
    clock[0] = DEADLINE + 1
    assert isinstance(asking.send(None), m.Remove)
    with pytest.raises(NoRoom, match="full"):
        asking.throw(Unreachable("the deadline passed before the request was sent; nothing was changed"))


def test_a_master_that_cannot_be_reached_is_the_reason_while_there_is_time() -> None:
    clock = [0.0]
    asking = asked_of(clock)
    next(asking)
    asking.send(m.Failed("no_room", "full"))
    clock[0] = DEADLINE - 0.001
    asking.send(None)
    with pytest.raises(Unreachable, match="refused"):
        asking.throw(Unreachable("refused"))
