"""What waits for durability, and in which order it is let go."""

from __future__ import annotations

from holdfast.messages.records import EpochStarted, RangesFreed
from holdfast.replication.batches import HEAD_BYTES, Position, decode_batch
from holdfast.replication.log_writer import PendingLog


def test_records_gather_into_one_batch_and_all_that_waited_goes_on_together() -> None:
    log = PendingLog(Position())
    done: list[int] = []
    for i in range(1, 6):
        index = log.add(EpochStarted(i), [f"k{i}"])
        assert index == i
        log.when_durable(index, lambda i=i: done.append(i))
    cut = log.cut(1 << 20)
    assert cut is not None
    batch, position = cut
    assert log.cut(1 << 20) is None
    log.add(EpochStarted(9), ["late"])
    assert done == []
    log.is_durable(position, batch)
    assert done == [1, 2, 3, 4, 5]
    assert log.durable == 5
    assert log.needed_for(["k1", "k5"]) == 0
    assert log.needed_for(["late", "k1"]) == 6
    assert [record.epoch for record in decode_batch(Position(), 1, batch)[0]] == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]


def test_a_batch_is_capped_by_bytes_and_nothing_is_left_out() -> None:
    log = PendingLog(Position())
    for _ in range(10):
        log.add(RangesFreed(list(range(10_000, 10_100))), [])
    seen = 0
    after = Position()
    while (cut := log.cut(1_000)) is not None:
        batch, position = cut
        assert len(batch) <= 1_000
        records, after = decode_batch(after, position.batch, batch)
        seen += len(records)
        log.is_durable(position, batch)
    assert seen == 10
    assert log.bytes == 0
    assert log.durable == log.index == 10


def test_one_record_over_the_cap_still_goes() -> None:
    log = PendingLog(Position())
    log.add(RangesFreed(list(range(10_000, 11_000))), [])
    cut = log.cut(HEAD_BYTES + 1)
    assert cut is not None


def test_a_key_waits_for_the_latest_of_its_records() -> None:
    log = PendingLog(Position())
    log.add(EpochStarted(1), ["k"])
    first = log.cut(1 << 20)
    log.add(EpochStarted(2), ["k"])
    assert log.needed_for(["k"]) == 2
    assert first is not None
    log.is_durable(first[1], first[0])
    assert log.needed_for(["k"]) == 2, "the first record's end must not hide the second"
    assert log.needed_for(["other"]) == 0
