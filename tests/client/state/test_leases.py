"""Places kept under a lease, and segments as the master tells of them."""

from __future__ import annotations

from holdfast.client.state.leases import Leases, ReadLease, lease_until
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
