"""What the client does when something is away, late, full or gone; through both shells where both can show it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import errors
from holdfast.client.bytes import nodes
from holdfast.messages import requests as m
from holdfast.messages.shapes import Message
from holdfast.wire.codec import failed
from tests.client.fake_master import Act, FakeMaster, closed_port, first
from tests.client.inside import core_of
from tests.node.rig import Served
from tests.waiting import check_closed_in_a_child, run_together

Connect = Callable[..., Any]


def hurry(cache: Any, seconds: float) -> Any:
    """From now on its calls have so much time. It was connected with all the time that a busy machine may need."""
    getattr(cache, "cache", cache).timeout = seconds
    return cache


def test_a_dead_node_costs_only_its_replica(remote_master: FakeMaster, connect: Connect) -> None:
    remote_master.dead.clear()
    writer = connect(remote_master.address)
    items = {f"key {number}": os.urandom(100) for number in range(5)}
    writer.put_many(items, replicas=2)
    writer.put("large", b"L" * 300_000, replicas=2)
    remote_master.dead.add(1)
    cache = connect(remote_master.address)
    assert cache.get("key 1") == items["key 1"]
    assert cache.get_many(items) == items
    assert cache.get("large") == b"L" * 300_000


def test_no_node_that_answers_is_said_at_the_deadline(remote_master: FakeMaster, connect: Connect) -> None:
    """I10."""
    connect(remote_master.address).put("key", b"x")
    remote_master.dead.update((1, 2))
    cache = hurry(connect(remote_master.address), 0.8)
    with pytest.raises(errors.NodeLost, match="'key'"):
        cache.get("key")


def test_a_node_that_comes_back_is_found_within_the_deadline(
    remote_master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "BAD_SECONDS", 0.01)
    connect(remote_master.address).put("key", b"x")
    remote_master.dead.update((1, 2))
    cache = connect(remote_master.address)

    def judge(request: Message) -> Act:
        # It is asked for the second time because the first place did not answer.
        if len(remote_master.asked(m.Locate)) == 2:
            remote_master.dead.clear()
        return Act.USUAL

    remote_master.judge = judge
    assert cache.get("key") == b"x"


def test_memory_that_cannot_be_mapped_is_reached_over_tcp(master: FakeMaster, connect: Connect) -> None:
    """The master says that it is local, and it is not."""
    master.socket_path += ".gone"
    cache = connect(master.address)
    assert cache.put("key", b"x" * 1000)
    assert cache.get("key") == b"x" * 1000
    assert master.asked(m.GrantRanges)[0].attached == []


def test_no_room_is_waited_for(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    master.judge = first(m.GrantRanges, m.Failed("no_room", "full"), m.Failed("window_full", "too much"))
    assert cache.put("key", b"x") is True
    master.judge = lambda request: m.Failed("no_room", "full") if isinstance(request, m.GrantRanges) else Act.USUAL
    with pytest.raises(errors.NoRoom, match="full"):
        hurry(connect(master.address), 0.8).put("other", b"x")
    assert "other" not in master.objects


@pytest.mark.parametrize("code", ["stopping", "not_leader"])
def test_another_master_is_asked_when_one_steps_down(node: Served, connect: Connect, code: str) -> None:
    with FakeMaster(node) as old, FakeMaster(node) as new:
        cache = connect(f"{old.address},{new.address}")
        new.objects["key"] = (1, 1, 0, 1, 0)
        old.judge = lambda request: m.Failed(code, "not me")
        assert cache.exists("key") is True


def test_a_batch_of_which_a_part_was_stored_is_not_called_undone(master: FakeMaster, connect: Connect) -> None:
    """I7, found by simulation: a caller who is told that nothing was changed may take what is there for another's."""

    def no_room_for(key: str) -> None:
        def judge(request: m.Message) -> Act | m.Message:
            if not isinstance(request, m.GrantRanges):
                return Act.USUAL
            if len(request.keys) > 1:
                return m.Failed("too_large", "not together")
            return m.Failed("no_room", "full") if request.keys == [key] else Act.USUAL

        master.judge = judge

    items = {"first": b"1" * 100_000, "second": b"2" * 100_000}
    cache = hurry(connect(master.address), 2)
    no_room_for("first")
    with pytest.raises(errors.NoRoom):
        cache.put_many(items)
    assert not master.objects
    no_room_for("second")
    with pytest.raises(errors.PartlyStored, match="1 of 2 objects were stored, then: full"):
        cache.put_many(items)
    assert list(master.objects) == ["first"]
    master.judge = lambda request: Act.USUAL
    assert hurry(cache, 30).put_many(items) == 1


def test_what_the_master_refuses_is_raised_at_once(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address)
    master.judge = lambda request: m.Failed("too_large", "no segment holds it")
    with pytest.raises(errors.TooLarge, match="no segment"):
        cache.put("key", b"x" * 100_000)
    master.judge = lambda request: m.Failed("from_the_future", "a new error")
    with pytest.raises(errors.HoldfastError, match="a new error"):
        cache.exists("key")
    cache.close()
    with pytest.raises(errors.ClientClosed):
        cache.exists("key")


