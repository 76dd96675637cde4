"""Bugs about puts into the memory of nodes that are dead or away, planted on purpose."""

from __future__ import annotations

from unittest.mock import patch

from holdfast.core.primary.primary import Primary
from holdfast.simulation.world.node_bytes import SimulatedLink
from tests.simulation.planted import Patch, Planted


def commit_without_a_look_at_the_life_line() -> Patch:
    """A writer on a dead node's machine goes on filling the grant that it holds there."""
    return patch.object(SimulatedLink, "ended", lambda self: False)


def accept_puts_on_a_node_whose_connection_has_ended() -> Patch:
    return patch.object(Primary, "seen_gone", lambda self, ranges: "")


PLANTED_IN_PUTS = (
    Planted("commit without a look at the life line", commit_without_a_look_at_the_life_line, ("live put",), 60),
    Planted(
        "accept puts on a node whose connection has ended",
        accept_puts_on_a_node_whose_connection_has_ended,
        ("live put",),
        60,
    ),
)
