"""The store names the leader's process, so that others of its machine can prove its end (I12, I3)."""

from __future__ import annotations

import signal

import pytest

from holdfast.coordination.interface import Leader
from holdfast.coordination.terms import Tenure
from holdfast.witness import this_process
from tests.contract.places import Place
from tests.contract.servers import leader_process, term_after
from tests.contract.stories import append_all, read_log, soon, until, until_true
from tests.namespaces import needs_namespaces

STORES = pytest.mark.parametrize("kind", ["etcd", "zookeeper"])


@STORES
async def test_a_killed_leader_of_this_machine_is_known_to_be_gone(place: Place) -> None:
    """Its leadership, of 60 s, is not waited for, and nothing is in doubt afterwards."""
    coordination = await place.open(leader_ttl_ms=60_000)
    with leader_process(place.url()) as process:
        term = await term_after(coordination, process, signal.SIGKILL)
        assert (term.epoch, term.proof, term.previous_address) == (2, "gone", "process:7070")
        assert term.suspects == []
        await append_all(term, 2, [b"after"])
    assert await read_log(coordination, 0, 2) == [(1, b"from the process"), (2, b"after")]


@STORES
@needs_namespaces
async def test_a_killed_leader_of_another_namespace_is_not_known_to_be_gone(place: Place) -> None:
    coordination = await place.open(leader_ttl_ms=1500)
    with leader_process(place.url(), apart=True) as process:
        term = await term_after(coordination, process, signal.SIGKILL)
        assert term.epoch == 2
        # A guess: ZooKeeper dropped it so near the end of its time that it may have been renewed just before (I12).
        assert term.proof in ("silence", "expired", "guess")


@STORES
@needs_namespaces
async def test_a_guess_names_the_process_that_may_still_answer_until_it_is_settled(place: Place) -> None:
    coordination, other = await place.open(), await place.open()
    with leader_process(place.url(), apart=True) as process:
        guessed = await soon(coordination.campaign("here:7070", replacing=1))
        assert guessed.proof == "guess"
        assert [one.machine != this_process().machine for one in guessed.suspects] == [True]
        # The next one cannot prove the end of the first either, and knows whom to ask about.
        again = await soon(other.campaign("there:7070", replacing=2))
        assert again.proof == "guess"
        assert again.suspects == [*guessed.suspects, this_process()]
        again.end_doubt()
        assert isinstance(again, Tenure)
        await until_true(lambda: not again.record.doubtful, "the next renewal, which says that nothing is in doubt")
        process.kill()
    await again.resign()
    assert (await soon(coordination.campaign("here:7070"))).proof == "resigned"


@pytest.mark.parametrize("kind", ["etcd"])
@needs_namespaces
async def test_a_leadership_that_ran_out_before_anybody_looked_is_not_waited_for(place: Place) -> None:
    """A cold start of all masters: the store names no leader, and the last one had stopped before that (I12)."""
    with leader_process(place.url(), apart=True) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        watching = await place.open(leader_ttl_ms=1500)

        async def ran_out() -> bool:
            return await watching.leader() is None

        await until(ran_out, "the lease of the dead leader runs out")
    late = await place.open(leader_ttl_ms=60_000)
    term = await soon(late.campaign("late:7070"))
    assert (term.epoch, term.proof) == (2, "expired")
    assert await late.leader() == Leader(2, "late:7070")