def test_a_batch_too_large_for_a_segment_is_split(master: FakeMaster, connect: Connect) -> None:
    def judge(request: Message) -> Act | Message:
        if isinstance(request, m.GrantRanges) and len(request.keys) > 2:
            return m.Failed("too_large", "no segment holds them together")
        return Act.USUAL

    master.judge = judge
    cache = connect(master.address)
    assert cache.put_many({f"key {number}": b"x" * 100_000 for number in range(7)}) == 7


def test_silence_ends_at_the_deadline(master: FakeMaster, connect: Connect) -> None:
    """I10."""
    cache = connect(master.address)
    cache.put("there", b"x")
    hurry(cache, 0.3)
    master.judge = lambda request: Act.SILENCE
    for call in (lambda: cache.exists("key"), lambda: cache.put("key", b"x"), lambda: cache.remove("key")):
        with pytest.raises(errors.DeadlineExceeded):
            call()


def test_a_silent_master_is_left_for_the_next_and_is_not_asked_again_before(
    node: Served, master: FakeMaster, connect: Connect
) -> None:
    """I10: a stopped process takes new connections, and each costs the time that it takes to give one up."""
    with FakeMaster(node) as next_one:
        cache = connect(f"{master.address},{next_one.address}")
        assert cache.exists("key") is False
        greeted = len(master.asked(m.Hello))
        master.judge = lambda request: Act.SILENCE
        assert cache.exists("key") is False
        assert next_one.asked(m.Exists)
        assert len(master.asked(m.Hello)) == greeted


def test_a_change_of_unknown_outcome_is_uncertain_and_a_read_is_not(master: FakeMaster, connect: Connect) -> None:
    cache = hurry(connect(master.address), 0.8)
    master.judge = lambda request: Act.USUAL if isinstance(request, m.Hello) else Act.DO_AND_DROP
    with pytest.raises(errors.DeadlineExceeded, match="may have happened"):
        cache.remove("key")
    with pytest.raises(errors.Unreachable, match="nothing was changed"):
        cache.exists("key")


def test_nobody_at_the_address_is_said_with_the_address(connect: Connect) -> None:
    address = closed_port()
    with pytest.raises(errors.Unreachable, match=address):
        connect(address, timeout=2)


def test_a_dead_address_in_the_list_is_passed_over(master: FakeMaster, connect: Connect) -> None:
    assert connect(f"{closed_port()},{master.address}").exists("key") is False


def test_bad_settings_are_refused(master: FakeMaster, connect: Connect) -> None:
    for named in ({"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}):
        with pytest.raises(errors.BadValue):
            connect(master.address, **named)
    with pytest.raises(TypeError):
        connect(master.address, timeout="5")
    with pytest.raises(TypeError):
        connect(master.address, tls=object())
    with pytest.raises(errors.BadValue):
        connect("carrier-pigeon://127.0.0.1:2379/c")


def test_threads_share_one_client(master: FakeMaster) -> None:
    wrong: list[object] = []

    def work(cache: holdfast.Cache, name: int) -> None:
        for number in range(40):
            key, data = f"{name}-{number}", bytes([name, number]) * 50
            if not cache.put(key, data) or cache.get(key) != data or not cache.exists(key):
                wrong.append(key)

    with holdfast.connect(master.address) as cache:
        threads = [threading.Thread(target=work, args=(cache, name)) for name in range(6)]
        run_together(threads)
        assert wrong == []
        assert len(cache.get_many(master.objects)) == 240


def test_a_forked_child_must_connect_again(master: FakeMaster) -> None:
    with holdfast.connect(master.address) as cache:
        cache.put("key", b"x")
        cache.get("key")
        check_closed_in_a_child(lambda: cache.get("key"), cache.close)
        assert cache.get("key") == b"x"
        assert cache.put("more", b"x") is True


def test_without_shared_memory_the_bytes_of_a_local_node_move_over_tcp(master: FakeMaster, connect: Connect) -> None:
    cache = connect(master.address, shared_memory=False)
    assert cache.put("key", b"x" * 100_000)
    assert cache.get("key") == b"x" * 100_000
    assert master.asked(m.GrantRanges)[0].attached == []
    assert core_of(cache).bytes.maps == {}


def test_a_commit_that_may_have_happened_is_never_begun_anew(remote_master: FakeMaster, connect: Connect) -> None:
    """I7: its answer was lost and its grant has ended since. Put once more, it could come back after its removal."""
    remote_master.dead.clear()
    cache = connect(remote_master.address)
    ended = failed(errors.GrantTimedOut("the grant has ended"))
    remote_master.judge = first(m.CommitPuts, Act.DO_AND_DROP, ended)
    with pytest.raises(errors.ReplyLost, match="may have been made"):
        cache.put("key", b"x")
    assert len(remote_master.asked(m.CommitPuts)) == 2


def test_a_change_stays_in_doubt_when_the_next_master_turns_it_away(
    remote_master: FakeMaster, connect: Connect
) -> None:
    """The first master may have done it: to say that nothing was changed would be wrong."""
    remote_master.dead.clear()
    cache = hurry(connect(remote_master.address), 0.8)
    busy = failed(errors.Settling("not yet"))
    remote_master.judge = first(m.Remove, Act.DO_AND_DROP, *[busy] * 100)
    with pytest.raises(errors.DeadlineExceeded, match="may have happened"):
        cache.remove("key")
