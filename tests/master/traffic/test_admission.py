"""Places for connections: bounds for all, an address and an identity; the cluster itself gets in all the same."""

from __future__ import annotations

import pytest

from holdfast.errors import TryAgain
from holdfast.identity.identities import EVERYBODY, Identity
from holdfast.identity.roles import Role, with_included
from holdfast.master.traffic.admission import SPARE_DESCRIPTORS, Admission, Caps
from holdfast.messages.of_nodes import RegisterNode
from holdfast.messages.of_sessions import OpenSession
from holdfast.messages.requests import ChangeSettings, Exists, GetStatus

CAPS = Caps(total=80)
"""Ten places are reserved, and twenty connections may be silent."""
CLIENT = Identity("app", with_included([Role.WRITER]))
NODE = Identity("a node", with_included([Role.NODE]))
OPERATOR = Identity("op", with_included([Role.OPERATOR]))


def full(caps: Caps = CAPS, identity: Identity = EVERYBODY, several: bool = False) -> Admission[str]:
    """Clients have all places that they may have, from many addresses."""
    admission: Admission[str] = Admission(caps)
    for number in range(caps.of_clients):
        admission.arrive(f"client {number}", f"10.0.0.{number}")
        named = Identity(f"app {number}", identity.roles) if several else identity
        assert admission.greet(f"client {number}", named, several)
    assert admission.clients == caps.of_clients
    return admission


def test_half_open_connections_are_displaced_oldest_first_and_keep_nobody_out() -> None:
    admission: Admission[str] = Admission(CAPS)
    displaced = [admission.arrive(f"silent {number}", f"10.0.0.{number}") for number in range(CAPS.ungreeted + 1_000)]
    assert displaced[: CAPS.ungreeted] == [None] * CAPS.ungreeted
    assert displaced[CAPS.ungreeted :] == [f"silent {number}" for number in range(1_000)]
    assert admission.arrive("good", "10.0.1.1") is not None
    assert admission.greet("good", EVERYBODY, False)
    assert admission.refused["ungreeted"] == 1_001


def test_one_address_cannot_have_all_places() -> None:
    admission: Admission[str] = Admission(Caps(total=80, of_address=5))
    for number in range(8):
        admission.arrive(str(number), "10.0.0.1")
    assert [admission.greet(str(number), CLIENT, False) for number in range(5)] == [True] * 5
    with pytest.raises(TryAgain, match=r"5 connections from 10\.0\.0\.1"):
        admission.greet("5", CLIENT, False)
    assert not admission.greet("5", EVERYBODY, False), "it may be a node: it is let in on trial"
    assert admission.greet("6", NODE, True)
    admission.arrive("elsewhere", "10.0.0.2")
    assert admission.greet("elsewhere", CLIENT, False)
    admission.leave("1")
    assert admission.greet("7", CLIENT, False)


def test_a_silent_connection_gives_its_place_to_the_next_where_all_are_taken() -> None:
    admission = full()
    for number in range(CAPS.reserved):
        assert admission.arrive(f"silent {number}", "10.0.1.1") is None
    assert admission.arrive("a node", "10.0.1.2") == "silent 0"


def test_one_identity_cannot_have_all_places_where_there_are_several() -> None:
    admission: Admission[str] = Admission(Caps(total=80, of_identity=2))
    for number in range(3):
        admission.arrive(str(number), "10.0.0.1")
    assert admission.greet("0", CLIENT, True)
    assert admission.greet("1", CLIENT, True)
    with pytest.raises(TryAgain, match="2 connections of 'app'"):
        admission.greet("2", CLIENT, True)
    assert admission.greet("2", Identity("other", CLIENT.roles), True)
    admission.leave("0")
    admission.arrive("3", "10.0.0.1")
    assert admission.greet("3", CLIENT, True)


def test_nodes_and_operators_get_in_where_clients_have_all_their_places() -> None:
    admission = full(several=True, identity=CLIENT)
    for peer, identity in (("a node", NODE), ("an operator", OPERATOR)):
        admission.arrive(peer, "10.0.1.1")
        assert admission.greet(peer, identity, True)
    admission.arrive("a client", "10.0.1.1")
    with pytest.raises(TryAgain, match="70 connections of clients"):
        admission.greet("a client", CLIENT, True)


@pytest.mark.parametrize(
    "proof",
    [OpenSession(1, "n"), RegisterNode(1, 1, 0, "h", "h:1", "", []), ChangeSettings()],
    ids=["session", "node", "op"],
)
def test_where_everybody_has_all_roles_a_newcomer_shows_by_its_requests_what_it_is(proof: OpenSession) -> None:
    admission = full()
    admission.arrive("new", "10.0.1.1")
    assert not admission.greet("new", EVERYBODY, False)
    assert not admission.is_proven("new", GetStatus())
    with pytest.raises(TryAgain, match="as many connections of clients"):
        admission.is_proven("new", Exists(["k"]))
    assert admission.is_proven("new", proof)
    for number in range(CAPS.reserved - 1):
        admission.arrive(str(number), "10.0.1.2")
        assert admission.greet(str(number), NODE, True)
    with pytest.raises(TryAgain, match="80 connections are open"):
        admission.arrive("one more", "10.0.1.3")


def test_places_are_free_again_when_connections_end() -> None:
    admission = full()
    admission.leave("client 3")
    admission.leave("client 3")
    admission.arrive("new", "10.0.1.1")
    assert admission.greet("new", EVERYBODY, False)


@pytest.mark.parametrize("descriptors", [16, 256, 1_024, 20_000, 1 << 20])
def test_there_are_descriptors_left_for_everything_else(descriptors: int) -> None:
    caps = Caps().within(descriptors)
    assert caps.total <= descriptors - min(SPARE_DESCRIPTORS, descriptors // 4)
    assert 0 < caps.of_clients <= caps.total
    assert caps.ungreeted > 0
