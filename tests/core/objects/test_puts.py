"""Grants, commits and what they leave behind."""

from __future__ import annotations

import struct

import pytest

from holdfast import errors
from holdfast.core.promotion import promote
from holdfast.ids import GrantId, extent_of
from holdfast.master.engine.engine import Engine
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.of_sessions import KeepAlive
from tests.core.world import CLIENT, World


@pytest.fixture
def world() -> World:
    world = World()
    world.node("a")
    return world


def test_a_committed_object_is_found_at_its_place(world: World) -> None:
    grant, granted = world.grant(100)
    assert not world.has("k")[0]
    assert world.commit(grant, [("k", 0, 100)]) == [True]
    [(oid, segment, offset, size, checksum)] = world.locate("k")
    assert (segment, offset) == (granted.ranges[0].segment, granted.ranges[0].offset)
    assert (size, checksum) == (100, 100 ^ 99)
    assert oid == 1 << 40 | 1
    world.check()


def test_the_first_commit_of_a_key_wins(world: World) -> None:
    mine, _ = world.grant(100)
    yours, _ = world.grant(200, client=8)
    assert world.commit(yours, [("k", 0, 200)]) == [True]
    assert world.commit(mine, [("k", 0, 100)]) == [False]
    assert world.locate("k")[0][3] == 200
    world.check()


def test_commits_of_one_and_of_many_give_the_same_catalogue() -> None:
    one, many = World(), World()
    keys = [f"key-{i}" for i in range(40)]
    for world in (one, many):
        world.node("a")
        grant, _ = world.grant(*[700] * 40)
        rows = [(key, i * extent_of(700), 700) for i, key in enumerate(keys)]
        if world is many:
            world.commit(grant, rows)
        else:
            for row in rows:
                world.commit(grant, [row])
        world.check()
    assert one.locate(*keys) == many.locate(*keys)
    assert [one.locate(key)[0] for key in keys] == many.locate(*keys)


def test_a_commit_asked_again_is_answered_as_before_and_changes_nothing(world: World) -> None:
    grant, _ = world.grant(100, 100)
    rows = [("k", 0, 100), ("l", 128, 100)]
    assert world.commit(grant, rows) == [True, True]
    records = len(world.primary.records)
    assert world.commit(grant, rows) == [True, True]
    world.remove("k")
    assert world.commit(grant, rows) == [True, True], "it was stored, and removed since: I7 keeps it gone"
    assert world.has("k", "l") == [False, True]
    assert len(world.primary.records) == records + 2
    world.check()


def test_asking_for_a_grant_again_gives_the_same_memory(world: World) -> None:
    request = q.GrantRanges(GrantId(CLIENT, 1), struct.pack("<Q", 4096))
    first = world.ask(q.Granted, request)
    again = world.ask(q.Granted, request)
    assert [(one.segment, one.offset) for one in again.ranges] == [(one.segment, one.offset) for one in first.ranges]
    assert again.length == first.length
    assert len(world.state.grants) == 1
    with pytest.raises(errors.GrantRefused):
        world.ask(q.Granted, q.GrantRanges(GrantId(CLIENT, 1), struct.pack("<Q", 8192)))


def test_keys_that_exist_get_no_memory(world: World) -> None:
    world.put("there")
    grant, granted = world.grant(100, 200, keys=["there", "new"])
    assert granted.taken == b"\1\0"
    assert granted.length == extent_of(200)
    world.commit(grant, [("new", 0, 200)])
    _, nothing = world.grant(100, keys=["there"])
    assert (nothing.length, nothing.ranges) == (0, [])
    world.check()


def test_an_upsert_replaces_and_a_reader_under_its_lease_keeps_its_bytes(world: World) -> None:
    """I2: the old range is nobody else's until the lease has ended."""
    world.put("k", size=100)
    [(old_id, segment, offset, _, _)] = world.locate("k")
    grant, _ = world.grant(300)
    assert world.commit(grant, [("k", 0, 300)], upsert=True) == [True]
    assert world.locate("k")[0][0] != old_id
    held = [piece for entry in world.state.quarantine.values() for piece in entry.pieces]
    assert held == [(offset, extent_of(100))]
    renewal = world.ask(q.Presence, q.RenewLeases(struct.pack("<3Q", old_id, segment, offset)))
    assert renewal.found == b"\0", "the lease of a replaced object cannot be renewed"
    world.check()
    world.pass_time(world.primary.rules.lease_ttl_ms - 1)
    assert world.state.quarantine
    world.pass_time(1)
    assert not world.state.quarantine
    world.check()


