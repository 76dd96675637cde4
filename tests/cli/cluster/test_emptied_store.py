"""`holdfast up` on a directory whose log was deleted: it says so and ends; with --new-history it begins anew, and the
snapshots of the old history do no harm to the new one (I1, I19)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil

import holdfast
from holdfast.cli.cluster.masters import ask_one, primary_of, survey
from holdfast.instant import now_seconds
from holdfast.messages.of_masters import TakeSnapshot
from holdfast.messages.requests import Done, Status
from tests.cli.processes.test_up import PYTHON, SMALL, environment, running
from tests.waiting import wait_until


def statuses(facts: dict[str, Any]) -> list[Status]:
    seen = survey([master["address"] for master in facts["masters"]], "")
    return [one.status for one in seen if one.status is not None]


def leading(facts: dict[str, Any], but: str = "") -> Status:
    """The primary, once there is one, of another name than this."""

    def found() -> Status | None:
        leader = primary_of(survey([master["address"] for master in facts["masters"]], ""))
        return leader if leader is not None and leader.name != but else None

    leader = wait_until(found, 60, "somebody leads")
    assert leader is not None
    return leader


def all_is_well(facts: dict[str, Any]) -> bool:
    found = statuses(facts)
    return sorted(one.role for one in found) == ["primary", "standby"] and any(one.promotable for one in found)


def pid_of(data: Path, name: str) -> int:
    """Of the master's process now: it may have been started again since `up` said where it is."""
    wanted = str(data / name)
    commands = {process.pid: process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])}
    return next(pid for pid, command in commands.items() if wanted in command)


def files_of(data: Path, log_id: str) -> set[str]:
    return {str(path.relative_to(data)) for path in data.glob(f"master-*/snapshots/snapshot-{log_id}-*.hfs")}


def snapshots(data: Path, master: dict[str, Any]) -> list[Path]:
    """Those that the master keeps, after it was asked to write one."""
    ask_one(master["address"], "", TakeSnapshot(), Done, now_seconds() + 30)
    return list((data / master["name"]).rglob("*.hfs"))


def a_history(tmp_path: Path) -> str:
    """A cluster that ran here, wrote two snapshots at each master, and was ended by Ctrl-C; its history."""
    data = tmp_path / "data"
    with running(tmp_path) as (process, facts):
        with holdfast.connect(facts["address"]) as cache:
            for number in range(30):
                cache.put(f"old/{number}", b"of the old history")
            for number in range(2):
                cache.put(f"older/{number}", b"of the old history")
                for master in facts["masters"]:
                    kept = len(list((data / master["name"]).rglob("*.hfs")))
                    # One that is a batch behind has nothing new to write yet.
                    wait_until(lambda: len(snapshots(data, master)) > kept, 60, "another snapshot")  # noqa: B023
        log_id = leading(facts).log_id
        process.send_signal(signal.SIGINT)
        process.wait(60)
    return log_id


def test_the_snapshots_of_a_deleted_log_do_no_harm_to_the_next_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    old = a_history(tmp_path)
    kept = files_of(data, old)
    assert len(kept) >= 4, "two of each master"
    for path in data.glob("cluster.db*"):
        path.unlink()
    with running(tmp_path, "--new-history") as (process, facts):
        new = leading(facts).log_id
        assert new != old
        with holdfast.connect(facts["address"], timeout=60) as cache:
            assert cache.put("c1", b"one")
            assert cache.put("c2", b"two")
            for _ in facts["masters"]:
                wait_until(lambda: all_is_well(facts), 60, "one leads, and the other could")
                primary = leading(facts).name
                note = data / primary / "snapshots" / "history"
                # It looks after its snapshots, and trims the log by them, right after it has noted this.
                wait_until(lambda: note.exists() and note.read_text().strip() == new, 60, "the note")  # noqa: B023
                os.kill(pid_of(data, primary), signal.SIGKILL)
                leading(facts, but=primary)
            wait_until(lambda: all_is_well(facts), 60, "both masters are back")
            assert (cache.get("c1"), cache.get("c2"), cache.get("old/1", default=None)) == (b"one", b"two", None)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    with running(tmp_path) as (process, facts), holdfast.connect(facts["address"]) as cache:
        assert leading(facts).log_id == new, "the same history goes on"
        assert cache.put("c3", b"three")
    assert kept <= files_of(data, old), "nothing of the old history was deleted"


def test_a_deleted_log_ends_up_at_once_with_the_reason_and_both_ways_out(tmp_path: Path) -> None:
    old = a_history(tmp_path)
    for path in (tmp_path / "data").glob("cluster.db*"):
        path.unlink()
    command = [*PYTHON, "up", *SMALL, "--data-dir", str(tmp_path / "data")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment())
    assert refused.returncode == 1
    for words in (old, "holdfast restore", "--new-history", "nothing was changed"):
        assert words in refused.stderr
    assert "Traceback" not in refused.stderr
