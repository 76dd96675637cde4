"""What a node says of earlier primaries, against a master that suspects real processes (I12)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.messages.of_nodes import ReportGone, ReportUsage
from holdfast.node.node import Node, NodePlan
from holdfast.witness import this_process
from tests.node.rig import FakeMaster
from tests.test_witness import named_process
from tests.waiting import wait_until


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    with FakeMaster() as master:
        yield master


@pytest.fixture
def node(master: FakeMaster, tmp_path: Path) -> Iterator[Node]:
    """Not yet started."""
    node = Node(NodePlan(master.address, "n1", 1 << 20, socket_dir=tmp_path))
    try:
        yield node
    finally:
        node.stop()


def test_a_node_says_of_a_suspect_of_its_machine_when_it_is_gone_and_of_a_stopped_one_nothing(
    master: FakeMaster, node: Node
) -> None:
    with named_process() as (killed, killed_name), named_process() as (stopped, stopped_name):
        stopped.send_signal(signal.SIGSTOP)
        master.suspects = [killed_name, stopped_name]
        node.start()
        # The figures of a node that has registered follow whatever it has to say.
        wait_until(lambda: master.asked(ReportUsage), what="the node has registered and looked")
        assert not master.asked(ReportGone), "both live"
        killed.kill()
        [word] = wait_until(lambda: master.asked(ReportGone), what="the node testifies")
        assert (word.session, word.boot, word.machine) == (max(master.sessions), node.boot, this_process().machine)
        assert word.gone == [killed_name]
        stopped.kill()
        wait_until(lambda: len(master.asked(ReportGone)) == 2, what="the node testifies of the other")
        assert master.asked(ReportGone)[1].gone == [stopped_name]


def test_a_node_says_nothing_of_a_suspect_of_another_machine(master: FakeMaster, node: Node) -> None:
    here = this_process()
    master.suspects = [here._replace(pid=1 << 21, machine="another"), here._replace(pid=1 << 21, machine="")]
    node.start()
    wait_until(lambda: master.asked(ReportUsage), what="the node has registered and looked")
    assert not master.asked(ReportGone)


def test_a_word_that_was_not_answered_is_said_again(master: FakeMaster, node: Node) -> None:
    master.suspects = [this_process()._replace(started=1)]
    usual, refused = master.usual_answer, []

    def answer(request: object) -> object:
        if isinstance(request, ReportGone) and not refused:
            refused.append(request)
            master.cut()
        return usual(request)  # type: ignore[arg-type]

    master.answer = answer  # type: ignore[assignment]
    node.start()
    wait_until(lambda: len(master.asked(ReportGone)) > 1, what="the word is said again")
