"""Sessions between one master and many followers: leases, commands, and failovers that no session is lost to.

For a master of your own, `SessionMaster` serves them in an event loop; for followers, `SessionFollower` keeps one in a
thread and `AsyncSessionFollower` in an event loop. holdfast's nodes are followers of its primary in the same way.
"""

from __future__ import annotations

from holdfast.core.primary.session_book import SessionTimes
from holdfast.session.follower import Event, Follower, Happening
from holdfast.session.followers import AsyncSessionFollower, SessionFollower
from holdfast.session.lease import Lease, Standing
from holdfast.session.session_master import MasterEvent, MasterHappening, Remembered, SessionMaster, SessionSeen

__all__ = [
    "AsyncSessionFollower",
    "Event",
    "Follower",
    "Happening",
    "Lease",
    "MasterEvent",
    "MasterHappening",
    "Remembered",
    "SessionFollower",
    "SessionMaster",
    "SessionSeen",
    "SessionTimes",
    "Standing",
]
