"""What a client of `make chaos` writes down about leases."""

from __future__ import annotations

from pathlib import Path

from chaos.client import Witness
from chaos.history import HistoryFile, read_history
from chaos.workload import Step
from holdfast.errors import NodeLost

HOUR_NS = 3_600 * 10**9


def test_a_read_that_failed_or_is_under_way_may_have_left_leases(tmp_path: Path) -> None:
    """I7: a batch that met a lost node has located its other keys, and so has one that has not ended."""
    history = HistoryFile(tmp_path / "client-1.0.history")
    witness = Witness(history, HOUR_NS)
    witness.began(Step("get_many", 1, ("k", "lost")))
    witness.failed(Step("get_many", 1, ("k", "lost")), NodeLost("it does not answer"))
    witness.began(Step("get", 2, ("k",)))
    witness.began(Step("get", 3, ("slow",)))
    witness.began(Step("view", 4, ("slow",)))
    witness.began(Step("get", 5, ("fresh",)))
    witness.began(Step("exists", 6, ("k",)))
    history.close()
    calls = read_history(tmp_path / "client-1.0.history").calls
    assert [sorted(call.leased_since_ns) for call in calls] == [[], ["k"], [], ["slow"], [], []]
