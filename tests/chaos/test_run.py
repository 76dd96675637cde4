"""What a chaos run reads when all is healed, key by key."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from chaos.history import Told
from chaos.run import read_all
from holdfast.client.bytes import failing_nodes
from holdfast.simulation.scripts.history import ClientCall, value_of
from holdfast.simulation.scripts.script import Operation
from tests.client.fake_master import FakeMaster, closed_port
from tests.node.rig import Served


def test_a_key_that_no_node_gives_is_unreadable_and_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: get_many leaves it out, as one that is not stored; the verdict counts only the latter as lost or removed."""
    monkeypatch.setattr(failing_nodes, "FIRST_PROBE_SECONDS", 1_000.0)
    operation = Operation(at_ms=0, client=0, verb="put_many", number=7, keys=("absent", "kept", "lost"), size_bytes=64)
    told = Told("client-1.0", [ClientCall(operation, 0)])
    with Served(tmp_path) as node, FakeMaster(node, local=False) as master:
        with holdfast.connect(master.address) as writer:
            for key, handle in (("lost", 1), ("kept", 2)):
                writer.put(key, value_of(7, 64), prefer=str(master.segment_name(handle)))
        assert {row[1] for row in master.objects.values()} == {1, 2}
        master.elsewhere[1] = closed_port()
        with holdfast.connect(master.address, timeout=3) as reader:
            judged, unreadable = read_all(reader, [told])
    assert judged == {"absent": None, "kept": [7, 64]}
    assert list(unreadable) == ["lost"]
    assert unreadable["lost"].startswith("node_lost: ")
