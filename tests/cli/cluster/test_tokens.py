"""`holdfast token`: the token goes to stdout once, its entry to stderr or into the file."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from holdfast.identity.identities import Identities, hash_of
from holdfast.identity.identities_file import parse_identities, read_identities
from tests.cli.conftest import Run

NOW = 1_800_000_000.0


def test_a_new_token_and_its_entry_are_printed_apart(run: Run) -> None:
    done = run("token", "new", "trainer", "--role", "writer", "--tenant", "blue", "--not-after", "2099-01-01")
    assert done.code == 0, done.err
    (token,) = done.text.split()
    found = Identities(parse_identities(done.err, "stderr")).of_token(token, NOW)
    assert (found.name, found.tenant) == ("trainer", "blue")
    assert token not in done.err


def test_the_entry_goes_into_the_file_and_no_secret_with_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ids"
    first = run("token", "new", "trainer", "--role", "writer", "--role", "node", "--identities", str(path))
    second = run("token", "new", "trainer", "--identities", str(path), "--json")
    known = Identities(read_identities(path))
    for token in (first.text.strip(), second.data["token"]):
        assert known.of_token(token, NOW).name == "trainer"
        assert token not in path.read_text()
    assert parse_identities(second.data["entry"], "it")
    assert first.text.strip() not in first.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["new"], "say what to do"),
        (["old", "x"], "say what to do"),
        (["new", "x"], "roles must be some of"),
        (["new", "x", "--role", "king"], "roles must be some of"),
        (["new", "x y", "--role", "reader"], "name must be"),
        (["new", "x", "--role", "reader", "--not-after", "soon"], "not TOML"),
    ],
)
def test_what_makes_no_entry_makes_no_token(run: Run, arguments: list[str], said: str) -> None:
    done = run("token", *arguments)
    assert done.code == 1
    assert said in done.err
    assert "hf_" not in done.text + done.err


def test_a_token_is_hashed_from_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("s3cret\n"))
    assert run("token", "hash").text.strip() == hash_of("s3cret")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert run("token", "hash").code == 1


def test_an_old_token_is_taken_out_from_stdin(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ids"
    old, new = [run("token", "new", "trainer", "--role", "writer", "--identities", str(path)).text for _ in range(2)]
    monkeypatch.setattr(sys, "stdin", io.StringIO(old))
    done = run("token", "remove", "--identities", str(path))
    assert done.code == 0, done.err
    assert "a token of trainer was removed" in done.text
    [entry] = read_identities(path)
    assert entry.hashes == (hash_of(new.strip()),)
    assert old.strip() not in done.text + done.err
    assert run("token", "remove").code == 1
