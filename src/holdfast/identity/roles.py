"""The five roles. A request declares the role that it needs; an identity has one or more.

A writer may read, and an operator may read and write. `node` and `master` include nothing and are included by nothing:
a stolen token of a client cannot pose as a node, and that of a node cannot fetch the catalogue.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Role(enum.StrEnum):
    READER = "reader"
    """Looks up, lists and reads objects; asks for status."""
    WRITER = "writer"
    """Puts objects and removes them."""
    NODE = "node"
    """Lends memory and disks: the nodes' own requests, and those of their workers."""
    MASTER = "master"
    """Fetches snapshots and sends what standbys must know."""
    OPERATOR = "operator"
    """Changes the cluster: hand-overs, settings, drains, sizes, restores, what others stored."""


INCLUDED: dict[Role, frozenset[Role]] = {
    Role.READER: frozenset({Role.READER}),
    Role.WRITER: frozenset({Role.WRITER, Role.READER}),
    Role.NODE: frozenset({Role.NODE}),
    Role.MASTER: frozenset({Role.MASTER}),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.WRITER, Role.READER}),
}
"""Role -> all roles that come with it, itself among them."""

ALL_ROLES: frozenset[Role] = frozenset(Role)


def with_included(roles: Iterable[Role]) -> frozenset[Role]:
    return frozenset().union(*(INCLUDED[role] for role in roles))
