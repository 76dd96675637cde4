"""`holdfast top` on a real terminal, over real masters that are killed."""

from __future__ import annotations

import json
import signal

import pytest

from tests import prefork
from tests.cli.live.pty_program import PtyProgram
from tests.failover.cluster import Cluster
from tests.ports import free_ports
from tests.waiting import wait_until


def top(cluster: Cluster, *more: str, **size: int) -> PtyProgram:
    return PtyProgram("top", "--address", cluster.address, *more, **size)


@pytest.mark.timeout(300)
def test_the_page_fits_80_by_24_and_obeys_its_keys(cluster: Cluster) -> None:
    with top(cluster) as shown:
        name = cluster.primary().status()["name"]
        page = shown.until("requests ")
        assert len(page) == 24
        assert [line for line in page if len(line) > 80] == []
        assert f"holdfast watched: {name} leads, epoch" in page[0]
        assert "50 objects" in page[0]
        for part in ("MASTER", "hit rate", "node-1", "node-2", "[", "VERB, LAST MINUTE", "session created", "q quit"):
            assert any(part in line for line in page), part
        shown.type("p")
        shown.until("PAUSED")
        shown.type("p2")
        assert not any("PAUSED" in line for line in shown.until("2*nodes"))
        shown.type("s")
        shown.until("MEMORY (by fullest)")
        shown.type("\t")
        shown.until("3*requests")
        shown.type("\x1b[C")
        shown.until("There are no tenants.")
        shown.type("?")
        shown.until("Keys of holdfast top")
        shown.type("x5")
        assert any("segment mounted" in line for line in shown.until("5*events"))
        shown.resize(60, 12)
        shown.process.send_signal(signal.SIGWINCH)
        wait_until(lambda: len(shown.page()) == 12, what="the page has the new size")
        assert all(len(line) <= 60 for line in shown.page())
        assert not shown.is_given_back()
        assert shown.end("q") == 0
        assert shown.is_given_back()


@pytest.mark.timeout(300)
def test_it_follows_a_failover_and_says_that_nobody_answers(cluster: Cluster) -> None:
    with top(cluster, "--every", "0.2") as shown:
        primary, standby = cluster.primary(), cluster.standby()
        name, heir = primary.status()["name"], standby.status()["name"]
        shown.until(f"{name} leads")
        primary.kill()
        page = shown.until(f"{heir} leads")
        assert "50 objects" in page[0]
        standby.kill()
        shown.until("No master answers")
        assert any("node-1" in line for line in shown.page()), "what was known last stays on the page"
        cluster.revive()
        wait_until(lambda: "leads" in shown.page()[0] and "No master" not in shown.page()[1], 60, "it is live again")
        assert shown.end("\x03") == 0, "Ctrl-C"
        assert shown.is_given_back()


@pytest.mark.timeout(300)
def test_a_primary_that_stands_still_is_left_for_the_next_one(cluster: Cluster) -> None:
    with top(cluster, "--every", "0.2") as shown:
        primary, standby = cluster.primary(), cluster.standby()
        shown.until(f"{primary.status()['name']} leads")
        heir = standby.status()["name"]
        primary.pause()
        shown.until(f"{heir} leads")
        assert shown.end("q") == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_given_back(cluster: Cluster, number: signal.Signals) -> None:
    with top(cluster) as shown:
        shown.until("leads")
        assert shown.end(number) == 128 + number
        assert shown.is_given_back()


@pytest.mark.timeout(300)
def test_the_terminal_is_given_back_while_it_is_stopped(cluster: Cluster) -> None:
    with top(cluster) as shown:
        shown.until("leads")
        shown.process.send_signal(signal.SIGTSTP)
        wait_until(shown.is_given_back, 60, "the terminal is given back")
        shown.process.send_signal(signal.SIGCONT)
        wait_until(lambda: not shown.is_given_back(), 60, "the page is there again")
        assert shown.end("q") == 0
        assert shown.is_given_back()


@pytest.mark.timeout(300)
def test_without_a_terminal_it_prints_one_plain_page(cluster: Cluster) -> None:
    command = ["top", "--address", cluster.address, "--every", "0.2"]
    for more in ([], ["--once"], ["--once", "--json"]):
        done = prefork.holdfast(*command, *more)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        if "--json" in more:
            found = json.loads(done.stdout)
            assert found["overview"]["objects"] == 50
            assert found["rates"]["requests"] >= 0
            assert {event["kind"] for event in found["events"]} >= {"primary", "session_created"}
        else:
            assert "50 objects" in done.stdout
            assert "node-2" in done.stdout
            assert "session created" in done.stdout


@pytest.mark.timeout(300)
def test_without_a_master_one_page_is_an_error(cluster: Cluster) -> None:
    [port] = free_ports(1)

    done = prefork.holdfast("top", "--once", "--address", f"127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no master answers" in done.stderr


@pytest.mark.timeout(300)
def test_it_begins_before_the_masters_do(cluster: Cluster) -> None:
    for master in cluster.masters:
        master.kill()
    with top(cluster, "--every", "0.2") as shown:
        shown.until("trying again")
        cluster.revive()
        shown.until("leads")
        assert shown.end("q") == 0
