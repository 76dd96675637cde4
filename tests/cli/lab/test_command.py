"""`holdfast lab`: the workloads, and a small run of every preset on real clusters, with a real kill in each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from holdfast.cli.lab import command
from holdfast.cli.lab.command import chosen, course_of, memory_for, run_all
from holdfast.cli.lab.report import NO_FAILOVER, bars, row_of
from holdfast.cli.lab.run import Outcome, Replay, Trial
from holdfast.cli.lab.workload import conversations, distinct_blocks, traced, value_of
from holdfast.cli.main import main
from holdfast.cli.output import Output
from holdfast.cli.processes.local_cluster import ClusterWanted
from holdfast.errors import BadValue, Refused
from holdfast.settings import PRESETS, LabSettings


def test_conversations_go_on_with_what_they_were() -> None:
    requests = conversations(500, seed=3)
    assert requests == conversations(500, seed=3)
    assert requests != conversations(500, seed=4)
    seen: set[int] = set()
    known = 0
    for request in requests:
        leading = [block in seen for block in request]
        assert leading == sorted(leading, reverse=True), "what is new comes after what is not"
        known += sum(leading)
        seen.update(request)
    assert known > sum(map(len, requests)) / 2
    assert distinct_blocks(requests) == len(seen)


def test_a_trace_is_read_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"timestamp": i, "hash_ids": [0, i]}) + "\n" for i in range(1, 11)))
    assert traced(path, 6) == [(0, i) for i in range(1, 7)]
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(BadValue, match="line 11"):
        traced(path, 20)
    path.write_text("")
    with pytest.raises(BadValue, match="0 requests"):
        traced(path, 20)


def test_a_block_says_what_its_bytes_are() -> None:
    assert len(value_of(7, 1_000)) == 1_000
    assert value_of(7, 1_000) != value_of(8, 1_000)
    assert value_of(7, 1_000) == value_of(7, 1_000)


def test_presets_are_chosen_by_name() -> None:
    assert chosen("") == list(PRESETS)
    assert chosen("timer, follow") == ["follow", "timer"]
    with pytest.raises(BadValue, match="promote-only"):
        chosen("timer,quick")


def test_memory_is_a_share_of_the_blocks() -> None:
    assert memory_for([tuple(range(1_000))], 64 << 10, 0.5) == 31 << 20
    assert memory_for([(1,)], 64, 0.5) == 1 << 20


def test_a_row_and_its_bars_are_for_people() -> None:
    outcome = Outcome("timer", gone=3, hit_rate_after=0.5, outage_ms=41.4, hit_rates=[0.0, 0.5, 1.0, 0.99])
    assert row_of(outcome)[0] == "timer"
    assert "50.0%" in row_of(outcome)
    assert "-" in row_of(outcome), "without a control nobody knows what was lost"
    outcome.hit_rate_lost = -0.0123
    assert "-1.2 points" in row_of(outcome)
    assert row_of(outcome, NO_FAILOVER)[0] == NO_FAILOVER
    assert bars(outcome.hit_rates) == "▁▅|██"


def test_the_picture_is_drawn_or_says_what_it_needs(tmp_path: Path) -> None:
    from holdfast.cli.lab.report import draw

    outcomes = [Outcome(name, gone=1, hit_rates=[0.1, 0.2, 0.3, 0.4]) for name in PRESETS]
    path = tmp_path / "lab.png"
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        with pytest.raises(Refused, match=r"holdfast\[lab\]"):
            draw(outcomes, path)
    else:
        draw(outcomes, path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_keys_are_listed_with_what_was_evicted_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that a primary evicts while its keys are listed, or its successor after the kill, is not lost."""
    evicted = iter([3, 5, 5, 5])
    listings = iter([["lab/1", "lab/2", "lab/3"], ["lab/1"]])
    trial = Trial("follow", [], 1, 0.0, ClusterWanted(tmp_path, tmp_path, 1 << 20), Event())
    monkeypatch.setattr(trial, "_status", lambda name: SimpleNamespace(evicted=next(evicted)))
    assert trial._listed(SimpleNamespace(keys=lambda prefix: next(listings)), "master") == ({"lab/1"}, 5)
    replay = Replay(SimpleNamespace(), [], 1, Event())
    for evicted, gone, kept in ((1, 1, 0), (2, 0, 0), (5, 0, 3)):
        trial._conclude(replay, 0, {"lab/1", "lab/2", "lab/3"}, {"lab/1"}, evicted)
        assert (trial.outcome.gone, trial.outcome.kept) == (gone, kept), "two are missing; so many were evicted"


@pytest.mark.timeout(300)
def test_every_preset_survives_the_kill(capsys: pytest.CaptureFixture[str]) -> None:
    """I2: no read gives wrong bytes, whoever evicts; I1: where evictions are logged, nothing is missing either."""
    assert main(["lab", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    outcomes = {one["preset"]: one for one in found["presets"]}
    assert list(outcomes) == list(PRESETS)
    assert all(one["wrong"] == 0 for one in outcomes.values())
    assert all(one["evicted"] > 0 for one in outcomes.values()), "the workload must not fit"
    assert all(one["hit_rate_after"] > 0 and one["outage_ms"] for one in outcomes.values())
    assert (outcomes["follow"]["gone"], outcomes["follow"]["kept"]) == (0, 0)
    assert outcomes["promote-only"]["gone"] == 0
    assert outcomes["promote-only"]["kept"] > 0, "what the primary had evicted without a word is there again"
    assert found["control"] is None


@pytest.mark.timeout(120)
def test_a_control_tells_what_the_hit_rate_would_have_been() -> None:
    """The same requests once more, with nobody killed."""
    course = replace(course_of(LabSettings(quick=True, requests=120)), at_once=2)
    (killed,), control = run_all(course, ["follow"], Event(), Output(as_json=True), controlled=True)
    assert control is not None
    assert killed.outage_ms
    assert control.outage_ms is None
    assert (control.gone, control.kept, control.wrong) == (0, 0, 0)
    assert control.hit_rate_after > 0
    assert killed.hit_rate_lost == control.hit_rate_after - killed.hit_rate_after


def test_nothing_is_started_once_it_shall_stop(capsys: pytest.CaptureFixture[str]) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        run_all(course_of(LabSettings(quick=True)), ["follow", "timer"], stop, Output(), controlled=True)
    assert not capsys.readouterr().err


@pytest.mark.timeout(120)
def test_a_cluster_that_cannot_start_ends_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """I10: and says why; nothing is left running."""
    assert main(["lab", "--quick", "--json", "--coordination", "nowhere://here"]) != 0
    assert "error" in json.loads(capsys.readouterr().out)
    assert not [child for child in children_of_this_process() if b"holdfast" in child]


def children_of_this_process() -> list[bytes]:
    pids = b" ".join(read(task / "children") for task in Path("/proc/self/task").iterdir()).decode().split()
    return [read(Path(f"/proc/{pid}/cmdline")) for pid in pids]


def read(path: Path) -> bytes:
    """Empty where a thread that was joined, or a process that was waited for, has gone meanwhile."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_ctrl_c_in_a_lab_says_that_nothing_of_it_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_all", interrupted)
    assert main(["lab", "--quick"]) == 130
    assert (
        capsys.readouterr().err == "holdfast: interrupted; the lab's processes have ended, and nothing of it is left\n"
    )
