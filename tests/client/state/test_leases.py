"""Places kept under a lease, and segments as the master tells of them."""

from __future__ import annotations

from holdfast.client.state.leases import LeaseColumns, Leases, ReadLease, lease_until
from holdfast.client.state.segments import Segments
from holdfast.ids import SegmentName
from holdfast.messages.requests import SegmentList
from holdfast.messages.shapes import SegmentPlace


def lease(until: float) -> ReadLease:
    return ReadLease(until, 1, 0, 10, 0, 1, (), 7)


def test_a_lease_counts_from_before_the_request_and_is_shortened() -> None:
    """I2, I16."""
    assert lease_until(100.0, 10_000) == 109.8


def test_a_lease_is_live_until_its_end_and_not_at_it() -> None:
    """I2."""
    leases = Leases()
    leases.keep({"key": lease(50.0)})
    assert leases.live("key", 49.9) == lease(50.0)
    assert leases.live("key", 50.0) is None
    assert leases.live("other", 0.0) is None


def test_dropped_leases_are_gone() -> None:
    leases = Leases()
    leases.keep({str(number): lease(50.0) for number in range(4)})
    leases.drop("0")
    leases.drop("absent")
    leases.drop_many(["1", "2"])
    assert list(leases.by_key) == ["3"]
    leases.clear()
    assert not leases.by_key


def test_the_oldest_leases_are_forgotten_first_and_their_number_is_bounded() -> None:
    """I17."""
    leases = Leases(limit=100)
    for number in range(1_000):
        leases.keep({f"{number}-{each}": lease(50.0) for each in range(3)})
        assert len(leases.by_key) <= 100
    assert "999-2" in leases.by_key
    assert "0-0" not in leases.by_key


def columns(*numbers: int, until: float = 50.0) -> LeaseColumns:
    """Of keys and objects with these numbers."""
    rows = [(number, 1, 64 * number, 10, 0) for number in numbers]
    return LeaseColumns([str(number) for number in numbers], until, [*zip(*rows, strict=True)], history=7)


def test_leases_that_came_as_columns_are_kept_and_dropped_one_by_one() -> None:
    """I2."""
    leases = Leases()
    leases.keep_columns(columns(3, 4, 5))
    assert leases.live("4", 49.9) == ReadLease(50.0, 1, 256, 266, 0, 4, (), 7)
    assert leases.live("4", 50.0) is None
    assert leases.are_live(["3", "other", "5"], 49.9) == [True, False, True]
    assert not any(leases.are_live(["3", "5"], 50.0))
    leases.drop("4")
    assert leases.row("4") is None
    assert leases.rows(["3", "4"]) == [(50.0, 1, 192, 202, 0, 3, (), 7, ()), None]


def test_objects_that_leave_take_their_leases_along_and_no_others() -> None:
    leases = Leases()
    leases.keep_columns(columns(1, 2, 3))
    leases.keep_columns(columns(3, 4))
    leases.keep({"one": lease(50.0), "two": lease(50.0)._replace(id=9)})
    leases.revoke({1, 3, 77})
    assert sorted(leases.by_key) == ["2", "4", "two"]


def test_a_key_of_a_reply_does_not_hold_the_memory_of_all_others() -> None:
    """Each reply is about one new key and many that all replies are about."""
    leases = Leases(limit=1_000)
    for number in range(2_000):
        leases.keep_columns(columns(1_000_000 + number, *range(100)))
        assert len(leases.by_key) <= 1_000
        assert sum(len(each.keys) for each in set(leases.by_key.values()) if isinstance(each, LeaseColumns)) <= 2_200
    assert leases.live("99", 0.0) is not None


def place(handle: int) -> SegmentPlace:
    return SegmentPlace(handle, SegmentName("n", 1, handle), 4096, "h:1", "/s", "host")


def test_segments_are_stale_when_a_reply_carries_another_number() -> None:
    segments = Segments()
    assert segments.stale
    assert segments.update(SegmentList(3, [place(1), place(2)]), 0.0) == set()
    assert not segments.stale
    segments.seen = 4
    assert segments.stale
    assert segments.update(SegmentList(4, [place(2), place(3)]), 0.0) == {1}
    assert not segments.stale
    assert sorted(segments.places) == [2, 3]
    segments.clear()
    assert segments.stale


def test_a_lease_from_before_a_segment_was_verified_is_doubted_until_it_ends() -> None:
    """I2: the object may have been dropped by the verification, because its bytes are others."""
    segments = Segments()
    unverified = SegmentPlace(1, SegmentName("n", 1, 1), 4096, "h:1", "/s", "host", unverified=True)
    segments.update(SegmentList(1, [unverified, place(2)]), 100.0)
    assert segments.doubts(1, 109.0)
    assert not segments.doubts(2, 109.0)
    segments.update(SegmentList(2, [place(1), place(2)], doubtful_ms=10_000), 105.0)
    assert segments.doubts(1, 109.0), "given before the client knew that all was compared"
    assert not segments.doubts(1, 115.1), "no lease from before lives that long"
    segments.clear()
    assert not segments.doubts(1, 1.0)
