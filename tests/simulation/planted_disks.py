"""Bugs of node disks, planted on purpose: lost files that poison their keys, places given away too soon or never."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from holdfast.core import decide
from holdfast.core.copies import lost_files
from holdfast.core.primary.decision import Decision
from holdfast.core.primary.primary import Primary
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import ObjectsRemoved
from holdfast.node.disk.lost_files import LostFiles
from tests.simulation.planted import Patch, Planted


def keep_quiet_about_lost_files() -> Patch:
    """The node finds a file gone, and tells nobody: its key exists, and cannot be read or put for ever."""
    return patch.object(LostFiles, "add", lambda self, *seen: None)


def keep_the_replicas_of_lost_files() -> Patch:
    """The master takes note of the report, and drops nothing."""
    return patch.dict(decide._DECIDE, {n.ReportLostFiles: lambda *_: Decision(q.Done(0))})


def free_the_places_of_lost_files_under_leases() -> Patch:
    def report(*asked: Any) -> Any:
        decision = lost_files.report_lost_files(*asked)
        for record in decision.records:
            if isinstance(record, ObjectsRemoved):
                record.ids, record.leased = record.ids + record.leased, b""
        return decision

    return patch.dict(decide._DECIDE, {n.ReportLostFiles: report})


def leave_a_dead_nodes_copies_in_quarantine() -> Patch:
    return patch.object(Primary, "ask_to_clean_again", lambda self, segment: None)


PLANTED_ON_DISKS = (
    Planted("keep quiet about lost files", keep_quiet_about_lost_files, ("I10",), 60),
    Planted("keep the replicas of lost files", keep_the_replicas_of_lost_files, ("I10",), 100),
    Planted("free the places of lost files under leases", free_the_places_of_lost_files_under_leases, ("I2", "I8"), 60),
    Planted("leave a dead node's copies in quarantine", leave_a_dead_nodes_copies_in_quarantine, ("I11",), 60),
)
