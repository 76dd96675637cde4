"""After a takeover by a guess: which word of which node ends the doubt, and what it frees (I2, I8, I12)."""

from __future__ import annotations

import pytest

from holdfast.core.nodes.testimony import seen_gone
from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.errors import Settling, UnknownNode
from holdfast.ids import ProcessName
from holdfast.master.engine.engine import Engine
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from tests.core.world import World

LEADER_TTL_MS = 5_000
LEASE_TTL_MS = 10_000
FIRST = ProcessName(100, 12_345, "machine one")
SECOND = ProcessName(200, 23_456, "machine two")


class Successor(World):
    """A world whose primary has just taken over by a guess; its nodes, of boot 5 and 6, have registered again."""

    def __init__(self, *suspects: ProcessName) -> None:
        super().__init__(lease_ttl_ms=LEASE_TTL_MS)
        self.node("a")
        self.node("b", connection=101, boot=6)
        self.put("k", "left")
        rules = Rules(lease_ttl_ms=LEASE_TTL_MS)
        self.primary = promote(self.state, rules, LEADER_TTL_MS, False, self.now, suspects)  # type: ignore[assignment]
        self.promoted_at = self.now
        self.witnesses: list[str] = []
        self.primary.doubt.when_over = self.witnesses.append
        self.engine = Engine(self.primary)
        self.registered = [self.offer(boot, boot, [1 << 20], self.state.log_id) for boot in (5, 6)]

    def testify(self, *gone: ProcessName, machine: str, boot: int = 5, session: int = 0) -> int:
        return self.ask(q.Done, n.ReportGone(session or boot, boot, machine, list(gone))).count

    def slot(self, key: str) -> int:
        return int(self.state.catalogue.by_key.slots_of([key])[0])

    def lease_left_ms(self, key: str) -> int:
        left_ms = int(self.state.catalogue.lease_until[self.slot(key)]) - self.now
        assert self.remove(key).removed == 0, "without force it stays while it is leased"
        return left_ms


def test_nodes_learn_whom_the_primary_suspects_and_for_how_long() -> None:
    successor = Successor(FIRST)
    assert [told.suspects for told in successor.registered] == [[FIRST], [FIRST]]
    assert all(LEADER_TTL_MS <= told.doubt_ms <= LEADER_TTL_MS * 1.02 for told in successor.registered)


def test_the_word_of_a_node_of_the_same_machine_ends_the_doubt() -> None:
    successor = Successor(FIRST)
    with pytest.raises(Settling):
        successor.remove("k", force=True)
    assert successor.testify(FIRST, machine=FIRST.machine) == 1
    assert successor.witnesses == ["a"]
    assert successor.remove("k", force=True).removed == 1
    assert successor.testify(FIRST, machine=FIRST.machine) == 0, "said again, it does nothing"
    assert successor.witnesses == ["a"]


def test_the_word_of_a_node_of_another_machine_is_not_taken() -> None:
    """It cannot see that process: it may live."""
    successor = Successor(FIRST)
    assert successor.testify(FIRST, machine=SECOND.machine) == 0
    with pytest.raises(Settling):
        successor.remove("k", force=True)


def test_the_word_about_a_process_that_is_not_suspected_is_of_no_use() -> None:
    successor = Successor(FIRST)
    for other in (FIRST._replace(pid=101), FIRST._replace(started=12_346)):
        assert successor.testify(other, machine=FIRST.machine) == 0
    with pytest.raises(Settling):
        successor.remove("k", force=True)


def test_only_a_node_whose_memory_is_mounted_is_believed() -> None:
    successor = Successor(FIRST)
    with pytest.raises(UnknownNode):
        successor.testify(FIRST, machine=FIRST.machine, boot=7, session=5)
    with pytest.raises(Settling):
        successor.remove("k", force=True)


def test_all_suspects_must_be_gone() -> None:
    successor = Successor(FIRST, SECOND)
    assert successor.testify(FIRST, machine=FIRST.machine) == 1
    with pytest.raises(Settling):
        successor.remove("k", force=True)
    assert successor.testify(SECOND, machine=SECOND.machine, boot=6) == 1
    assert successor.witnesses == ["b"]
    assert successor.remove("k", force=True).removed == 1


def test_an_earlier_primary_without_a_name_is_waited_for() -> None:
    successor = Successor()
    assert all((told.suspects, told.doubt_ms) == ([], 0) for told in successor.registered)
    assert successor.testify(FIRST, machine=FIRST.machine) == 0
    with pytest.raises(Settling):
        successor.remove("k", force=True)
    successor.now += LEADER_TTL_MS + LEADER_TTL_MS // 50
    assert successor.remove("k", force=True).removed == 1


def test_a_lease_of_the_dead_primary_is_honoured_and_not_longer() -> None:
    """I8: it may have given one in its last moment, and a moment before the word came this one may have too."""
    successor = Successor(FIRST)
    successor.now += 700
    successor.testify(FIRST, machine=FIRST.machine)
    assert successor.lease_left_ms("k") == LEASE_TTL_MS
    successor.now += LEASE_TTL_MS - 1
    assert successor.lease_left_ms("k") == 1
    successor.now += 1
    assert successor.remove("k").removed == 1


def test_without_the_word_leases_count_from_when_the_old_primary_must_have_stopped() -> None:
    successor = Successor(FIRST)
    successor.now += LEADER_TTL_MS + LEADER_TTL_MS // 50
    assert successor.lease_left_ms("k") == LEASE_TTL_MS + LEADER_TTL_MS - (successor.now - successor.promoted_at)


def test_a_lease_that_is_known_to_last_longer_is_kept() -> None:
    successor = Successor(FIRST)
    known_until = successor.now + LEASE_TTL_MS + LEADER_TTL_MS + 77
    successor.state.catalogue.lease_until[successor.slot("k")] = known_until
    successor.testify(FIRST, machine=FIRST.machine)
    assert successor.lease_left_ms("k") == known_until - successor.now
    assert successor.lease_left_ms("left") == LEASE_TTL_MS


def test_memory_in_quarantine_is_held_for_the_shorter_guard_too() -> None:
    """I2: readers may hold leases of the dead primary on what was removed before."""
    before = Successor(FIRST)
    before.testify(FIRST, machine=FIRST.machine)
    before.locate("k")
    before.remove("k", force=True)
    again = promote(before.state, Rules(lease_ttl_ms=LEASE_TTL_MS), LEADER_TTL_MS, False, before.now, [SECOND])
    [guarded] = again.release_at.values()
    assert guarded == before.now + LEASE_TTL_MS + LEADER_TTL_MS
    seen_gone(again, [SECOND], "a", before.now + 300)
    [guarded] = again.release_at.values()
    assert guarded == before.now + 300 + LEASE_TTL_MS
