"""New tokens, and how their entries come into a file of identities."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from holdfast.errors import BadValue
from holdfast.identity.identities import Identities, hash_of
from holdfast.identity.identities_file import BadIdentities, read_identities
from holdfast.identity.new_tokens import NewEntry, append_entry, fresh_token, remove_token
from holdfast.identity.roles import Role
from holdfast.identity.secret_files import BadSecretFile
from tests.waiting import run_together

NOW = 1_800_000_000.0


def test_a_token_has_256_random_bits() -> None:
    made = {fresh_token() for _ in range(100)}
    assert len(made) == 100
    assert {len(token) for token in made} == {len("hf_") + 64}


def test_an_entry_is_appended_and_everything_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    first, second = fresh_token(), fresh_token()
    append_entry(path, NewEntry("trainer", ["writer"], tenant="blue", not_after="2099-01-01"), first)
    path.write_text("# ours\n" + path.read_text().rstrip("\n"))
    before = path.read_text()
    append_entry(path, NewEntry("router", ["reader", "node"]), second)
    assert path.read_text().startswith(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    known = Identities(read_identities(path))
    assert known.of_token(first, NOW).tenant == "blue"
    assert known.of_token(second, NOW).roles == {Role.READER, Role.NODE}
    assert first not in path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["ids"], "no draft is left"


def test_a_further_token_of_a_name_is_like_the_first(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    old, new = fresh_token(), fresh_token()
    append_entry(path, NewEntry("trainer", ["operator"], "blue", shared_memory=True), old)
    append_entry(path, NewEntry("trainer", not_after="2099-01-01"), new)
    known = Identities(read_identities(path))
    mine, other = known.of_token(old, NOW), known.of_token(new, NOW)
    assert (mine.roles, mine.tenant, mine.shared_memory) == (other.roles, other.tenant, other.shared_memory)


@pytest.mark.parametrize(
    "entry",
    [
        NewEntry("trainer", ["king"]),
        NewEntry("nobody"),
        NewEntry("a b", ["reader"]),
        NewEntry("x", ["reader"], not_after="soon"),
        NewEntry("trainer", ["reader"]),
    ],
)
def test_an_entry_that_would_spoil_the_file_is_not_written(tmp_path: Path, entry: NewEntry) -> None:
    path = tmp_path / "ids"
    append_entry(path, NewEntry("trainer", ["writer"]), fresh_token())
    before = path.read_text()
    with pytest.raises(BadIdentities):
        append_entry(path, entry, fresh_token())
    assert path.read_text() == before
    path.chmod(0o644)
    with pytest.raises(BadSecretFile):
        append_entry(path, NewEntry("other", ["writer"]), fresh_token())


def test_those_who_append_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    tokens = {f"n{number}": fresh_token() for number in range(16)}
    run_together(
        [
            threading.Thread(target=append_entry, args=(path, NewEntry(name, ["reader"]), token))
            for name, token in tokens.items()
        ]
    )
    assert {one.hashes for one in read_identities(path)} == {(hash_of(token),) for token in tokens.values()}


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    append_entry(real, NewEntry("a", ["reader"]), fresh_token())
    link.symlink_to(real)
    append_entry(link, NewEntry("b", ["reader"]), fresh_token())
    assert link.is_symlink()
    assert len(read_identities(real)) == 2


def test_a_token_is_taken_out_with_its_entry_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    old, new, other = fresh_token(), fresh_token(), fresh_token()
    append_entry(path, NewEntry("router", ["reader"]), other)
    append_entry(path, NewEntry("trainer", ["writer"], tenant="blue"), old)
    text = path.read_text() + "\n# the trainer's newest\n"
    path.write_text(text)
    append_entry(path, NewEntry("trainer"), new)
    assert remove_token(path, old) == "trainer"
    known = Identities(read_identities(path))
    assert known.of_token(new, NOW).tenant == "blue"
    assert known.of_token(other, NOW).name == "router"
    assert hash_of(old) not in path.read_text()
    assert "# the trainer's newest\n\n[[identity]]" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(BadValue, match="does not list this token"):
        remove_token(path, old)


@pytest.mark.parametrize(
    "tokens", ['["{old}", "{new}"]', '["{new}",\n  "{old}",  # the old one\n]', "['{old}','{new}',]"]
)
def test_one_of_several_tokens_of_an_entry_is_taken_out(tmp_path: Path, tokens: str) -> None:
    path = tmp_path / "ids"
    old, new = fresh_token(), fresh_token()
    listed = tokens.format(old=hash_of(old), new=hash_of(new))
    path.write_text(f'[[identity]]\nname = "a"\nroles = ["reader"]\ntokens = {listed}\ncertificates = ["a"]\n')
    path.chmod(0o600)
    assert remove_token(path, old) == "a"
    [entry] = read_identities(path)
    assert (entry.hashes, entry.certificates) == ((hash_of(new),), ("a",))


ONE = '[[identity]]\nname = "a"\nroles = ["reader"]\ntokens = ["{old}"]\n'
IN_ONE_LINE = 'identity = [{{name = "a", roles = ["reader"], tokens = ["{old}"], certificates = []}}, {b}]\n'
B = '{name = "b", roles = ["reader"], certificates = ["b"]}'


@pytest.mark.parametrize(("text", "why"), [(ONE, "nobody could connect"), (IN_ONE_LINE, "by hand")])
def test_a_file_that_cannot_be_edited_safely_stays_as_it_is(tmp_path: Path, text: str, why: str) -> None:
    path, old = tmp_path / "ids", fresh_token()
    path.write_text(text.format(old=hash_of(old), b=B))
    path.chmod(0o600)
    before = path.read_text()
    with pytest.raises(BadValue, match=why):
        remove_token(path, old)
    assert path.read_text() == before
