"""The parts of `make bench-peers` that need no other store: pictures, latencies, and how a trace is served."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from benchmarks import peer_pictures
from benchmarks.peer_lines import Latencies, Line
from benchmarks.peer_pictures import times_as_good
from benchmarks.peer_stores import first_missing


def test_the_slowest_in_a_hundred_is_told_beside_the_middle_one_and_the_first_round_is_not_counted() -> None:
    latencies = Latencies()
    latencies.note("get", "ours", 0, [9.0])
    latencies.note("get", "ours", 1, [number / 1e6 for number in range(200, 0, -1)])
    middle, slowest = latencies.lines("get", "get of one key")
    assert (middle.name, slowest.name) == ("get of one key: p50 of a call", "get of one key: p99 of a call")
    assert [round(line.figures["ours"][0]) for line in (middle, slowest)] == [101, 199]
    assert middle.less_is_better


def test_a_request_reads_up_to_the_first_block_that_is_missing() -> None:
    assert first_missing([True, True, False, True]) == 2
    assert first_missing([True]) == 1
    assert first_missing([]) == 0


def test_a_store_is_ahead_to_the_right_of_one_whichever_way_is_better() -> None:
    quick = Line("put", "ops/s", {"holdfast": [40.0, 60.0], "Redis": [10.0, 30.0]})
    small = Line("memory", "bytes", {"holdfast": [50.0], "Redis": [100.0]}, less_is_better=True)
    assert [times_as_good(line, "Redis") for line in (quick, small)] == [3.0, 2.0]
    assert times_as_good(quick, "memcached") is None


def test_pictures_are_drawn_of_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="the extra lab is not installed")
    latencies = Latencies()
    for store in ("holdfast", "Mooncake"):
        latencies.note("get", store, 1, [1e-5, 2e-5])
    get = Line("get, 1 KiB", "ops/s", {"holdfast": [2.0], "Mooncake": [1.0]})
    measured = tmp_path / "peers.json"
    measured.write_bytes(msgspec.json.encode([get, *latencies.lines("get", get.name)]))
    monkeypatch.setattr("sys.argv", ["peer_pictures", str(measured), str(tmp_path)])
    assert peer_pictures.main() == 0
    drawn = {name: (tmp_path / name).read_text() for name in ("peers-ratios.svg", "peers-latency.svg")}
    for text in drawn.values():
        assert "get, 1 KiB<" in text
        assert "Mooncake<" in text
        assert not re.search(r"[ \t]$", text, re.MULTILINE)
    assert peer_pictures.main() == 0
    assert drawn == {name: (tmp_path / name).read_text() for name in drawn}, "the same figures give the same pictures"
