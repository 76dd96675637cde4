"""What commands print with --json is what the schema in the documentation says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from holdfast.cli.cluster import clients
from holdfast.cli.output import MOST_EXACT, plain
from holdfast.errors import Unreachable
from holdfast.messages.of_masters import ClientInfo, ClientList
from holdfast.messages.requests import ObjectStat, Status
from tests.cli.conftest import Run
from tests.cli.fake_cache import FakeCache
from website.json_schema import DOCUMENTS, page, schema

COMMANDS = {
    "put": ["put", "new", "FILE"],
    "get": ["get", "k"],
    "exists": ["exists", "k", "absent"],
    "ls": ["ls"],
    "ls --long": ["ls", "--long"],
    "rm": ["rm", "k", "absent"],
    "stat": ["stat", "k", "absent"],
    "touch": ["touch", "k", "absent"],
    "pin": ["pin", "k", "absent", "--hard"],
    "unpin": ["unpin", "k", "absent"],
    "explain": ["explain", "absent"],
    "status": ["status"],
    "nodes": ["nodes"],
    "clients": ["clients"],
    "error": ["get", "absent"],
}


def held_to_schema(name: str, document: Any) -> None:
    jsonschema.Draft202012Validator(schema(name)).validate(document)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_document_is_as_its_schema_says(
    run: Run,
    cache: FakeCache,
    masters: dict[str, Status],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache.stored = {"k": b"1"}
    masters["127.0.0.1:7070"] = cache.status()
    one = ClientInfo("39c061cb05", "", "", "client", "local", 1, 1, 2, 3, 4, 5.0, 6.0, 7_000)
    monkeypatch.setattr(clients, "ask_one", lambda *_: ClientList([one], 1))
    (tmp_path / "FILE").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    held_to_schema(name, run(*COMMANDS[name], "--json").data)


def test_an_empty_cluster_and_masters_that_do_not_answer_fit_too(run: Run, cache: FakeCache) -> None:
    held_to_schema("status", run("status", "--json").data)
    held_to_schema("explain", run("explain", "absent", "--json").data)
    cache.failure = Unreachable("no")
    held_to_schema("error", run("exists", "k", "--json").data)


def test_a_number_that_readers_would_round_is_a_text(
    run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = ObjectStat("k", (7 << 52) + 1, 5, MOST_EXACT, 0, 0, 0, False, [])
    monkeypatch.setattr(cache, "stat", lambda _: stat)
    told = run("stat", "k", "--json").data
    assert (told[0]["id"], told[0]["checksum"], told[0]["size_bytes"]) == (str((7 << 52) + 1), MOST_EXACT, 5)
    assert plain(-MOST_EXACT - 1) == str(-MOST_EXACT - 1)
    assert plain(True) is True


def test_the_page_has_every_document() -> None:
    """`snapshot` needs a master that writes one, so that only its schema is looked at here."""
    assert set(DOCUMENTS) == {*COMMANDS, "snapshot"}
    shown = page()
    for name, document in DOCUMENTS.items():
        assert f"## {name}\n" in shown
        assert json.dumps(document, indent=1) in shown
        jsonschema.Draft202012Validator.check_schema(schema(name))
