"""What a master shows of itself is of the catalogue that it has now."""

from __future__ import annotations

from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.core.catalogue.digest import digest
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.master.plan import Plan
from holdfast.master.roles.master import Master
from holdfast.master.server import RpcServer
from holdfast.master.status.view import MasterView
from holdfast.replication.snapshot_store import SnapshotStore
from holdfast.replication.standby import Standby
from tests.stories.pair import Pair


def with_objects(count: int) -> State:
    pair = Pair()
    pair.node("a", size=1 << 20)
    pair.put(*[f"k{number}" for number in range(count)])
    pair.state.index = 7
    return pair.state


def test_the_digest_is_never_that_of_a_catalogue_that_was_dropped() -> None:
    """I5: after a step down, other records may be applied up to the same index, in the memory that the old ones had."""
    plan = Plan(Rules(), "holdfast", "here:7070")
    master = Master(RpcServer("here", ""), MemoryCoordination(MemoryStore()), plan, SnapshotStore(None))
    assert master.standby_role is not None
    view = MasterView(master)
    shown = set()
    for count in range(1, 20):
        master.standby_role.standby = Standby()
        master.standby_role.standby = Standby(with_objects(count))
        assert view.status_message().digest == digest(master.standby.state.catalogue)
        shown.add(view.status_message().digest)
    assert len(shown) == 19
