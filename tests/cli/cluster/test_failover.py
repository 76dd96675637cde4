"""A cluster with two masters as real processes: seen by `status`, handed over, killed, and still going on."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as library
from holdfast.cli.load import value_of
from tests.cli.processes.test_up import holdfast, primary, running
from tests.waiting import wait_until

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Facts]:
    with running(tmp_path_factory.mktemp("up")) as (_, facts):
        yield facts


def status(facts: Facts) -> Facts:
    found: Facts = json.loads(holdfast(facts, "status", "--json").stdout)
    return found


def both_agree(facts: Facts) -> Facts | None:
    """The status, once both masters hold the same records."""
    found = status(facts)
    reached = [one for one in found.get("masters", []) if one["reachable"]]
    caught_up = len(reached) == 2 and all(one["lag"] == 0 and one["digest_equal"] is not None for one in reached)
    return found if caught_up and found["primary"] is not None else None


@contextmanager
def putting(facts: Facts) -> Iterator[list[str]]:
    """A client puts all the while; the block's end raises what went wrong there."""
    stored: list[str] = []
    faults: list[BaseException] = []
    stop = threading.Event()

    def put() -> None:
        try:
            with library.connect(facts["address"], timeout=30) as cache:
                while not stop.wait(0.005):
                    key = f"{threading.get_ident()}/{len(stored)}"
                    cache.put(key, value_of(key, 1_000))
                    stored.append(key)
        except BaseException as error:  # noqa: BLE001 - it is raised again by the test's own thread.
            faults.append(error)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    try:
        wait_until(lambda: len(stored) > 20 or faults, 30, "the first puts")
        yield stored
    finally:
        stop.set()
        thread.join(60)
    assert not faults, faults
    assert not thread.is_alive()


def check_all(facts: Facts, keys: list[str]) -> None:
    with library.connect(facts["address"]) as cache:
        found = cache.get_many(keys)
    assert all(found.get(key) == value_of(key, 1_000) for key in keys)


def test_status_shows_a_primary_and_a_standby_that_agree(facts: Facts) -> None:
    """I5."""
    found = wait_until(lambda: both_agree(facts), 30, "both masters at the same record")
    assert sorted(one["role"] for one in found["masters"]) == ["primary", "standby"]
    assert [one["digest_equal"] for one in found["masters"]] == [True, True]
    assert found["role"] == "primary"
    text = holdfast(facts, "status").stdout.decode()
    assert "master-1" in text
    assert "master-2" in text


def test_a_snapshot_is_written_by_the_standby(facts: Facts) -> None:
    wait_until(lambda: both_agree(facts), 30, "both masters at the same record")
    result = holdfast(facts, "snapshot", "--json")
    written = json.loads(result.stdout)
    assert result.returncode == 0, result.stderr
    assert (written["role"], written["batch"] > 0, written["size_bytes"] > 0) == ("standby", True, True)


def test_a_handover_fails_no_put_and_loses_nothing(facts: Facts) -> None:
    """I1, I10."""
    before = wait_until(lambda: both_agree(facts), 30, "both masters at the same record")
    with putting(facts) as stored:
        result = holdfast(facts, "failover", "--json")
        assert result.returncode == 0, result.stdout + result.stderr
        then = len(stored)
        wait_until(lambda: len(stored) > then + 20, 30, "puts after the handover")
    said = json.loads(result.stdout)
    assert said["old"]["name"] == before["name"] != said["new"]["name"]
    assert said["new"]["epoch"] > said["old"]["epoch"]
    assert (said["failed_probes"], said["outage_ms"] > 0) == (0, True)
    check_all(facts, stored)


def test_everything_goes_on_when_the_primary_is_killed(facts: Facts) -> None:
    """I1, I10, I15."""
    before = wait_until(lambda: both_agree(facts), 30, "both masters at the same record")
    with putting(facts) as stored:
        leading = next(one for one in facts["masters"] if one["name"] == before["name"])
        os.kill(leading["pid"], signal.SIGKILL)
        then = len(stored)
        wait_until(lambda: len(stored) > then + 50, 60, "puts after the kill")
    check_all(facts, stored)
    after = wait_until(lambda: both_agree(facts), 60, "the killed master as a standby that agrees")
    assert (after["name"] != before["name"], after["epoch"] > before["epoch"]) == (True, True)
    assert all(one["digest_equal"] for one in after["masters"])


def test_a_lone_master_does_not_hand_over(tmp_path: Path) -> None:
    with running(tmp_path, "--masters", "1") as (_, alone):
        result = holdfast(alone, "failover")
        assert result.returncode == 3
        assert "nothing was done" in result.stderr.decode()
        assert status(alone)["name"] == primary(alone)["name"]


def test_a_setting_changed_while_running_outlives_the_primary(facts: Facts) -> None:
    def settings(*changes: str) -> Facts:
        found: Facts = json.loads(holdfast(facts, "settings", *changes, "--json").stdout)
        return found

    shipped = settings()["settings"]["high_watermark"]
    told = settings("high-watermark=0.75", "write_window_bytes=64MiB")
    assert told["settings"]["high_watermark"] == 0.75
    wait_until(lambda: both_agree(facts), what="both masters hold the change")
    assert holdfast(facts, "failover").returncode == 0
    assert settings()["settings"]["write_window_bytes"] == 64 << 20
    told = settings("high_watermark=", "write_window_bytes=")
    assert told["changed"] == []
    assert told["settings"]["high_watermark"] == shipped
    refused = holdfast(facts, "settings", "lease_ttl_ms=soon")
    assert refused.returncode != 0
    assert b"nothing was changed" in refused.stderr
    assert b"session_lease_ms" in holdfast(facts, "settings", "session_lease_ms=5").stderr
