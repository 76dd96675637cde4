"""The page of who may do what has every request, every route and every socket, as they are declared now."""

from __future__ import annotations

from pathlib import Path

from holdfast.identity.roles import Role
from holdfast.messages.requests import Hello
from holdfast.wire.codec import DATA_REQUESTS, REQUESTS
from tests.access_tables import PROOFS, ROLES, http, page, rpc

PAGE = Path(__file__).parents[1] / "docs" / "access.md"


def test_the_page_is_as_the_tables_are() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.access_tables > docs/access.md"


def test_every_request_and_every_route_has_a_row() -> None:
    assert set(rpc()) == {kind.__name__ for kind in REQUESTS if kind is not Hello}
    assert len(http()) > 10
    for row in PROOFS.values():
        assert set(row) == {kind.__name__ for kind in DATA_REQUESTS}
    for row in ROLES.values():
        assert set(row) == {*Role, "red", "stranger"}
