"""A refused grant stays refused, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import GrantId
from holdfast.node.memory.proofs import RefusedGrants

grants = st.builds(GrantId, st.integers(1, 5), st.integers(0, 40))


@given(st.lists(grants), st.integers(1, 8), st.integers(1, 5))
def test_what_was_refused_once_is_refused_for_ever_in_bounded_memory(
    added: list[GrantId], newest_kept: int, clients_kept: int
) -> None:
    """I11, I17."""
    refused = RefusedGrants(newest_kept, clients_kept)
    for index, grant in enumerate(added):
        refused.add(grant)
        assert all(earlier in refused for earlier in added[: index + 1])
        assert len(refused) <= newest_kept + clients_kept


@given(st.lists(grants, max_size=20), grants)
def test_while_there_is_room_nothing_else_is_refused(added: list[GrantId], other: GrantId) -> None:
    refused = RefusedGrants(newest_kept=20)
    for grant in added:
        refused.add(grant)
    assert (other in refused) == (other in added)


def test_a_client_that_fell_out_still_gets_newer_grants_through() -> None:
    refused = RefusedGrants(newest_kept=4)
    for serial in range(1, 8):
        refused.add(GrantId(1, serial))
    assert GrantId(1, 8) not in refused
    assert GrantId(2, 1) not in refused
    assert not refused.full
