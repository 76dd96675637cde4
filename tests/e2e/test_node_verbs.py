"""`holdfast drain` and what `holdfast nodes` can change, as commands against real processes."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from typing import Any

from holdfast.node.host_capacity import most_memory
from tests import prefork
from tests.e2e.rig import Rig
from tests.waiting import wait_until


def holdfast(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    return prefork.holdfast(*arguments, "--address", rig.address)


def facts(ran: subprocess.CompletedProcess[str]) -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_drain_watches_until_the_node_is_empty_and_cancel_opens_it_again() -> None:
    with Rig("32MiB", nodes=2, lease_ttl_ms=300) as rig, rig.connect() as cache:
        assert cache.put_many({f"k{i}": b"x" * 50_000 for i in range(100)}) == 100
        drained = holdfast(rig, "drain", "bench-0")
        assert drained.returncode == 0, drained.stderr
        assert "bench-0 is empty and can be stopped" in drained.stdout
        assert "moved, 0 (0 B) evicted, 0 (0 B) left" in drained.stdout
        listed = {node["name"]: node for node in facts(holdfast(rig, "nodes", "--json"))}
        assert (listed["bench-0"]["mode"], listed["bench-0"]["used_bytes"]) == ("draining", 0)
        assert "draining" in holdfast(rig, "nodes").stdout
        assert facts(holdfast(rig, "drain", "bench-0", "--cancel", "--json"))["mode"] == "open"
        assert len(cache.get_many([f"k{i}" for i in range(100)])) == 100


def test_drain_is_refused_with_figures_where_it_would_evict_and_says_what_it_did_when_it_may() -> None:
    """It said "without loss" and evicted most of what was there."""
    with Rig("32MiB", nodes=2, lease_ttl_ms=300) as rig, rig.connect() as cache:
        keys = [f"k{i}" for i in range(100)]
        assert cache.put_many(dict.fromkeys(keys, b"x" * 400000)) == 100
        refused = holdfast(rig, "drain", "bench-0")
        assert refused.returncode != 0
        assert "would be evicted" in refused.stderr
        assert cache.nodes().nodes[0].mode == "open"
        wait_until(lambda: len([key for key in keys if cache.exists(key)]) == 100, what="nothing has changed")
        done = facts(holdfast(rig, "drain", "bench-0", "--evict", "--json"))
        kept = sum(cache.exists(key) for key in keys)
        assert (done["objects_left"], done["bytes_left"]) == (0, 0)
        assert done["evicted_objects"] == 100 - kept > 0
        assert done["evicted_bytes"] == done["evicted_objects"] * 401_408
        assert done["moved_objects"] > 0
        http = rig.masters["master-0"][1]["http"]

        def told() -> list[str]:
            with urllib.request.urlopen(f"http://{http}/api/v1/events", timeout=20) as answer:
                events = json.loads(answer.read())["events"]
            return [one["text"] for one in events if one["kind"] == "node_drained"]

        # The command sees at once that nothing is left; the primary looks once a second.
        [said] = wait_until(told, what="the event is there")
        assert f"{done['moved_objects']:,} objects" in said
        assert f"{done['evicted_objects']:,} (" in said


def test_nodes_are_cordoned_resized_and_slowed_down() -> None:
    with Rig("32MiB") as rig:
        assert facts(holdfast(rig, "drain", "bench-0", "--cordon-only", "--json"))["mode"] == "cordoned"
        assert facts(holdfast(rig, "nodes", "uncordon", "bench-0", "--json"))["mode"] == "open"
        assert facts(holdfast(rig, "nodes", "cordon", "bench-0", "--json"))["mode"] == "cordoned"
        assert facts(holdfast(rig, "nodes", "uncordon", "bench-0", "--json"))["mode"] == "open"
        assert facts(holdfast(rig, "nodes", "resize", "bench-0", "16MiB", "--json"))["capacity_bytes"] == 16 << 20
        assert "at most" in facts(holdfast(rig, "nodes", "copy-rate", "10MiB", "--json"))["done"]
        assert "0 unfinished" in facts(holdfast(rig, "nodes", "revoke-client", "77", "--json"))["done"]


def test_a_changed_setting_reaches_the_nodes_of_a_running_cluster() -> None:
    """They were told to report every ten minutes; the figures come at once, then as often as is said now."""
    with Rig("32MiB", nodes=2, report_interval_ms=600_000) as rig, rig.connect(shared_memory=False) as cache:

        def reported() -> list[int]:
            return [node.figures.get("tcp_written_bytes", 0) for node in cache.nodes().nodes]

        wait_until(lambda: all(node.figures for node in cache.nodes().nodes), what="each has reported once")
        for node in ("bench-0", "bench-1"):
            assert cache.put(node, b"x" * 100_000, prefer=[node])
        told = facts(holdfast(rig, "settings", "report_interval_ms=100", "copy_bytes_per_second=10MiB", "--json"))
        assert told["changed"] == ["copy_bytes_per_second", "report_interval_ms"]
        assert told["settings"]["copy_bytes_per_second"] == 10 << 20
        wait_until(lambda: reported() == [100_000, 100_000], what="the reports come in")
        assert "at most" in facts(holdfast(rig, "nodes", "copy-rate", "20MiB", "--json"))["done"]
        assert facts(holdfast(rig, "settings", "--json"))["settings"]["copy_bytes_per_second"] == 20 << 20


def test_what_cannot_be_done_is_said_and_changes_nothing() -> None:
    with Rig("32MiB") as rig:
        with rig.connect() as cache:
            wait_until(lambda: all(node.figures for node in cache.nodes().nodes), what="the node has reported once")
        for arguments, text in (
            (("drain", "nobody"), "no node is called"),
            (("drain", "bench-0", "--cancel", "--cordon-only"), "contradict"),
            (("nodes", "paint", "bench-0"), "is none of"),
            (("nodes", "resize", "bench-0", "much"), "is not a size"),
            (("nodes", "resize", "bench-0", "1TiB"), "--max-size"),
            (("nodes", "resize", "bench-0", f"{(most_memory() >> 20) - 128}MiB"), "--force"),
            (("nodes", "revoke-client", "x"), "no client's number"),
            (("nodes", "revoke-client", "0"), "no client's number"),
        ):
            ran = holdfast(rig, *arguments)
            assert ran.returncode != 0
            assert text in ran.stderr
        assert facts(holdfast(rig, "nodes", "--json"))[0]["mode"] == "open"