def test_what_a_returned_grant_did_not_use_is_free_at_once(world: World) -> None:
    grant, _ = world.grant(64 * 100)
    world.commit(grant, [("k", 64, 64)])
    free = world.primary.free_bytes
    world.ask(q.Done, q.ReturnGrants([grant]))
    assert world.primary.free_bytes == free + 64 * 99
    world.check()
    with pytest.raises(errors.GrantTimedOut):
        world.commit(grant, [("l", 128, 64)])


def test_a_timed_out_grant_stays_in_quarantine_until_its_writer_has_spoken(world: World) -> None:
    """I11: memory comes back by its writer's word, never by a clock."""
    free = world.primary.free_bytes
    grant, _ = world.grant(4096)
    for _ in range(100):
        world.pass_time(world.primary.rules.grant_timeout_ms)
    assert world.primary.free_bytes == free - 4096
    with pytest.raises(errors.GrantTimedOut):
        world.commit(grant, [("k", 0, 100)])
    world.check()
    world.ask(q.Done, q.ReturnGrants([grant]))
    assert world.primary.free_bytes == free
    world.check()


def test_the_memory_of_a_dead_writer_comes_back(world: World) -> None:
    """I11, by the writer's death: in a live grant and in quarantine, and another writer's stays."""
    free = world.primary.free_bytes
    world.grant(4096, writer=1)
    world.pass_time(world.primary.rules.grant_timeout_ms)
    grant, _ = world.grant(4096, writer=1)
    world.commit(grant, [("k", 0, 64)])
    other, _ = world.grant(4096, client=8, writer=2)
    world.report(gone=(1,))
    assert world.primary.free_bytes == free - 4096 - 64
    assert list(world.state.grants) == [other]
    assert not world.state.quarantine
    world.check()


def test_a_dead_writers_request_that_comes_after_the_word_of_its_death_costs_nothing(world: World) -> None:
    """I11, found by simulation: the dead client's kernel still had it; nobody says that death a second time."""
    free = world.primary.free_bytes
    world.report(gone=(1,))
    world.grant(4096, writer=1)
    later, _ = world.grant(4096, client=8, writer=2)
    unborn, _ = world.grant(4096, client=9, writer=3)
    world.ask(q.Done, n.ReportUsage(5, 5, {}, live_writers=[2], next_writer=3))
    assert list(world.state.grants) == [later, unborn], "who lives, and who came after the report, keep theirs"
    assert world.primary.free_bytes == free - 2 * 4096
    world.check()


def test_a_node_that_registers_again_tells_which_writers_live(world: World) -> None:
    grant, _ = world.grant(4096, writer=1)
    world.grant(4096, client=8, writer=2)
    world.offer(5, 5, [1 << 20], world.state.log_id, live_writers=[1])
    assert list(world.state.grants) == [grant]
    world.check()


def test_a_grant_over_tcp_comes_back_when_its_node_has_cleaned_it(world: World) -> None:
    free = world.primary.free_bytes
    grant, granted = world.grant(4096, writer=0)
    assert granted.ranges[0].mac
    world.ask(q.Done, q.ReturnGrants([grant], settled=False))
    assert world.primary.free_bytes == free - 4096
    assert world.asked_to_clean() == [grant]
    assert world.asked_to_clean() == [grant], "once under one master"
    world.report(cleaned=(grant,))
    assert world.primary.free_bytes == free
    world.check()


