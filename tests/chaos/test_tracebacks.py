"""A traceback in the log of any process of a run is a defect of the run."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.tracebacks import tracebacks

FAILED = {"event": "a step of upkeep failed", "exception": "Traceback (most recent call last):\n  ...\nKeyError: 'k'"}


def test_errors_that_nothing_foresaw_are_told_once_with_their_number(tmp_path: Path) -> None:
    for name in ("master-1", "node-1", "etcd"):
        (tmp_path / name).mkdir()
    foreseen = {"event": "the log takes no batch", "level": "warning"}
    lines = [json.dumps(FAILED), json.dumps(foreseen), json.dumps(FAILED), json.dumps(FAILED)[:30]]
    (tmp_path / "master-1" / "log").write_text("\n".join(lines))
    (tmp_path / "node-1" / "log").write_text(json.dumps(foreseen) + "\n")
    (tmp_path / "etcd" / "log").write_text("2026-01-01 W | not in JSON\n[1]\n")
    assert tracebacks(tmp_path) == ["master-1: a step of upkeep failed (KeyError: 'k'), logged 2 times"]
    (tmp_path / "node-1" / "log").write_text(json.dumps({**FAILED, "event": "an order failed unexpectedly"}))
    assert tracebacks(tmp_path)[1] == "node-1: an order failed unexpectedly (KeyError: 'k'), logged 1 times"
