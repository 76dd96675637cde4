"""Nodes hear which objects went while somebody may have been reading them."""

from __future__ import annotations

import struct

import pytest

from holdfast.core.primary import copy_book
from holdfast.messages import commands as c
from tests.core.copies.test_plan import three_nodes
from tests.core.copying import kinds


def test_nodes_are_told_which_objects_went_while_they_were_leased() -> None:
    """A hint, and confirmed: the session's own promise. Nobody loses a lease by it (I2)."""
    world, nodes = three_nodes()
    world.put("k", "l", replicas=2)
    oid = world.locate("k")[0][0]
    there = {node for _, node in kinds(world, "k")}
    world.remove("k", "l", force=True)
    world.pass_time(100)
    told = nodes.take("revoke_lease")
    assert {one.node for one in told} == there
    assert all((one.confirm, one.body) == (True, c.RevokeLeases(struct.pack("<Q", oid))) for one in told)


def test_readers_of_what_an_upsert_replaced_are_told_too() -> None:
    world, nodes = three_nodes()
    world.put("k")
    oid = world.locate("k")[0][0]
    world.put("k", upsert=True)
    world.pass_time(100)
    [told] = nodes.take("revoke_lease")
    assert told.body == c.RevokeLeases(struct.pack("<Q", oid))


def test_more_revoked_leases_than_can_be_named_are_said_to_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """I17"""
    monkeypatch.setattr(copy_book, "MAX_HINTS", 3)
    world, nodes = three_nodes()
    keys = [f"k{i}" for i in range(20)]
    world.put(*keys)
    world.locate(*keys)
    world.remove(*keys, force=True)
    world.pass_time(100)
    [told] = nodes.take("revoke_lease")
    assert isinstance(told.body, c.RevokeLeases)
    assert (told.body.more, len(told.body.ids)) == (True, 3 * 8)
