"""Which role includes which."""

from __future__ import annotations

import pytest

from holdfast.identity.roles import ALL_ROLES, INCLUDED, Role, with_included


def test_every_role_says_what_it_includes_and_includes_itself() -> None:
    assert set(INCLUDED) == ALL_ROLES
    assert all(role in included for role, included in INCLUDED.items())


@pytest.mark.parametrize(
    ("given", "has"),
    [
        (["reader"], {"reader"}),
        (["writer"], {"reader", "writer"}),
        (["operator"], {"reader", "writer", "operator"}),
        (["node"], {"node"}),
        (["master"], {"master"}),
        (["node", "writer"], {"node", "writer", "reader"}),
        ([], set()),
    ],
)
def test_roles_with_what_they_include(given: list[str], has: set[str]) -> None:
    assert with_included(Role(one) for one in given) == {Role(one) for one in has}
