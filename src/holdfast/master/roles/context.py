"""What both roles of a master work with. It outlives them; what one role alone needs is in that role's object."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.coordination.interface import Coordination
from holdfast.master.announcement import Announcement
from holdfast.master.election.leader_watch import LeaderWatch
from holdfast.master.events import EventHistory
from holdfast.master.histories.histories import Histories
from holdfast.master.histories.restore_order import RestoreOrder
from holdfast.master.histories.snapshot_upkeep import Snapshots
from holdfast.master.object_events.events import ObjectEvents
from holdfast.master.plan import Plan
from holdfast.master.roles.figures import RoleFigures
from holdfast.master.server import RpcServer
from holdfast.master.succession.held_tail import HeldTail


@dataclass(frozen=True, slots=True)
class RoleContext:
    """The collaborators of a master that shares its log with others through coordination."""

    server: RpcServer
    coordination: Coordination
    plan: Plan
    snapshots: Snapshots
    histories: Histories
    order: RestoreOrder
    leaders: LeaderWatch
    announcement: Announcement
    events: EventHistory
    object_events: ObjectEvents | None
    figures: RoleFigures
    tail: HeldTail
