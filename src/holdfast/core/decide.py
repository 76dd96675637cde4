"""decide(primary, request, client, now) -> (reply, records): every verb, by the type of its request.

Nothing in the state changes here but soft columns (leases, last use) and the primary's own free space; the
records say what is to change, and applying them changes it. A refusal is raised, with nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core import (
    attendance,
    disks,
    live_settings,
    lost_files,
    membership,
    puts,
    reads,
    removals,
    replicas,
    restored_memory,
    setting_aside,
    testimony,
)
from holdfast.core.primary import Decision, Primary
from holdfast.errors import BadRequest
from holdfast.instant import Instant
from holdfast.messages import of_nodes, of_sessions, requests
from holdfast.messages.shapes import Message

_DECIDE: dict[type[Message], Callable[[Primary, Any, int, Instant], Decision]] = {
    requests.Exists: reads.exists,
    requests.Locate: reads.locate,
    requests.RenewLeases: reads.renew_leases,
    requests.GrantRanges: puts.grant_ranges,
    requests.ExtendGrants: puts.extend_grants,
    requests.CommitPuts: puts.commit_puts,
    requests.ReturnGrants: puts.return_grants,
    requests.Remove: removals.remove,
    requests.RemoveMatching: removals.remove_matching,
    requests.ListKeys: reads.list_keys,
    requests.Stat: reads.stat,
    requests.Explain: reads.explain,
    requests.ListSegments: reads.list_segments,
    requests.ChangeMode: setting_aside.change_mode,
    requests.ResizeNode: setting_aside.resize_node,
    requests.RevokeWrites: setting_aside.revoke_writes,
    requests.ChangeCopying: live_settings.change_copying,
    requests.ChangeSettings: live_settings.change_settings,
    of_nodes.RegisterNode: membership.register_node,
    of_nodes.ReportWriters: membership.report_writers,
    of_nodes.ReportUsage: membership.report_usage,
    of_nodes.ReportGone: testimony.report_gone,
    of_sessions.OpenSession: attendance.open_session,
    of_sessions.KeepAlive: attendance.keep_alive,
    of_sessions.CloseSession: attendance.close_session,
    of_nodes.AddReplicas: replicas.add_replicas,
    of_nodes.MountDisk: disks.mount_disk,
    of_nodes.ReportFiles: disks.report_files,
    of_nodes.ReportDisk: disks.report_disk,
    of_nodes.MountSegment: setting_aside.mount_segment,
    of_nodes.ReportLostFiles: lost_files.report_lost_files,
    of_nodes.ListFiles: lost_files.list_files,
    of_nodes.VerifyRanges: restored_memory.verify_ranges,
}


def decide(primary: Primary, request: Message, client: int, now: Instant) -> Decision:
    """`client` is the number that the caller gave itself; for a node's requests, that of its connection."""
    verb = _DECIDE.get(type(request))
    if verb is None:
        raise BadRequest(f"{type(request).__name__} is not a request; nothing was changed")
    return verb(primary, request, client, now)