def test_a_grant_that_is_extended_does_not_end(world: World) -> None:
    grant, _ = world.grant(4096)
    for _ in range(5):
        world.pass_time(world.primary.rules.grant_timeout_ms // 2)
        assert world.ask(q.Done, q.ExtendGrants([grant])).count == 1
    assert world.commit(grant, [("k", 0, 100)]) == [True]


@pytest.mark.parametrize(
    "rows",
    [
        [("k", 0, 4097)],
        [("k", 4096, 64)],
        [("k", 1, 64)],
        [("k", 0, 100), ("l", 64, 64)],
        [("k", 2**63, 64)],
        [("k", 0, 64), ("k", 64, 64)],
        [(f"k{i}", 64 * i, 64) for i in range(64)] + [("last", 4096, 64)],
        [(f"k{i}", 64 * i, 64) for i in range(32)] + [("last", 64, 64)],
        [(f"k{i}", 64 * i + 1, 10) for i in range(32)],
    ],
)
def test_a_commit_outside_its_grant_or_over_another_object_is_refused_whole(
    world: World, rows: list[tuple[str, int, int]]
) -> None:
    grant, _ = world.grant(4096)
    with pytest.raises(errors.BadRequest):
        world.commit(grant, rows)
    assert world.state.catalogue.count == 0
    world.check()


def test_another_key_at_a_committed_offset_is_refused(world: World) -> None:
    grant, _ = world.grant(4096)
    world.commit(grant, [("k", 0, 64)])
    with pytest.raises(errors.BadRequest, match="another object"):
        world.commit(grant, [("l", 0, 64)])


def test_a_grant_of_another_client_is_refused(world: World) -> None:
    grant, _ = world.grant(4096)
    with pytest.raises(errors.GrantRefused):
        world.ask(q.Done, q.ReturnGrants([grant]), client=CLIENT + 1)
    with pytest.raises(errors.GrantRefused):
        world.ask(q.Committed, q.CommitPuts(grant, ["k"], bytes(24)), client=CLIENT + 1)


def test_bad_keys_and_sizes_are_refused_with_nothing_changed(world: World) -> None:
    grant, _ = world.grant(4096)
    for key in ("", "x" * 1025, "ü" * 513):
        with pytest.raises(errors.BadKey):
            world.commit(grant, [(key, 0, 64)])
    with pytest.raises(errors.BadValue):
        world.commit(grant, [("k", 0, 0)])
    with pytest.raises(errors.BadValue):
        world.grant(0, keys=["k"])
    with pytest.raises(errors.BadRequest):
        world.ask(q.Committed, q.CommitPuts(grant, ["k"], b"123"))
    assert world.commit(grant, [("x" * 1024, 0, 64)]) == [True]
    world.check()


def test_what_no_segment_could_hold_is_refused_at_once(world: World) -> None:
    with pytest.raises(
        errors.TooLarge, match=r"fits into no node: at most .* Store it in parts, or start larger nodes"
    ):
        world.grant((1 << 20) + 1)
    with pytest.raises(errors.BadValue, match="2 replicas"):
        world.grant(100, replicas=2)
    empty = World()
    with pytest.raises(errors.NoRoom, match="no node"):
        empty.grant(100)


def test_one_client_cannot_hold_more_than_its_window() -> None:
    world = World(write_window_bytes=10_000)
    world.node("a")
    world.grant(20_000)  # One grant may always be had, whatever the size of its object.
    with pytest.raises(errors.WindowFull):
        world.grant(64)
    world.grant(64, client=8)


def test_replicas_lie_on_distinct_nodes_and_are_all_named(world: World) -> None:
    world.node("b", connection=101, boot=6)
    world.put("k", replicas=2)
    located = world.ask(q.Located, q.Locate(["none", "k"]))
    [first] = [row for row in struct.iter_unpack("<5Q", located.rows) if row[0]]
    [(index, segment, _)] = located.others
    assert index == 1
    assert {first[1], segment} == {world.handle_of("a"), world.handle_of("b")}
    world.check()
    world.remove("k", force=True)
    world.check()
    many = [f"k{i}" for i in range(20)]
    world.put(*many, replicas=2)
    world.check()
    assert len(world.ask(q.Located, q.Locate(many)).others) == 20


def test_memory_is_spread_by_free_ratio_and_preference_wins(world: World) -> None:
    world.node("b", connection=101, boot=6)
    places = [world.grant(64 << 10)[1].ranges[0].segment for _ in range(4)]
    assert sorted(places) == sorted([world.handle_of("a"), world.handle_of("b")] * 2)
    for _ in range(3):
        assert world.grant(64 << 10, prefer=["b"])[1].ranges[0].segment == world.handle_of("b")


def test_nothing_is_placed_on_a_silent_node(world: World) -> None:
    world.engine.connection_lost(100)
    request = q.GrantRanges(GrantId(CLIENT, 50), struct.pack("<Q", 64))
    assert world.send(request, timeout_ms=500) is None
    world.pass_time(500)
    [late] = world.late
    assert isinstance(late, q.Failed)
    assert late.code == "no_room"
    assert "0 node(s) answer" in late.text


def test_what_a_request_gives_back_does_not_count_for_its_window(world: World) -> None:
    world.node("b", size=4 << 30, boot=6, connection=101)
    window = world.primary.rules.write_window_bytes
    first, _ = world.grant(window // 2)
    with pytest.raises(errors.WindowFull):
        world.grant(window)
    second, granted = world.grant(window, finished=[first])
    assert granted.length == window
    assert world.state.grants.keys() == {second}
    world.check()


def test_a_put_on_a_node_whose_connection_has_ended_is_refused_until_it_is_back(world: World) -> None:
    """It would be acknowledged into memory that is lost already, as far as the master can know."""
    grant, _ = world.grant(10_000)
    assert world.commit(grant, [("before", 0, 100)]) == [True]
    world.engine.connection_lost(100)
    for rows in ([("one", 128, 100)], [("two", 128, 100), ("three", 256, 100)]):
        with pytest.raises(errors.NodeAway, match="'a'"):
            world.commit(grant, rows)
    assert world.commit(grant, [("before", 0, 100)]) == [True], "what was stored was stored, asked again"
    assert world.send(q.GrantRanges(GrantId(CLIENT, 901), struct.pack("<Q", 100))) is None, "nothing is placed there"
    world.keep_alive(5)
    assert world.commit(grant, [("one", 128, 100)]) == [True]
    assert world.has("before", "one", "two", "three") == [True, True, False, False]
    world.check()


def test_a_put_of_two_replicas_is_refused_when_one_of_its_nodes_is_gone() -> None:
    """An acknowledged put has as many copies that live as it says."""
    world = World()
    world.node("a")
    world.node("b", boot=6, connection=101)
    world.node("c", boot=7, connection=102)
    both, granted = world.grant(1_000, replicas=2)
    lost = world.state.segments[granted.ranges[1].segment].name.node
    world.engine.connection_lost({"a": 100, "b": 101, "c": 102}[lost])
    with pytest.raises(errors.NodeAway):
        world.commit(both, [("k", 0, 100)])
    others, elsewhere = world.grant(1_000, replicas=2)
    assert lost not in {world.state.segments[one.segment].name.node for one in elsewhere.ranges}
    assert world.commit(others, [("k", 0, 100)]) == [True]
    world.check()


def test_a_node_that_only_stands_still_takes_what_was_written(world: World) -> None:
    """Its lease is over, its connection is open: the bytes are in its memory."""
    grant, _ = world.grant(1_000)
    world.now += world.primary.rules.session_lease_ms
    assert world.commit(grant, [("k", 0, 100)]) == [True]


def test_a_new_primary_has_seen_no_connection_end_and_refuses_no_put_in_flight(world: World) -> None:
    """A failover is not slowed down by nodes that have yet to come back."""
    grant, _ = world.grant(1_000)
    promoted = Engine(promote(world.primary.twin, world.primary.rules, 5_000, proven=True, now=world.now))
    promoted.start_epoch(2, world.now)
    rows = struct.pack("<3Q", 0, 100, 1)
    reply, _ = promoted.handle(q.CommitPuts(grant, ["k"], rows), CLIENT, 1, world.now)
    assert reply == q.Committed(b"\1")
    found = promoted.primary.sessions.require(5)
    promoted.handle(KeepAlive(5, found.serial + 1, 2), 0, 200, world.now)
    promoted.connection_lost(200)
    reply, _ = promoted.handle(q.CommitPuts(grant, ["l"], struct.pack("<3Q", 128, 100, 1)), CLIENT, 1, world.now)
    assert isinstance(reply, q.Failed), "this one it has seen end"
    assert reply.code == errors.NodeAway.code
