"""Resizing has a maximum of the node's own, which the primary knows from its reports."""

from __future__ import annotations

import pytest

from holdfast.errors import Refused
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from tests.core.world import World


@pytest.mark.parametrize("force", [False, True])
def test_a_node_is_not_grown_beyond_its_own_maximum_also_by_force(force: bool) -> None:
    world = World()
    world.node(size=1 << 20)
    world.ask(q.Done, n.ReportUsage(5, 5, {"max_size_bytes": 2 << 20, "memory_to_lend_bytes": 1 << 40}))
    with pytest.raises(Refused, match="2,097,152"):
        world.ask(q.Done, q.ResizeNode("a", 3 << 20, force))
    world.ask(q.Done, q.ResizeNode("a", 2 << 20, force))
