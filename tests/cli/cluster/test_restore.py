"""How `restore` waits for a master, over one that is scripted; the runbook itself is played in tests/failover."""

from __future__ import annotations

import pytest

from holdfast.cli.cluster import restore
from holdfast.cli.output import Output
from holdfast.errors import DeadlineExceeded, TryAgain
from holdfast.instant import now_seconds
from holdfast.messages.of_masters import HistoriesDescribed, HistoryFound

FOUND = HistoryFound(7, "memory", 1, 100, 10, 1_000)
SERVED = HistoriesDescribed(
    "master-1", "primary", 8, 10, [], older=7, restored=10, unverified=10, unverified_nodes=["n"]
)


def waiting(monkeypatch: pytest.MonkeyPatch, answers: list[HistoriesDescribed]) -> HistoriesDescribed:
    """What is reported if the master says this, and then no more before the time is up."""

    def ask_one(*_: object) -> HistoriesDescribed:
        if answers:
            return answers.pop(0)
        raise DeadlineExceeded("the master did not answer in time")

    monkeypatch.setattr(restore, "ask_one", ask_one)
    chosen = restore.RestoreSource(FOUND, "127.0.0.1:7070", "master-1")
    return restore.await_restored(Output(), chosen, 0, "", now_seconds() + 0.3, for_nodes=True)


def test_a_master_too_busy_to_answer_at_the_end_is_reported_as_it_was_last_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert waiting(monkeypatch, [SERVED]) is SERVED


def test_a_master_that_never_answers_is_said_to_be_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TryAgain, match="may still happen"):
        waiting(monkeypatch, [])
