"""Leadership on every backend: one at a time, an epoch that only grows, and a fence that holds (I3, I12, I15)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from holdfast.coordination.interface import Deposed, Leader
from holdfast.coordination.terms import Tenure
from holdfast.instant import now_seconds
from tests.contract.places import Place
from tests.contract.stories import append_all, has_passed, is_valid, next_of, read_log, soon, until


async def test_the_first_campaign_wins_at_once_and_may_answer(place: Place) -> None:
    coordination = await place.open()
    term = await soon(coordination.campaign("one:7070"))
    assert (term.epoch, term.proof, term.previous_address) == (1, "first", "")
    assert now_seconds() < term.valid_until < now_seconds() + 5.0
    assert await coordination.leader() == Leader(1, "one:7070")


async def test_validity_is_extended_while_the_term_lasts(place: Place) -> None:
    """I12: the deadline moves only with a renewal, and it does move."""
    coordination = await place.open(leader_ttl_ms=1000)
    term = await soon(coordination.campaign("one:7070"))
    at_first = term.valid_until

    async def extended() -> bool:
        return term.valid_until > at_first + 1.0

    await until(extended, "two renewals")


async def test_a_second_campaign_waits_until_the_first_resigns(place: Place) -> None:
    one, two = await place.open(), await place.open()
    term = await soon(one.campaign("one:7070"))
    waiting = asyncio.create_task(two.campaign("two:7070"))
    await append_all(term, 1, [b"first", b"second"])
    assert not waiting.done()
    await soon(term.resign())
    assert await soon(term.ended()) == "resigned"
    assert await has_passed(term)
    after = await soon(waiting)
    assert (after.epoch, after.proof, after.previous_address) == (2, "resigned", "one:7070")
    assert await two.leader() == Leader(2, "two:7070")


async def test_the_epoch_grows_with_every_term_and_outlasts_every_process(place: Place) -> None:
    """I6: ids are made from epochs, so none may ever come twice."""
    for epoch in range(1, 5):
        coordination = await place.open()
        term = await soon(coordination.campaign(f"{epoch}:7070"))
        assert term.epoch == epoch
        await coordination.close()


async def test_a_deposed_term_writes_nothing(place: Place) -> None:
    """I3."""
    one, two = await place.open(), await place.open()
    old = await soon(one.campaign("one:7070"))
    await append_all(old, 1, [b"a", b"b"])
    new = await soon(two.campaign("two:7070", replacing=old.epoch))
    assert (new.epoch, new.proof, new.previous_address) == (old.epoch + 1, "guess", "one:7070")
    # The backend itself refuses, whatever this process has heard by now.
    assert isinstance(old, Tenure)
    with pytest.raises(Deposed):
        await soon(old._append(3, b"too late"))
    assert await two.last_index() == 2
    with pytest.raises(Deposed):
        await soon(old.append(3, b"too late"))
    await append_all(new, 3, [b"c"])
    with pytest.raises(Deposed):
        await soon(old.append(4, b"too late again"))
    # Not even the same bytes, which another term has written.
    with pytest.raises(Deposed):
        await soon(old.append(3, b"c"))
    assert await read_log(two, 0, 3) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert await two.last_index() == 3


async def test_a_deposed_term_learns_of_it_and_is_no_longer_valid(place: Place) -> None:
    """I12."""
    one, two = await place.open(), await place.open()
    old = await soon(one.campaign("one:7070"))
    new = await soon(two.campaign("two:7070", replacing=old.epoch))
    assert await soon(old.ended())
    assert await has_passed(old)
    assert await is_valid(new)
    assert await two.leader() == Leader(2, "two:7070")


async def test_what_a_deposed_term_had_written_is_still_found_to_be_written(place: Place) -> None:
    """I1: the answer to an append was lost, then the term ended; the batch is in the log all the same."""
    one, two = await place.open(), await place.open()
    old = await soon(one.campaign("one:7070"))
    await append_all(old, 1, [b"a"])
    await soon(two.campaign("two:7070", replacing=old.epoch))
    await soon(old.append(1, b"a"))


async def test_replacing_a_term_that_no_longer_leads_is_a_campaign_as_usual(place: Place) -> None:
    one, two, three = await place.open(), await place.open(), await place.open()
    first = await soon(one.campaign("one:7070"))
    second = await soon(two.campaign("two:7070", replacing=first.epoch))
    waiting = asyncio.create_task(three.campaign("three:7070", replacing=first.epoch))
    await append_all(second, 1, [b"still here"])
    assert not waiting.done()
    await second.resign()
    third = await soon(waiting)
    assert third.epoch == 3
    # The first may still be answering, whatever the second said of itself.
    assert third.proof == "guess"


async def test_a_guess_is_forgotten_once_it_can_no_longer_be_wrong(place: Place) -> None:
    one, two = await place.open(leader_ttl_ms=600), await place.open(leader_ttl_ms=600)
    first = await soon(one.campaign("one:7070"))
    second = await soon(two.campaign("two:7070", replacing=first.epoch))
    begun = second.valid_until

    async def settled() -> bool:
        return second.valid_until > begun + 1.2

    await until(settled, "renewals past the first term's deadline")
    await second.resign()
    third = await soon(one.campaign("one:7070"))
    assert third.proof == "resigned"


async def test_cancelling_a_waiting_campaign_leaves_nothing_behind(place: Place) -> None:
    one, two, three = await place.open(), await place.open(), await place.open()
    term = await soon(one.campaign("one:7070"))
    waiting = asyncio.create_task(two.campaign("two:7070"))
    await append_all(term, 1, [b"a"])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(waiting)
    await term.resign()
    after = await soon(three.campaign("three:7070"))
    assert (after.epoch, after.proof) == (2, "resigned")


async def test_cancelling_a_campaign_while_it_wins_gives_the_term_back(place: Place) -> None:
    one, two = await place.open(), await place.open()
    for turn in range(6):
        winning = asyncio.create_task(one.campaign("one:7070"))
        for _ in range(turn * 3):
            await asyncio.sleep(0)
        winning.cancel()
        (won,) = await asyncio.gather(winning, return_exceptions=True)
        if not isinstance(won, BaseException):
            await won.resign()  # It was won before it was cancelled.
    after = await soon(two.campaign("two:7070"))
    assert after.proof in ("first", "resigned")


async def test_watching_tells_the_leader_at_once_and_then_each_change(place: Place) -> None:
    one, two, third = await place.open(), await place.open(), await place.open()
    async with aclosing(third.watch_leader()) as leaders:
        assert await next_of(leaders) is None
        term = await soon(one.campaign("one:7070"))
        assert await next_of(leaders) == Leader(1, "one:7070")
        await term.resign()
        assert await next_of(leaders) is None
        second = await soon(two.campaign("two:7070"))
        assert await next_of(leaders) == Leader(2, "two:7070")
        await soon(one.campaign("one:7070", replacing=second.epoch))
        async with asyncio.timeout(20):
            # The moment between the two may be seen or not; the latest always is.
            async for leader in leaders:
                if leader == Leader(3, "one:7070"):
                    break


async def test_two_clusters_in_one_place_do_not_see_each_other(place: Place) -> None:
    one, other = await place.open(), await place.open(f"{place.cluster}-other")
    term = await soon(one.campaign("one:7070"))
    another = await soon(other.campaign("other:7070"))
    assert (term.epoch, another.epoch) == (1, 1)
    await append_all(term, 1, [b"mine"])
    await append_all(another, 1, [b"other", b"other still"])
    await one.publish("name", b"mine", None)
    assert await other.read("name") is None
    assert await read_log(one, 0, 1) == [(1, b"mine")]
    assert await read_log(other, 0, 2) == [(1, b"other"), (2, b"other still")]


async def test_a_term_in_an_emptied_store_has_a_larger_epoch_than_whoever_wins_it_knows_of(place: Place) -> None:
    """I6: a restored history goes on with the ids of the older one, which the store has forgotten."""
    coordination = await place.open()
    coordination.epoch_floor = 41
    term = await soon(coordination.campaign("one:7070"))
    assert term.epoch == 42
    await soon(term.resign())
    coordination.epoch_floor = 7
    assert (await soon(coordination.campaign("one:7070"))).epoch == 43
