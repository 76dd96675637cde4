"""The verdict of a chaos run: what it counts as down, lost, wrong and impossible, and what it excuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.history import HistoryFile, Told, read_history, seen
from chaos.log_follower import Away
from chaos.verdict import Run, Struck, judge
from holdfast.simulation.checks.restore_checks import Fate
from holdfast.simulation.scripts.history import ClientCall, Outcome, value_of
from holdfast.simulation.scripts.script import Operation, Verb

S = 1_000_000_000


def call(
    verb: Verb, number: int, key: str, at_s: float, took_s: float = 0.01, result: object = True, size: int = 0
) -> ClientCall:
    operation = Operation(at_ms=0, client=0, verb=verb, number=number, keys=(key,), size_bytes=size)
    made = ClientCall(operation, int(at_s * S), int((at_s + took_s) * S), "done", result)
    if verb == "get":
        made.result = {key: None if result is None else value_of(int(str(result)), 8)}
    return made


def run(
    *calls: ClientCall, fates: list[Fate] | None = None, faults: list[Struck] | None = None, until_s: float = 10
) -> Run:
    told = Told("client-1.0", list(calls))
    for one in calls:
        if one.operation.verb == "get" and isinstance(one.result, dict):
            for key, value in one.result.items():
                if value is not None:
                    told.reads.append((one, key, int.from_bytes(value, "little"), 64))
    return Run(
        began_ns=0,
        ended_ns=int(until_s * S),
        faults=faults or [],
        told=[told],
        fates=fates if fates is not None else [Fate("k", 64)],
        terms_ns=[],
        leader_ttl_ms=1_500,
        judged={},
    )


def busy(until_s: float = 10, but: tuple[float, float] = (0, 0)) -> list[ClientCall]:
    """A call every tenth of a second, except in between."""
    times = [step / 10 for step in range(int(10 * until_s))]
    return [
        call("exists", 100 + i, "other", at, result=False) for i, at in enumerate(times) if not but[0] < at < but[1]
    ]


PUT = call("put", 1, "k", 0.0, size=64)


def test_a_run_in_which_all_went_well_is_good() -> None:
    verdict = judge(run(PUT, *busy(), call("get", 2, "k", 9.95, result=1)))
    assert verdict.is_good
    assert (verdict.availability, verdict.longest_gap_s, verdict.calls) == (1.0, 0.0, 102)


def test_a_gap_and_a_slow_call_are_down_once_and_go_to_the_fault_that_began_before_them() -> None:
    faults = [Struck("early", "x", 0, S), Struck("primary killed", "master-1", int(3.9 * S), 5 * S)]
    quiet = busy(but=(4.0, 6.0))
    slow = call("exists", 2, "other", 4.0, took_s=1.5, result=False)
    verdict = judge(run(PUT, *quiet, slow, faults=faults))
    assert verdict.longest_gap_s == pytest.approx(2.0, abs=0.15)
    assert verdict.availability == pytest.approx(0.8, abs=0.02)
    assert verdict.by_fault["primary killed"]["longest_gap_s"] == verdict.longest_gap_s
    assert verdict.by_fault["early"]["longest_gap_s"] == 0
    assert verdict.is_good, "being away is no loss"


def test_a_client_that_was_struck_itself_makes_nobody_unavailable() -> None:
    faults = [Struck("client stopped", "client-1", 4 * S, 6 * S)]
    assert judge(run(PUT, *busy(but=(4.0, 6.0)), faults=faults)).availability == 1.0
    others = [Struck("client stopped", "client-10", 4 * S, 6 * S)]
    assert judge(run(PUT, *busy(but=(4.0, 6.0)), faults=others)).availability < 0.9


def test_an_acknowledged_put_that_is_in_no_log_is_lost() -> None:
    """I1."""
    verdict = judge(run(PUT, fates=[]))
    assert not verdict.is_good
    assert "not in the log" in verdict.lost[0]


def test_an_object_that_the_log_holds_and_nobody_can_read_is_lost() -> None:
    """I1."""
    ended = run(PUT)
    ended.judged = {"k": None}
    assert "cannot be read" in judge(ended).lost[0]
    ended.judged, ended.unreadable = {}, {"k": "bytes_lost: no"}
    assert "bytes_lost" in judge(ended).lost[0]


@pytest.mark.parametrize(("left", "by"), [("UNMOUNTED", "node killed"), ("FILE_LOST", "node's files spoiled")])
def test_memory_and_files_that_are_gone_are_excused_by_their_own_faults_only(left: str, by: str) -> None:
    gone = [Fate("k", 64, left)]
    miss = call("get", 2, "k", 5.0, result=None)
    for other in ([], [Struck("node stopped", "node-1", S, 2 * S)]):
        assert "no fault of the run explains it" in judge(run(PUT, miss, fates=gone, faults=other)).lost[0]
    assert judge(run(PUT, miss, fates=gone, faults=[Struck(by, "node-1", S, 2 * S)])).is_good


def test_a_miss_that_nothing_explains_is_impossible() -> None:
    """I7 the other way round: what is there is seen."""
    verdict = judge(run(PUT, call("get", 2, "k", 5.0, result=None)))
    assert "fit no order" in verdict.impossible[0]


def test_a_removed_object_that_is_seen_again_is_impossible() -> None:
    """I7."""
    removed = call("force_remove", 2, "k", 2.0, result=1)
    verdict = judge(run(PUT, removed, call("get", 3, "k", 5.0, result=1), fates=[Fate("k", 64, "REMOVE")]))
    assert "fit no order" in verdict.impossible[0]


def test_bytes_of_another_put_are_wrong() -> None:
    """I2."""
    other = call("put", 7, "other", 0.5, size=64)
    verdict = judge(run(PUT, other, call("get", 3, "k", 5.0, result=7), fates=[Fate("k", 64), Fate("other", 64)]))
    assert verdict.wrong == ["client-1.0, call 3 read 64 bytes of put 7 under k"]


def test_a_history_is_read_back_as_it_was_seen_and_a_killed_writer_leaves_a_call_open(tmp_path: Path) -> None:
    path = tmp_path / "client-1.0.history"
    history = HistoryFile(path)
    history.began(1, "put", ["k"], 64, {}, "hard")
    history.ended(1, "done", True)
    history.began(2, "get", ["k"], 0, {"k": 5}, "")
    history.ended(2, "done", seen(value_of(1, 64)))
    history.began(3, "get", ["k"], 0, {}, "")
    history.ended(3, "done", seen(value_of(1, 32) + value_of(2, 32)))
    history.defect("boom")
    history.began(4, "remove", ["k"], 0, {}, "")
    history.close()
    with path.open("a") as file:
        file.write('{"end":4,"at":')
    told = read_history(path)
    outcomes: list[Outcome] = [one.outcome for one in told.calls]
    assert outcomes == ["done", "done", "done", "pending"]
    assert told.calls[0].operation.pin == "hard"
    assert told.calls[1].leased_since_ns == {"k": 5}
    assert [(key, number, length) for _, key, number, length in told.reads] == [("k", 1, 64), ("k", -1, 64)]
    assert told.defects == ["client-1.0: boom"]
    assert len(judge(replace(run(), told=[told])).wrong) == 1


def test_what_is_on_a_disk_that_is_away_may_be_missed_and_found_again() -> None:
    """The log says when: a miss at another time, or of another key, is impossible as ever."""
    gets = [call("get", 2 + i, "k", at, result=seen_) for i, (at, seen_) in enumerate(((1, 1), (4, None), (7, 1)))]
    told = run(PUT, *gets)
    assert judge(told).impossible
    assert not judge(replace(told, away=[Away("k", 3 * S, 5 * S)])).impossible
    assert judge(replace(told, away=[Away("k", 6 * S, 8 * S)])).impossible
    assert judge(replace(told, away=[Away("other", 3 * S, 5 * S)])).impossible


def test_an_object_that_a_client_left_out_of_its_question_may_be_missed_and_found_again(tmp_path: Path) -> None:
    """While no node that holds it answers this client, `exists` says no (ADR 41). Else that is impossible."""

    def told(without: bool) -> Told:
        path = tmp_path / f"client-1.{without:d}.history"
        history = HistoryFile(path)
        history.began(1, "put", ["k"], 64, {}, "")
        history.ended(1, "done", True)
        history.began(2, "exists", ["k"], 0, {}, "")
        history.ended(2, "done", False, without=without)
        history.began(3, "get", ["k"], 0, {}, "")
        history.ended(3, "done", seen(value_of(1, 64)))
        history.close()
        return read_history(path)

    assert judge(replace(run(), told=[told(without=False)])).impossible
    assert not judge(replace(run(), told=[told(without=True)])).impossible
