"""Threads of a node: a defect in one is logged, counted as down and started again; the memory stays lent (I14)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.messages.commands import UpdateConfig, encode_body
from holdfast.messages.of_nodes import ReportUsage
from holdfast.node.commands.handlers import CommandWorker
from holdfast.node.memory.attach_server import AttachServer
from holdfast.node.memory.data_server import DataServer
from holdfast.node.session.life import NodeLife
from holdfast.session.follower import Follower
from holdfast.supervisor import Supervisor
from tests.node.rig import FakeMaster, Served, soon
from tests.node.session.test_life import can_read, running
from tests.waiting import wait_until


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """The next call of this method meets a defect; the list says whether it has."""
    real: Callable[..., Any] = getattr(owner, name)
    met: list[str] = []

    def failing(*args: Any) -> Any:
        if not met:
            met.append(name)
            raise KeyError("defect")
        return real(*args)

    monkeypatch.setattr(owner, name, failing)
    return met


@pytest.mark.parametrize(("owner", "method"), [(Follower, "_round"), (NodeLife, "_tell_once")])
def test_a_defect_in_a_nodes_session_costs_a_moment_and_not_its_memory(
    owner: type, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I14: a process that ended, or took new memory, would void every object in it."""
    with FakeMaster() as master, running(master.address, tmp_path) as node:
        master.wait_for_registrations(1)
        master.command("config_update", encode_body(UpdateConfig(1_000, 50)))
        wait_until(lambda: len(master.asked(ReportUsage)) > 2, what="it reports often")
        boot = node.boot
        met = fail_once(monkeypatch, owner, method)
        wait_until(lambda: met, what="the defect was met")
        kept, reported = len(master.keepalives()), len(master.asked(ReportUsage))
        wait_until(lambda: len(master.keepalives()) > kept + 2, what="it follows on")
        wait_until(lambda: len(master.asked(ReportUsage)) > reported + 2, what="it reports on")
        assert node.failure is None
        assert node.boot == boot
        assert can_read(node, boot)
    failures = [record for record in caplog.records if "is tried again until it works" in record.getMessage()]
    assert len(failures) == 1
    assert failures[0].levelno == logging.ERROR


def test_a_node_that_meets_a_defect_says_that_it_is_not_healthy(tmp_path: Path) -> None:
    with FakeMaster() as master, running(master.address, tmp_path) as node:
        master.wait_for_registrations(1)
        assert node.figures()["healthy"] == 1
        node.supervisor.failed("attach server", KeyError("defect"))
        assert (node.figures()["healthy"], node.figures()["threads_down"]) == (0, 1)


def test_a_node_that_cannot_even_begin_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to keep, and whoever started it must learn of it."""
    met = fail_once(monkeypatch, Follower, "_open")
    with FakeMaster() as master, running(master.address, tmp_path) as node:
        failure = wait_until(lambda: node.failure, what="it gives up")
        assert "cannot begin" in str(failure)
        assert met


@pytest.mark.parametrize(("owner", "method"), [(AttachServer, "_accept"), (DataServer, "_admit")])
def test_a_defect_in_a_server_costs_a_connection_and_not_the_server(
    owner: type, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(tmp_path) as served:
        met = fail_once(monkeypatch, owner, method)
        for connect in (served.raw_unix, served.raw):
            with connect():
                pass
        wait_until(lambda: met, what="the defect was met")
        with served.link() as link, served.connection() as connection:
            assert link is not None
            connection.read_into(served.wanted(0, memoryview(bytearray(8))), soon())
        assert served.attach.alive
        assert served.data.alive


def test_a_defect_in_the_loop_of_a_worker_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    met = fail_once(monkeypatch, CommandWorker, "_run")
    done: list[int] = []

    def order() -> Any:
        done.append(1)
        yield from ()

    worker = CommandWorker("copies", "127.0.0.1:1", "", Supervisor())
    worker.start()
    try:
        wait_until(lambda: met, what="the defect was met")
        worker.add("an order", order())
        wait_until(lambda: done, what="it was carried out")
    finally:
        worker.stop()
