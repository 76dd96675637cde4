"""What is said when time is up: why it was not done, not that it is late."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.client.state.client import Core, ask, ask_timed
from holdfast.errors import NodeAway, NoRoom, ReplyLost, Unreachable
from holdfast.ids import GrantId
from holdfast.messages import requests as m
from holdfast.messages.shapes import Range
from holdfast.operations.effects import Call, LeaveMaster, Operation, Sleep

DEADLINE = 10.0


def asked_of(clock: list[float]) -> Operation[Any]:
    """One request of a client whose clock shows what is in the list."""
    core = SimpleNamespace(check_open=lambda: None, tried_again=lambda: None, clock=lambda: clock[0])
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


def committing(check: Callable[[object], None]) -> Operation[Any]:
    core = SimpleNamespace(check_open=lambda: None, tried_again=lambda: None, clock=lambda: 0.0, check_nodes=check)
    message = m.CommitPuts(GrantId(1, 1), ["key"], bytes(24))
    return cast("Operation[Any]", ask_timed(cast("Core", core), message, m.Committed, DEADLINE, (Range(1, 0, 1),)))


def test_nodes_are_looked_at_whenever_a_commit_is_sent() -> None:
    looks: list[object] = []
    asking = committing(looks.append)
    for _ in range(2):
        sent = next(asking) if not looks else asking.send(None)
        assert isinstance(sent, Call)
        assert sent.check is not None
        sent.check()
        assert isinstance(asking.send(m.Failed("not_leader", "another leads")), LeaveMaster)
        assert isinstance(asking.send(None), Sleep)
    assert len(looks) == 2


def test_a_commit_whose_answer_was_lost_is_in_doubt_when_its_node_is_dead() -> None:
    """I7: it may have been stored while the node lived, so to begin anew could store it twice."""
    asking = committing(lambda written: None)
    next(asking)
    with pytest.raises(NodeAway):
        committed_anew = committing(lambda written: None)
        next(committed_anew)
        committed_anew.throw(NodeAway("dead"))
    assert isinstance(asking.throw(ReplyLost("the connection broke")), Sleep)
    assert isinstance(asking.send(None), Call)
    with pytest.raises(ReplyLost, match="may have been stored"):
        asking.throw(NodeAway("dead"))
