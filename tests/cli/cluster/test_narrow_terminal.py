"""What people see of a cluster fits a terminal of 80 columns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.cli.cluster import clients, status
from holdfast.messages.of_masters import ClientInfo, ClientList
from holdfast.messages.requests import Status
from tests.cli.conftest import Run
from tests.cli.fake_cache import FakeCache

BOLD = re.compile("\x1b\\[[0-9]*m")


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("verb", ["status", "nodes", "clients"])
def test_a_table_fits_80_columns(
    run: Run, cache: FakeCache, masters: dict[str, Status], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters["127.0.0.1:7070"] = cache.status()
    one = ClientInfo(
        "39c061cb05",
        "a-trainer-of-some-name",
        "team-a",
        "client",
        "10.0.0.1:38194",
        4_194_304,
        1,
        2,
        3,
        4,
        5.0,
        6.0,
        7_000,
    )
    answers: dict[Any, Any] = {ClientList: ClientList([one], 1)}
    real = clients.ask_one
    monkeypatch.setattr(clients, "ask_one", lambda *given: answers.get(given[3]) or real(*given))
    shown = BOLD.sub("", run(verb, terminal=True).text)
    assert max(map(len, shown.splitlines())) <= 80
    assert len(shown.splitlines()) > 1
    # Into a pipe every column is there.
    headings = {"status": status.HEADINGS, "nodes": ("LAST TOLD", "SEGMENTS"), "clients": clients.HEADINGS}[verb]
    assert all(heading in run(verb).text for heading in headings)
