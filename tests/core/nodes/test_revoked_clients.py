"""The end of a client by the operator's word: grants, leases, tickets, and the memory of it in every later master."""

from __future__ import annotations

import pytest

from holdfast.core.nodes import node_operations
from holdfast.core.promotion import promote
from holdfast.core.rules import REMEMBERED_REVOKED, Rules
from holdfast.core.state.apply import apply
from holdfast.core.state.apply_restored import begin_history
from holdfast.core.state.state import State
from holdfast.errors import GrantTimedOut, HoldfastError
from holdfast.messages import commands as c
from holdfast.messages import requests as q
from holdfast.messages.records import ClientsRevoked
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import dump, load
from tests.core.world import World

GONE, OTHER = 21, 22


@pytest.fixture
def world() -> World:
    world = World()
    world.node()
    return world


def locate(world: World, *keys: str, client: int) -> None:
    assert world.ask(q.Located, q.Locate(list(keys)), client).lease_ttl_ms > 0


def revoke(world: World, *clients: int) -> None:
    world.engine.revoke(list(clients), world.now)
    world.engine.part_from(clients, world.now)


def told(world: World) -> list[set[int]]:
    """The clients in each command that the node got."""
    world.keep_alive(5)
    bodies = [c.decode_body(c.RevokeClient, body) for _, name, body in world.commands if name == "revoke_client"]
    return [{body.client, *body.others} for body in bodies]


def test_leases_of_a_revoked_client_keep_nobody_from_removing_but_keep_the_memory(world: World) -> None:
    """I2, I9: it may be reading there until its lease would have ended."""
    world.put("one", "two")
    locate(world, "one", "two", client=GONE)
    assert world.remove("one").leased == 1
    revoke(world, GONE)
    assert world.remove("one").removed == 1
    assert world.remove_matching("^two$") == 1
    assert len(world.state.quarantine) > 0
    world.check()
    world.pass_time(world.primary.rules.lease_ttl_ms - 1)
    assert len(world.state.quarantine) > 0
    world.pass_time(2)
    assert not world.state.quarantine
    world.check()


def test_what_another_client_leases_too_stays_leased(world: World) -> None:
    """I8"""
    world.put("one", "two", "three")
    locate(world, "one", "two", client=GONE)
    locate(world, "two", "three", client=OTHER)
    revoke(world, GONE)
    locate(world, "one", client=OTHER)
    assert world.remove("one", "two", "three").leased == 3


def test_what_a_revoked_client_leases_is_not_evicted_under_it(world: World) -> None:
    """I2: the memory would be another object's."""
    world.put("one")
    locate(world, "one", client=GONE)
    revoke(world, GONE)
    for number in range(2_000):
        world.put(f"more{number}")
        world.pass_time(1)
    assert world.has("one", "more0") == [True, False]


def test_grants_of_a_revoked_client_end_into_quarantine(world: World) -> None:
    """I11: nobody else gets the memory while the client may write to it."""
    grant, _ = world.grant(1_000, client=GONE)
    kept, _ = world.grant(1_000, client=OTHER)
    revoke(world, GONE)
    assert list(world.state.grants) == [kept]
    assert world.state.quarantine
    with pytest.raises(GrantTimedOut):
        world.commit(grant, [("late", 0, 1_000)])
    world.check()


def test_what_it_was_granted_until_its_connection_closed_ends_too(world: World) -> None:
    world.engine.revoke([GONE], world.now)
    world.grant(1_000, client=GONE)
    world.engine.part_from([GONE], world.now)
    assert not world.state.grants
    world.check()


def test_every_later_master_knows_a_revoked_client(world: World) -> None:
    """Standbys by the log, new ones by a snapshot."""
    revoke(world, GONE, OTHER)
    loaded = load(b"".join(dump(world.state, Position(1, world.state.index, b""), world.now)), world.now).state
    for state in (world.state, world.primary.twin, loaded):
        assert list(state.revoked) == [GONE, OTHER]
        assert list(promote(state, Rules(), 100, True, world.now).state.revoked) == [GONE, OTHER]
    # Under another secret the same clients have other numbers.
    begin_history(loaded, 99, b"another", 0)
    assert not loaded.revoked


def test_the_oldest_revoked_clients_are_forgotten_beyond_a_bound() -> None:
    """I17"""
    state = State()
    apply(state, ClientsRevoked(list(range(1, REMEMBERED_REVOKED + 1))), 0)
    apply(state, ClientsRevoked([1, REMEMBERED_REVOKED + 1]), 0)
    assert len(state.revoked) == REMEMBERED_REVOKED
    assert 2 not in state.revoked
    assert list(state.revoked)[-2:] == [1, REMEMBERED_REVOKED + 1], "named again, it is the latest"


def test_nodes_are_told_and_again_by_a_primary_that_they_come_back_to(world: World) -> None:
    revoke(world, GONE, OTHER)
    assert told(world) == [{GONE, OTHER}]
    world.offer(5, 5, [1 << 20], log_id=11)
    assert told(world) == [{GONE, OTHER}] * 2


def test_a_command_names_a_bounded_number_of_clients(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_operations, "TOLD_AT_ONCE", 2)
    revoke(world, 31, 32, 33)
    assert told(world) == [{31, 32}, {33}]


def test_a_primary_whose_term_is_over_revokes_nobody(world: World) -> None:
    """I12"""
    world.put("one")
    locate(world, "one", client=GONE)
    world.engine.stop_deciding()
    with pytest.raises(HoldfastError):
        world.engine.revoke([GONE], world.now)
    assert not world.state.revoked
