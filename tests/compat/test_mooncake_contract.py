"""holdfast's `mooncake.store` answers as the real one: the table of mooncake_cases.py against its recorded answers."""

from __future__ import annotations

import json

import pytest

from holdfast.compat.mooncake import store as ours
from tests.compat.mooncake_cases import CASES, UNSET, answers, differences
from tests.compat.record_mooncake import RECORDED
from tests.e2e.rig import Rig


def test_every_answer_is_the_real_one_or_listed_with_its_reason(cluster: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for any put on a busy machine; the few that find no room wait for it.
    monkeypatch.setenv("HOLDFAST_MOONCAKE_PUT_TIMEOUT", "4")
    given = answers(ours, cluster.address, crash_too=True)
    assert not differences(given, json.loads(RECORDED.read_text(encoding="utf-8")))


def test_the_table_is_whole() -> None:
    """Every case was recorded, or says what is wanted instead and why; names are said once."""
    real = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert (case.name in real) != case.crashes
        assert (case.ours == UNSET) == (not case.why), case.name


def test_a_difference_is_found() -> None:
    real = json.loads(RECORDED.read_text(encoding="utf-8"))
    wanted = {case.name: real.get(case.name, "") if case.ours == UNSET else repr(case.ours) for case in CASES}
    assert not differences(wanted, real)
    assert len(differences({**wanted, "get missing": "None"}, real)) == 1
