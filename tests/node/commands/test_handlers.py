"""A node refuses what its owner did not give, whatever it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import BadValue, CommandRefused
from holdfast.messages.commands import UpdateVolume, encode_body
from holdfast.node.host_capacity import most_memory
from holdfast.node.node import Node, NodePlan
from tests.node.rig import SIZE


def test_a_node_lends_at_most_its_own_maximum(tmp_path: Path) -> None:
    node = Node(NodePlan("127.0.0.1:1", "n1", SIZE, socket_dir=tmp_path, max_size_bytes=2 * SIZE))
    try:
        assert node.figures()["max_size_bytes"] == 2 * SIZE
        for force in (False, True):
            with pytest.raises(CommandRefused, match=f"{2 * SIZE:,}"):
                node._commands.perform("volume_update", encode_body(UpdateVolume(2 * SIZE + 4096, force=force)))
        node._commands.perform("volume_update", encode_body(UpdateVolume(2 * SIZE)))
    finally:
        node.stop()
    with pytest.raises(BadValue, match="--max-size"):
        Node(NodePlan("127.0.0.1:1", "n1", SIZE, socket_dir=tmp_path, max_size_bytes=SIZE - 4096))


def test_by_default_the_maximum_is_the_memory_of_the_machine_or_its_group(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert most_memory(tmp_path) == 0
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1000 kB\n")
    assert most_memory(tmp_path) == 1_024_000
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert most_memory(tmp_path) == 1_024_000
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("500\n")
    assert most_memory(tmp_path) == 500
