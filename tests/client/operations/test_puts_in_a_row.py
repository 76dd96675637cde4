"""Large puts one after another: commits bring the memory for the next ones, and none of it is lost (I11)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast.client.arguments import PLAIN_PUT
from holdfast.client.operations import puts
from holdfast.client.state import grants
from holdfast.ids import GrantId
from holdfast.messages import requests as m
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Call
from tests.client.fake_master import Act, FakeMaster, first
from tests.client.inside import connection_of, core_of
from tests.waiting import wait_until

Connect = Callable[..., Any]
LARGE = 40_000
"""More than what shares a grant at the fake master's."""


def value(number: int, size: int = LARGE) -> bytes:
    return bytes([number % 251]) * size


def put_some(cache: Any, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        assert cache.put(f"key {number}", value(number)) is True


def asked_ahead(master: FakeMaster) -> list[GrantId]:
    return [commit.ahead.grant for commit in master.asked(m.CommitPuts) if commit.ahead is not None]


def settled(master: FakeMaster) -> set[GrantId]:
    return {grant for grant, is_settled in master.returned if is_settled}


def grants_used(master: FakeMaster) -> list[GrantId]:
    return [commit.grant for commit in master.asked(m.CommitPuts)]


def test_in_a_row_only_the_first_two_ask_for_memory(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    put_some(cache, 12)
    assert len(master.asked(m.GrantRanges)) == 2
    first, second, third = asked_ahead(master)[:3]
    assert grants_used(master)[2:9] == [first, *[second] * 2, *[third] * 4]
    assert all(cache.get(f"key {number}") == value(number) for number in range(12))
    cache.close()
    assert settled(master) == set(master.grants), "the last one came ahead for nothing"


def test_over_tcp_too(remote_master: FakeMaster, connect: Connect) -> None:
    cache = connect(remote_master.address)
    put_some(cache, 6)
    assert len(remote_master.asked(m.GrantRanges)) == 2
    assert all(cache.get(f"key {number}") == value(number) for number in range(6))


def test_one_put_alone_takes_nothing_ahead(
    master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "STREAK_SECONDS", 0.0)
    put_some(connect(master.address), 4)
    assert len(master.asked(m.GrantRanges)) == 4
    assert not asked_ahead(master)


def test_a_master_without_room_to_spare_is_asked_as_before(master: FakeMaster, connect: Connect) -> None:
    master.grants_ahead = False
    put_some(connect(master.address), 5)
    assert len(master.asked(m.GrantRanges)) == 5
    assert len(asked_ahead(master)) == 4


def test_a_key_that_is_taken_keeps_its_object_and_ends_the_row(master: FakeMaster, connect: Connect) -> None:
    """The bytes were written for nothing once; the next put asks by its key before it writes."""
    cache = connect(master.address)
    put_some(cache, 3)
    assert cache.put("key 0", value(9)) is False
    assert cache.get("key 0") == value(0)
    assert len(master.asked(m.GrantRanges)) == 2
    assert cache.put("key 1", value(9)) is False
    assert len(master.asked(m.GrantRanges)) == 3
    assert cache.get("key 1") == value(1)


def test_a_larger_object_asks_for_itself_and_more_ahead(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    put_some(cache, 3)
    ahead = asked_ahead(master)[-1]
    assert cache.put("larger", value(7, 4 * LARGE)) is True
    assert len(master.asked(m.GrantRanges)) == 3
    assert cache.get("larger") == value(7, 4 * LARGE)
    assert cache.put("smaller", value(8)) is True
    assert grants_used(master)[-1] == asked_ahead(master)[-1] != ahead
    assert ahead in settled(master)
    assert cache.get("smaller") == value(8)


def test_other_replicas_are_another_row(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    put_some(cache, 3)
    assert cache.put("twice", value(1), replicas=2) is True
    assert len(master.asked(m.GrantRanges)) == 3
    assert len(master.grants[grants_used(master)[-1]][2].ranges) == 2


@pytest.fixture
def hasty(master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> Iterator[holdfast.Cache]:
    """A client that gives back at once what it was granted ahead and does not use."""
    monkeypatch.setattr(grants, "CARRIED_WITHIN_SECONDS", 0.05)
    with holdfast.connect(master.address) as cache:
        yield cache


def test_what_came_ahead_and_is_not_used_is_given_back_in_the_background(
    master: FakeMaster, hasty: holdfast.Cache
) -> None:
    put_some(hasty, 3)
    wait_until(lambda: settled(master) == set(master.grants))
    put_some(hasty, 1, start=3)
    assert hasty.get("key 3") == value(3)
    assert grants_used(master)[-1] not in asked_ahead(master)


def test_an_answer_that_was_lost_brings_the_same_grant_again(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    put_some(cache, 1)
    master.judge = first(m.CommitPuts, Act.DO_AND_DROP)
    put_some(cache, 2, start=1)
    lost, again = master.asked(m.CommitPuts)[1:3]
    assert lost == again
    assert lost.ahead is not None
    assert master.asked(m.CommitPuts)[3].grant == lost.ahead.grant
    assert cache.get("key 2") == value(2)


def test_a_commit_that_failed_gives_back_what_it_may_have_been_granted(
    master: FakeMaster, hasty: holdfast.Cache
) -> None:
    put_some(hasty, 1)
    master.judge = first(m.CommitPuts, m.Failed("bad_request", "no"))
    with pytest.raises(holdfast.errors.BadRequest):
        hasty.put("refused", value(1))
    [ahead] = asked_ahead(master)
    wait_until(lambda: ahead in settled(master))


def test_a_grant_from_ahead_that_has_ended_is_replaced(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    put_some(cache, 3)
    ahead = asked_ahead(master)[-1]
    master.judge = first(m.CommitPuts, m.Failed("grant_timed_out", "it ended"))
    put_some(cache, 1, start=3)
    assert ahead in settled(master)
    assert cache.get("key 3") == value(3)


def test_new_memory_of_this_machine_is_mapped_in_the_middle_of_a_row(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    put_some(cache, 3)
    listed = len(master.asked(m.ListSegments))
    master.topology += 1
    put_some(cache, 3, start=3)
    assert len(master.asked(m.ListSegments)) == listed + 1


def test_another_history_makes_it_void(master: FakeMaster, connect: Connect) -> None:
    """I2: under its numbers is somebody else's memory."""
    cache = connect(master.address)
    put_some(cache, 3)
    ahead = asked_ahead(master)[-1]
    master.log_id += 1
    master.cut()
    assert cache.exists("key 0") is True
    put_some(cache, 2, start=10)
    assert ahead not in grants_used(master)


def test_a_put_in_a_row_that_is_interrupted_anywhere_holds_nothing(master: FakeMaster) -> None:
    for steps in range(6):
        with holdfast.connect(master.address) as cache:
            put_some(cache, 3, start=10 * steps)
            core = core_of(cache)
            deadline = core.clock() + 20
            put = puts.put(core, f"key {10 * steps + 3}", memoryview(value(3)), PLAIN_PUT, deadline)
            effect = next(put)
            assert isinstance(effect, Call), "it has its memory"
            with contextlib.suppress(StopIteration):
                for _ in range(steps):
                    assert isinstance(effect, Message | Call)
                    assert connection_of(cache) is not None
                    message = effect.message if isinstance(effect, Call) else effect
                    effect = put.send(connection_of(cache).call(message, deadline))
            put.close()
            assert all(grant.users == 0 and grant.kind is not None for grant in core.grants.by_id.values())
    assert settled(master) >= set(master.grants)
