"""The client's own grants, with a clock that the test turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.state.grants import (
    CARRIED_WITHIN_SECONDS,
    IDLE_SECONDS,
    STREAK_BYTES,
    STREAK_SECONDS,
    Grants,
    Kind,
    WriteGrant,
    lay_out,
)
from holdfast.ids import LARGE_ALIGN, LARGE_FROM, SMALL_ALIGN, extent_of
from holdfast.messages.shapes import Range

KIND: Kind = (1, (), False)


def taken(grants: Grants, kind: Kind | None = KIND, now: float = 100.0, length: int = 4096) -> WriteGrant:
    grant = WriteGrant(grants.next_id(), length, (), 30.0, 0.0, 0.0, now, kind)
    grant.extended(now)
    grants.add(grant, now)
    return grant


@given(st.lists(st.integers(1, 4 * LARGE_FROM), min_size=1), st.integers(0, 100).map(lambda n: n * SMALL_ALIGN))
def test_objects_in_a_grant_are_aligned_and_apart(sizes: list[int], start: int) -> None:
    """I9."""
    offsets, end = lay_out(sizes, start)
    at = start
    for offset, size in sorted(zip(offsets, sizes, strict=True)):
        assert offset >= at
        assert offset % (LARGE_ALIGN if size >= LARGE_FROM else SMALL_ALIGN) == 0
        at = offset + extent_of(size)
    assert at == end


def test_small_puts_share_a_grant_from_the_front() -> None:
    grants = Grants(1)
    grant = taken(grants, length=256)
    assert grants.reserve(KIND, [1, 64], 101) == (grant, [0, 64])
    assert grants.reserve(KIND, [65], 101) == (grant, [128])
    assert grants.reserve(KIND, [1], 101) is None
    assert grant.users == 2
    assert grants.reserve((2, (), False), [1], 101) is None


@given(st.lists(st.integers(1, 2 * LARGE_FROM), min_size=1, max_size=20))
def test_one_by_one_objects_get_the_room_that_they_get_as_batches_of_one(sizes: list[int]) -> None:
    """I9."""
    by_one, by_batch = Grants(1), Grants(1)
    taken(by_one, length=1 << 21), taken(by_batch, length=1 << 21)
    for size in sizes:
        one = by_one.reserve_one(KIND, size, 101)
        batch = by_batch.reserve(KIND, [size], 101)
        assert (one is None) == (batch is None)
        if one is not None and batch is not None:
            assert (one[1], one[0].used) == (batch[1][0], batch[0].used)


def test_a_shared_grant_past_its_end_is_not_used() -> None:
    """I11: it is given back only when its last user has left."""
    grants = Grants(1)
    grant = taken(grants, now=100)
    assert grants.reserve(KIND, [1], 129.3) is not None
    assert grants.reserve(KIND, [1], 129.5) is None
    assert grants.finished == []
    grants.release(grant, 130)
    assert grants.finished == [grant.id]
    assert grants.by_id == {}


def test_only_the_last_room_is_taken_back() -> None:
    grants = Grants(1)
    grant = taken(grants)
    grants.reserve(KIND, [10], 101)
    grants.reserve(KIND, [10], 101)
    grants.unreserve(grant, 0, 10)
    assert grant.used == 128
    grants.unreserve(grant, 64, 10)
    assert grant.used == 64


def test_a_new_shared_grant_retires_the_one_before() -> None:
    grants = Grants(1)
    old = taken(grants)
    new = taken(grants)
    assert grants.finished == [old.id]
    reserved = grants.reserve(KIND, [1], 101)
    assert reserved is not None
    assert reserved[0] is new


def test_one_caller_at_a_time_asks_for_a_shared_grant() -> None:
    grants = Grants(1)
    assert grants.may_ask(KIND)
    assert not grants.may_ask(KIND)
    assert grants.may_ask((2, (), False))
    grants.asked(KIND)
    assert grants.may_ask(KIND)


def test_a_torn_grant_is_given_back_unsettled() -> None:
    """I11."""
    grants = Grants(1)
    grant = taken(grants)
    grants.reserve(KIND, [1], 101)
    grants.reserve(KIND, [1], 101)
    grant.torn = True
    grants.release(grant, 102)
    assert grants.reserve(KIND, [1], 102) is None
    assert grants.torn == []
    grants.release(grant, 103)
    assert (grants.torn, grants.finished) == ([grant.id], [])
    assert grants.take_torn() == [grant.id]


def test_a_grant_of_ones_own_is_done_with_when_its_put_is() -> None:
    grants = Grants(1)
    grant = taken(grants, kind=None)
    assert grant.users == 1
    grants.release(grant, 102)
    assert grants.take_finished() == [grant.id]
    assert grants.take_finished() == []
    grants.put_back(103, [grant.id])
    assert grants.take_finished() == [grant.id]


def test_what_is_due_follows_the_clock() -> None:
    grants = Grants(1)
    assert grants.next_due(100) is None
    shared = taken(grants, now=100)
    assert grants.next_due(100) == 100 + IDLE_SECONDS
    grants.retire_idle(100 + IDLE_SECONDS - 0.1)
    assert grants.by_id
    grants.retire_idle(100 + IDLE_SECONDS)
    assert grants.finished == [shared.id]
    assert grants.next_due(106) == 105 + CARRIED_WITHIN_SECONDS
    grants.take_finished()
    own = taken(grants, kind=None, now=200)
    assert grants.next_due(200) == 210
    assert grants.to_extend(209) == []
    assert grants.to_extend(210) == [own]
    own.extended(210)
    assert grants.to_extend(211) == []
    assert grants.next_due(211) == 220
    # Past its end nothing can be done for it: its user finds out at the commit.
    assert grants.to_extend(300) == []
    assert grants.next_due(300) is None


def test_serials_grow_and_are_never_used_twice() -> None:
    grants = Grants(9)
    ids = [grants.next_id() for _ in range(5)]
    assert [(each.client, each.serial) for each in ids] == [(9, serial) for serial in range(1, 6)]


ROW: Kind = (1, (), True)


def test_a_row_goes_on_for_a_moment_after_each_put() -> None:
    grants = Grants(1)
    assert not grants.in_streak(ROW, 100.0)
    grants.continue_streak(ROW, 100.0)
    assert grants.in_streak(ROW, 100.0 + STREAK_SECONDS - 0.1)
    assert not grants.in_streak((2, (), True), 100.1)
    assert not grants.in_streak(ROW, 100.0 + STREAK_SECONDS)
    grants.end_streak(ROW, 100.2)
    assert not grants.in_streak(ROW, 100.3)


def test_more_and_more_is_asked_for_ahead_while_a_row_goes_on() -> None:
    """I17: up to a bound, and only when there is no room."""
    grants = Grants(1)

    def ask(length: int, most: int = 1 << 40) -> int:
        try:
            return grants.prefetch_bytes(ROW, length, most)
        finally:
            grants.asked(ROW)

    assert [ask(4096, 20_000) for _ in range(4)] == [4096, 8192, 16_384, 20_000]
    assert ask(40_000, 20_000) == 40_000, "one object always"
    taken(grants, ROW, length=8192)
    assert grants.reserve(ROW, [4096], 101) is not None
    assert ask(4096) == 0
    assert ask(8192) == 80_000
    grants.prefetch_refused()
    assert ask(8192) == 8192
    assert max(ask(8192) for _ in range(20)) == STREAK_BYTES
    grants.continue_streak(ROW, 200.0)
    assert ask(8192) == 8192, "a new row"


def test_one_commit_at_a_time_asks_ahead() -> None:
    grants = Grants(1)
    assert grants.prefetch_bytes(ROW, 4096, 1 << 30) == 4096
    assert grants.prefetch_bytes(ROW, 4096, 1 << 30) == 0
    grants.asked(ROW)
    assert grants.prefetch_bytes(ROW, 4096, 1 << 30) == 8192


def test_what_is_idle_makes_way_for_what_would_not_fit_into_the_window() -> None:
    grants = Grants(1)
    idle, row = taken(grants, length=4096), taken(grants, ROW, length=8192)
    idle.ranges = row.ranges = (Range(1, 0, 1),)
    assert grants.reserve(ROW, [4096], 101) is not None
    grants.make_way(8192, 16_384, 101)
    assert grants.finished == []
    grants.make_way(8193, 16_384, 101)
    assert grants.finished == [idle.id]
    grants.release(row, 102)
    grants.make_way(16_384, 16_384, 102)
    assert grants.finished == [idle.id, row.id]


def test_what_came_ahead_waits_no_longer_than_a_row_does() -> None:
    """I11"""
    grants = Grants(1)
    grant = taken(grants, ROW, now=100.0)
    assert grants.next_due(100.0) == 100.0 + STREAK_SECONDS
    assert grants.reserve(ROW, [4096], 100.5) == (grant, [0])
    grants.retire_idle(105.0)
    assert grants.finished == [], "it is being written to"
    grants.release(grant, 105.0)
    grants.retire_idle(105.0)
    assert grants.finished == [grant.id]


def test_the_end_of_a_row_gives_its_memory_back() -> None:
    """I11"""
    grants = Grants(1)
    grant = taken(grants, ROW)
    grants.end_streak(ROW, 101.0)
    assert grants.finished == [grant.id]
    assert grants.reserve(ROW, [64], 101.0) is None


def test_all_grants_on_a_dead_node_are_let_go_of() -> None:
    """Those of small puts and those ahead; one in use is given back when its last user has left (I11)."""
    grants = Grants(1)
    small, ahead, own, elsewhere = [taken(grants, kind) for kind in (KIND, (1, (), True), None, (1, ("other",), False))]
    small.ranges = ahead.ranges = (Range(3, 0, 1),)
    own.ranges = (Range(8, 0, 1), Range(3, 0, 1))
    elsewhere.ranges = (Range(8, 0, 1),)
    grants.reserve(KIND, [1], 101)
    grants.retire_on({3}, 102)
    assert grants.reserve(KIND, [1], 103) is None
    assert grants.reserve((1, (), True), [1], 103) is None
    assert grants.finished == [ahead.id]
    grants.release(small, 103)
    grants.done_with(own.id, 103)
    assert grants.finished == [ahead.id, small.id, own.id]
    assert grants.by_id == {elsewhere.id: elsewhere}


def test_under_another_number_the_grants_of_the_one_before_are_forgotten() -> None:
    """A master that gave us this number refuses a request that names a grant of another."""
    grants = Grants(1)
    older = [grants.next_id(), grants.next_id(), grants.next_id()]
    grants.put_back(0.0, older[:1], older[1:2])
    grants.belong_to(1)
    assert grants.finished == older[:1]
    grants.belong_to(2)
    assert (grants.take_finished(), grants.take_torn()) == ([], [])
    # A request that failed only now carried them.
    grants.put_back(0.0, older, older)
    newer = grants.next_id()
    grants.put_back(0.0, [newer])
    assert newer.client == 2
    assert (grants.take_finished(), grants.take_torn()) == ([newer], [])
