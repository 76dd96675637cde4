"""The log on every backend: in order, each batch once, no gap, bounded (I1, I13, I17)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from holdfast.coordination.interface import Compacted, Coordination, Deposed, Landmark, LogBehind, Term
from holdfast.errors import BadValue
from tests.contract.places import Place
from tests.contract.stories import append_all, read_log, soon


def numbered(first: int, last: int) -> list[tuple[int, bytes]]:
    return [(index, f"batch {index}".encode()) for index in range(first, last + 1)]


async def test_batches_come_back_in_order_from_any_index(place: Place) -> None:
    coordination = await place.open()
    term = await soon(coordination.campaign("one:7070"))
    await append_all(term, 1, [batch for _, batch in numbered(1, 30)])
    assert await coordination.last_index() == 30
    for after in (0, 1, 17, 29):
        assert await read_log(coordination, after, 30) == numbered(after + 1, 30)


async def test_a_follower_gets_each_batch_once_while_the_log_grows_and_is_trimmed_behind_it(place: Place) -> None:
    """I13."""
    one, two = await place.open(), await place.open()
    term = await soon(one.campaign("one:7070"))
    got: list[tuple[int, bytes]] = []

    async def follow() -> None:
        async with aclosing(two.follow(0)) as batches:
            async for several in batches:
                got.extend(several)
                await two.trim(several[-1][0] - 3)
                if got[-1][0] == 150:
                    return

    following = asyncio.create_task(follow())
    await append_all(term, 1, [batch for _, batch in numbered(1, 150)])
    await soon(following)
    assert got == numbered(1, 150)
    held = await one.log_bytes()
    assert held <= 4 * len(b"batch 150")


async def test_following_from_before_what_was_trimmed_says_so(place: Place) -> None:
    coordination = await place.open()
    term = await soon(coordination.campaign("one:7070"))
    await append_all(term, 1, [batch for _, batch in numbered(1, 20)])
    await coordination.trim(12)
    with pytest.raises(Compacted) as raised:
        await read_log(coordination, 11, 20)
    assert raised.value.first_index == 13
    assert await read_log(coordination, 12, 20) == numbered(13, 20)


async def test_only_the_log_that_holds_the_landmark_is_trimmed(place: Place) -> None:
    """I19: a primary that comes late must not trim the log that another history has begun in an emptied store."""
    coordination = await place.open()
    term = await soon(coordination.campaign("one:7070"))
    await append_all(term, 1, [batch for _, batch in numbered(1, 20)])
    for landmark in (Landmark(15, b"of another history".__eq__), Landmark(21, b"batch 21".__eq__)):
        assert not await coordination.trim(12, landmark)
    assert await read_log(coordination, 0, 20) == numbered(1, 20)
    assert await coordination.trim(12, Landmark(15, b"batch 15".__eq__))
    assert await read_log(coordination, 12, 20) == numbered(13, 20)
    with pytest.raises(Compacted):
        await read_log(coordination, 11, 20)


async def test_the_last_batch_stays_however_far_the_log_is_trimmed(place: Place) -> None:
    coordination = await place.open()
    term = await soon(coordination.campaign("one:7070"))
    await append_all(term, 1, [batch for _, batch in numbered(1, 700)])
    await coordination.trim(10_000)
    assert await coordination.last_index() == 700
    assert await read_log(coordination, 699, 700) == numbered(700, 700)
    assert await coordination.log_bytes() == len(b"batch 700")
    await append_all(term, 701, [b"batch 701"])
    assert await read_log(coordination, 699, 701) == numbered(700, 701)


async def test_following_a_log_that_lost_its_tail_is_refused(place: Place) -> None:
    coordination = await place.open()
    term = await soon(coordination.campaign("one:7070"))
    await append_all(term, 1, [b"a"])
    with pytest.raises(LogBehind) as raised:
        await read_log(coordination, 5, 6)
    assert raised.value.last_index == 1


async def test_a_follower_of_a_store_that_is_emptied_meanwhile_is_told_and_its_leader_is_deposed(place: Place) -> None:
    """I3, I13, I19: whatever begins there is another history, which neither of them may go on with."""
    one, two = await place.open(), await place.open()
    term = await soon(one.campaign("one:7070"))
    await append_all(term, 1, [b"a", b"b"])
    async with aclosing(two.follow(0)) as batches:
        got: list[tuple[int, bytes]] = []
        while len(got) < 2:
            got += await soon(anext(batches))
        waiting = asyncio.ensure_future(anext(batches))
        await place.wipe()
        with pytest.raises(LogBehind) as raised:
            await soon(waiting)
    assert raised.value.last_index == 0
    with pytest.raises(Deposed):
        await soon(term.append(3, b"c"))
    assert await two.last_index() == 0
    again = await soon(two.campaign("two:7070"))
    await append_all(again, 1, [b"another beginning"])
    assert await read_log(one, 0, 1) == [(1, b"another beginning")]


async def two_batches(place: Place) -> tuple[Coordination, Term]:
    coordination = await place.open()
    term = await soon(coordination.campaign("one:7070"))
    await append_all(term, 1, [b"a", b"b"])
    return coordination, term


async def test_appending_the_same_batch_again_finds_it_and_writes_it_once(place: Place) -> None:
    """I1: what a caller does after `ReplyLost`."""
    coordination, term = await two_batches(place)
    await soon(term.append(2, b"b"))
    await append_all(term, 3, [b"c"])
    assert await read_log(coordination, 0, 3) == [(1, b"a"), (2, b"b"), (3, b"c")]


async def test_a_gap_or_another_batch_under_a_number_is_refused_and_is_no_deposition(place: Place) -> None:
    """I13."""
    coordination, term = await two_batches(place)
    with pytest.raises(BadValue):
        await soon(term.append(4, b"d"))
    with pytest.raises(BadValue):
        await soon(term.append(2, b"not b"))
    await append_all(term, 3, [b"c"])
    assert await read_log(coordination, 0, 3) == [(1, b"a"), (2, b"b"), (3, b"c")]


async def test_batches_that_are_sent_before_the_last_was_answered_are_in_order_and_none_overtakes(place: Place) -> None:
    """I13. One that arrived before the one ahead of it is refused, and appended again."""
    coordination = await place.open()
    term = await soon(coordination.campaign("one:7070"))
    wanted = numbered(1, 60)
    for start in range(0, len(wanted), 3):
        sent = [asyncio.create_task(term.append(*batch)) for batch in wanted[start : start + 3]]
        await soon(asyncio.wait(sent))
        for append, batch in zip(sent, wanted[start : start + 3], strict=True):
            if append.exception() is not None:
                assert isinstance(append.exception(), BadValue)
                assert append is not sent[0]
                await soon(term.append(*batch))
    assert await coordination.last_index() == 60
    assert await read_log(coordination, 0, 60) == wanted
    assert await coordination.log_bytes() == sum(len(batch) for _, batch in wanted)


async def test_a_batch_behind_one_that_another_leader_has_written_is_refused(place: Place) -> None:
    """I13: two on their way when the term was lost."""
    one, two = await place.open(), await place.open()
    old = await soon(one.campaign("one:7070"))
    await append_all(old, 1, [b"a"])
    new = await soon(two.campaign("two:7070", replacing=old.epoch))
    await append_all(new, 2, [b"of the new one"])
    late = [asyncio.create_task(old.append(2, b"b")), asyncio.create_task(old.append(3, b"c"))]
    await soon(asyncio.wait(late))
    assert all(isinstance(append.exception(), Deposed) for append in late)
    await append_all(new, 3, [b"the next"])
    assert await read_log(two, 0, 3) == [(1, b"a"), (2, b"of the new one"), (3, b"the next")]


async def test_the_next_term_goes_on_where_the_last_one_ended(place: Place) -> None:
    one, two = await place.open(), await place.open()
    first = await soon(one.campaign("one:7070"))
    await append_all(first, 1, [b"a", b"b"])
    await first.resign()
    second = await soon(two.campaign("two:7070"))
    assert await two.last_index() == 2
    await append_all(second, 3, [b"c"])
    assert await read_log(one, 0, 3) == [(1, b"a"), (2, b"b"), (3, b"c")]


async def test_a_batch_as_large_as_is_allowed_is_taken_and_a_larger_one_refused_unsent(place: Place) -> None:
    """I17."""
    coordination = await place.open()
    term = await soon(coordination.campaign("one:7070"))
    largest = bytes(range(256)) * (coordination.max_batch_bytes // 256)
    for index in range(1, 8):
        await soon(term.append(index, largest))
    with pytest.raises(BadValue, match="over the limit"):
        await soon(term.append(8, largest + b"!"))
    assert await coordination.last_index() == 7
    assert await read_log(coordination, 0, 7) == [(index, largest) for index in range(1, 8)]
    assert await coordination.log_bytes() == 7 * len(largest)


async def test_an_empty_log_has_no_index_and_no_bytes(place: Place) -> None:
    coordination = await place.open()
    assert await coordination.last_index() == 0
    assert await coordination.log_bytes() == 0
    await coordination.trim(100)
    assert await coordination.last_index() == 0


async def test_a_follower_that_waits_is_told_of_the_next_batch(place: Place) -> None:
    one, two = await place.open(), await place.open()
    term = await soon(one.campaign("one:7070"))
    await append_all(term, 1, [b"a"])
    async with aclosing(two.follow(1)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await append_all(term, 2, [b"b"])
        assert await soon(waiting) == [(2, b"b")]
