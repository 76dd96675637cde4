"""Tickets that a primary gives: for the places that it located, in its generation, for whom it did (ADR 48)."""

from __future__ import annotations

from holdfast.core.primary.tickets import ROLL_MS
from holdfast.ids import MOST_TICKET_RANGES
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.rows import LocatedRow, TicketRow
from holdfast.messages.shapes import MappingRight
from holdfast.node.memory.proofs import TicketBook
from holdfast.wire.mac import node_key
from tests.core.world import World


def located(world: World, *keys: str, client: int = 7) -> q.Located:
    return world.ask(q.Located, q.Locate(list(keys), tickets=True), client=client)


def book_of(world: World, node: str) -> TicketBook:
    """A node's, as its registration leaves it."""
    book = TicketBook()
    state = world.primary.state
    book.trust(node_key(state.secret, node), world.primary.ticket_terms(world.now), world.now)
    return book


def test_every_located_place_has_a_ticket_that_its_node_takes() -> None:
    world = World()
    world.node("n1")
    keys = [f"k{number}" for number in range(MOST_TICKET_RANGES + 6)]
    world.put(*keys, size=100)
    found = located(world, *keys, "absent")
    places = {(row[1], row[2], row[3]) for row in LocatedRow.iter_unpack(found.rows) if row[0]}
    assert len(places) == len(keys)
    assert [TicketRow.count(ticket.ranges) for ticket in found.tickets] == [MOST_TICKET_RANGES, 6]
    given = {(ticket.segment, *place) for ticket in found.tickets for place in TicketRow.iter_unpack(ticket.ranges)}
    assert given == places
    for ticket in found.tickets:
        name = world.primary.state.segments[ticket.segment].name
        assert book_of(world, name.node).pieces(n.ReadRanges(name, ticket), world.now)
        assert ticket.client == 7
    [single] = located(world, "k3").tickets
    assert TicketRow.count(single.ranges) == 1
    assert world.ask(q.Located, q.Locate(["k3"])).tickets == [], "who maps the memory needs none"
    assert located(world, "absent").tickets == []


def test_generations_follow_the_clock_of_the_primary_and_grow_with_its_epoch() -> None:
    """I16: told as durations."""
    world = World()
    tickets = world.primary.tickets
    tickets.began_at = 1_000
    first = tickets.terms(10_000, 1_000)
    assert tickets.generation(1_000 + ROLL_MS - 1) == first.generation
    assert tickets.generation(1_000 + ROLL_MS) == first.generation + 1
    late = tickets.terms(10_000, 1_000 + ROLL_MS - 1)
    assert first.good_ms >= ROLL_MS + 10_000 > late.good_ms >= 10_001
    world.primary.state.epoch += 1
    assert tickets.generation(1_000) > first.generation + 1_000_000


def test_who_may_not_map_is_given_no_ticket_for_it() -> None:
    """I20."""
    world = World()
    world.node("n1")
    for right, write in ((MappingRight.NONE, None), (MappingRight.READ, False), (MappingRight.WRITE, True)):
        [place] = world.ask(q.SegmentList, q.ListSegments(right)).segments
        assert (place.attach and place.attach.write) == write
        if place.attach is not None:
            book_of(world, "n1").check_attach(place.name, place.attach, place.attach.write, world.now)
