"""A reader learns that what it holds a lease on was removed, replaced or moved, long before the lease ends."""

from __future__ import annotations

import pytest

from holdfast.messages.requests import ChangeMode
from tests.client.inside import core_of
from tests.e2e.rig import Rig
from tests.waiting import wait_until

KIB = 1 << 10
LONG = {"lease_ttl_ms": 600_000}


@pytest.mark.parametrize("how", ["remove", "upsert"])
def test_readers_of_an_object_that_goes_are_told(how: str) -> None:
    with Rig("64MiB", **LONG) as rig, rig.connect() as reader, rig.connect() as other:
        other.put("k", b"old" * KIB)
        assert reader.get("k") == b"old" * KIB
        looking = reader.view("k")
        with looking as view:
            if how == "remove":
                assert other.remove("k", force=True) == 1
            else:
                assert other.put("k", b"new" * KIB, upsert=True)
            wait_until(lambda: looking.revoked, what="the view is told")
            assert bytes(view) == b"old" * KIB, "and still shows what it showed (I2)"
        expected = None if how == "remove" else b"new" * KIB
        wait_until(lambda: reader.get("k", default=None) == expected, what="the next read asks the master")


def test_a_reader_goes_to_where_an_object_has_moved() -> None:
    """The lease would have kept it at the old place for ten minutes."""
    with Rig("64MiB", nodes=2, **LONG) as rig, rig.connect() as reader, rig.connect() as other:
        other.put("k", b"x" * 100 * KIB, prefer=["bench-0"])
        assert reader.get("k") == b"x" * 100 * KIB
        before = core_of(reader).leases.by_key["k"][1]
        other.operate(ChangeMode("bench-0", "draining"))

        def has_moved() -> bool:
            assert reader.get("k") == b"x" * 100 * KIB
            return core_of(reader).leases.by_key["k"][1] != before

        wait_until(has_moved, deadline_s=60, what="it is read at its new place")
