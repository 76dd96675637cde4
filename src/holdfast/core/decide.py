"""decide(primary, request, client, now) -> Decision: every verb, by the type of its request.

A decision changes nothing that outlives this primary: only soft columns of the state (leases, last use) and the
primary's own data (free space, sessions, copies under way). The other changes are described by records, and made by
applying them. A refusal is raised, with nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core import live_settings, tenants
from holdfast.core.copies import disks, lost_files, plan
from holdfast.core.nodes import membership, node_operations, restored_memory, session_verbs, testimony
from holdfast.core.objects import pins, puts, reads, removals
from holdfast.core.primary.decision import Decision, NextStep
from holdfast.core.primary.primary import Primary
from holdfast.errors import BadRequest
from holdfast.instant import Instant
from holdfast.messages import of_nodes, of_sessions, of_tenants, requests
from holdfast.messages.shapes import Message

_DECIDE: dict[type[Message | NextStep], Callable[[Primary, Any, int, Instant], Decision]] = {
    requests.Exists: reads.exists,
    requests.Locate: reads.locate,
    requests.RenewLeases: reads.renew_leases,
    reads.RenewalStep: reads.renewal_step,
    requests.GrantRanges: puts.grant_ranges,
    requests.ExtendGrants: puts.extend_grants,
    requests.CommitPuts: puts.commit_puts,
    requests.ReturnGrants: puts.return_grants,
    requests.Remove: removals.remove,
    removals.RemovalStep: removals.removal_step,
    requests.RemoveMatching: removals.remove_matching,
    removals.MatchingStep: removals.matching_step,
    requests.ChangePins: pins.change_pins,
    requests.ListKeys: reads.list_keys,
    requests.Stat: reads.stat,
    reads.StatStep: reads.stat_step,
    requests.Explain: reads.explain,
    reads.ExplainStep: reads.explain_step,
    requests.ListSegments: reads.list_segments,
    requests.ChangeMode: node_operations.change_mode,
    requests.ResizeNode: node_operations.resize_node,
    requests.RevokeWrites: node_operations.revoke_writes,
    requests.ChangeCopying: live_settings.change_copying,
    requests.ChangeSettings: live_settings.change_settings,
    of_tenants.ListTenants: tenants.list_tenants,
    of_tenants.ChangeTenant: tenants.change_tenant,
    of_tenants.RemoveTenant: tenants.remove_tenant,
    of_nodes.RegisterNode: membership.register_node,
    of_nodes.ReportWriters: membership.report_writers,
    of_nodes.ReportUsage: membership.report_usage,
    of_nodes.ReportGone: testimony.report_gone,
    of_sessions.OpenSession: session_verbs.open_session,
    of_sessions.KeepAlive: session_verbs.keep_alive,
    of_sessions.CloseSession: session_verbs.close_session,
    of_nodes.AddReplicas: plan.add_replicas,
    of_nodes.MountDisk: disks.mount_disk,
    of_nodes.ReportFiles: disks.report_files,
    disks.FilesStep: disks.files_step,
    of_nodes.ReportDisk: disks.report_disk,
    of_nodes.MountSegment: node_operations.mount_segment,
    of_nodes.ReportLostFiles: lost_files.report_lost_files,
    lost_files.LostFilesStep: lost_files.lost_files_step,
    of_nodes.ListFiles: lost_files.list_files,
    of_nodes.ReportFilesVerified: restored_memory.files_verified,
    of_nodes.VerifyRanges: restored_memory.verify_ranges,
}


def decide(primary: Primary, request: Message | NextStep, client: int, now: Instant) -> Decision:
    """`client` is the number that the client chose for itself; for a node's requests, the number of its connection."""
    verb = _DECIDE.get(type(request))
    if verb is None:
        raise BadRequest(f"{type(request).__name__} is not a request; nothing was changed")
    return verb(primary, request, client, now)
