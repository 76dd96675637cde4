"""The file of identities: what it says, what it may not say, and how a new content comes into force."""

from __future__ import annotations

import datetime as dt
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue, NotAuthorized
from holdfast.identity.identities import hash_of
from holdfast.identity.identities_file import (
    MAX_FILE_BYTES,
    BadIdentities,
    IdentitiesFile,
    parse_identities,
    read_identities,
)
from holdfast.identity.roles import Role
from holdfast.identity.secret_files import BadSecretFile

NOW = 1_800_000_000.0
SECRET = "tok-3f9a-of-the-trainer"


def entry(name: str = "trainer", roles: str = '["writer"]', more: str = "", token: str = SECRET) -> str:
    return f'[[identity]]\nname = "{name}"\nroles = {roles}\ntokens = ["{hash_of(token)}"]\n{more}\n'


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    """As an editor or `token new` does: a new file in the place of the old one."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)
    return path


def test_an_entry_says_who_somebody_is_and_what_stands_for_them(tmp_path: Path) -> None:
    more = 'tenant = "blue"\ncertificates = ["a.example"]\nnot_after = 2027-06-30'
    (found,) = read_identities(written(tmp_path / "ids", entry(more=more)))
    assert (found.identity.name, found.identity.tenant) == ("trainer", "blue")
    assert found.identity.roles == {Role.WRITER, Role.READER}
    assert found.hashes == (hash_of(SECRET),)
    assert found.certificates == ("a.example",)
    assert found.not_after == dt.datetime(2027, 7, 1, tzinfo=dt.UTC).timestamp()


@pytest.mark.parametrize(
    ("more", "maps"),
    [
        ("", True),
        ('tenant = "blue"', False),
        ('tenant = "blue"\nshared_memory = true', True),
        ("shared_memory = false", False),
    ],
)
def test_a_tenant_maps_no_memory_unless_it_is_said(more: str, maps: bool) -> None:
    assert parse_identities(entry(more=more), "it")[0].identity.shared_memory is maps


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ("2027-06-30T12:00:00Z", dt.datetime(2027, 6, 30, 12, tzinfo=dt.UTC)),
        ("2027-06-30T12:00:00+02:00", dt.datetime(2027, 6, 30, 10, tzinfo=dt.UTC)),
        ("2027-06-30T12:00:00", dt.datetime(2027, 6, 30, 12, tzinfo=dt.UTC)),
    ],
)
def test_an_end_may_have_a_time_of_day(given: str, end: dt.datetime) -> None:
    assert parse_identities(entry(more=f"not_after = {given}"), "it")[0].not_after == end.timestamp()
    assert parse_identities(entry(), "it")[0].not_after == math.inf


def test_entries_of_one_name_have_a_token_and_an_end_each() -> None:
    old, new = parse_identities(entry(more="not_after = 2027-06-30") + entry(token="another"), "it")
    assert old.identity == new.identity
    assert old.not_after < new.not_after == math.inf


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no \\[\\[identity\\]\\]"),
        ("[[identity", "is not TOML"),
        ("x = 1", "nothing but"),
        ("identity = 3", "nothing but"),
        ("identity = [3]", "nothing but"),
        (f'tokens = ["{SECRET}"]', "nothing but"),
        (entry(name=""), "entry 1: name is missing"),
        (entry(name="a b"), "entry 1: name must be"),
        (entry(name="x" * 64), "entry 1: name must be"),
        (entry(roles="[]"), "entry 1 \\(trainer\\): roles must be some of reader, writer, node, master, operator"),
        (entry(roles='["admin"]'), "roles must be some of"),
        (entry(roles='"writer"'), "roles must be a list"),
        (entry(more="not_after = 5"), "not_after must be a date"),
        (entry(more='not_after = "2027-06-30"'), "not_after must be a date"),
        (entry(more='shared_memory = "no"'), "shared_memory must be"),
        (entry(more="tenant = 3"), "tenant must be"),
        (entry(more='notafter = "x"'), "no such key: 'notafter'"),
        (entry(token=""), "the empty one, which everybody has"),
        (f'[[identity]]\nname = "a"\nroles = ["reader"]\ntokens = ["{SECRET}"]', "tokens are hashes"),
        ('[[identity]]\nname = "a"\nroles = ["reader"]', "nothing stands for it"),
        ('[[identity]]\nname = "a"\nroles = ["reader"]\ncertificates = [""]', "certificates are names"),
        (entry() + entry(), "listed twice, for 'trainer' and for 'trainer'"),
        (entry() + entry(name="other"), "listed twice, for 'trainer' and for 'other'"),
        (entry() + entry(roles='["reader"]', token="x"), "the entries of 'trainer' differ"),
        (entry() + entry(more='tenant = "blue"', token="x"), "the entries of 'trainer' differ"),
        ("identity = " + "[" * 20_000, "is not TOML"),
        ("identity = " + "9" * 5_000, "is not TOML"),
    ],
)
def test_what_is_wrong_is_said_and_no_secret_is_repeated(text: str, said: str) -> None:
    with pytest.raises(BadIdentities, match=said) as caught:
        parse_identities(text, "the file")
    assert SECRET not in str(caught.value)


@given(
    st.text()
    | st.sampled_from([entry(), entry(more="not_after = 2027-06-30")]).flatmap(
        lambda whole: st.builds(
            lambda at, put: whole[:at] + put + whole[at + len(put) :], st.integers(0, len(whole)), st.text(max_size=5)
        )
    )
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert parse_identities(text, "it")
    except BadIdentities:
        pass


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o602, 0o644])
def test_a_file_that_others_may_read_or_change_is_not_used(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "ids", entry(), mode)
    with pytest.raises(BadSecretFile, match=f"mode {mode:04o}.*chmod 600"):
        IdentitiesFile(path)


def test_a_file_that_is_missing_too_long_or_not_text_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    with pytest.raises(BadSecretFile, match="No such file"):
        IdentitiesFile(path)
    with pytest.raises(BadSecretFile, match="more than"):
        IdentitiesFile(written(path, "#" * (MAX_FILE_BYTES + 1)))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadSecretFile, match="not UTF-8"):
        IdentitiesFile(path)


def test_a_new_content_comes_into_force_once_it_has_stood_for_a_look(tmp_path: Path) -> None:
    path = written(tmp_path / "ids", entry())
    file = IdentitiesFile(path)
    known = file.identities
    assert not file.is_changed()
    written(path, entry(name="other", token="another"))
    assert not file.is_changed()
    assert file.is_changed()
    file.read_again()
    assert not file.is_changed()
    assert known.of_token("another", NOW).name == "other"
    with pytest.raises(NotAuthorized):
        known.of_token(SECRET, NOW)


@pytest.mark.parametrize("spoil", ["text", "mode", "gone"])
def test_a_new_file_that_is_wrong_changes_nothing_and_is_told(tmp_path: Path, spoil: str) -> None:
    path = written(tmp_path / "ids", entry())
    file = IdentitiesFile(path)
    if spoil == "text":
        written(path, entry(roles='["king"]'))
    elif spoil == "mode":
        os.chmod(path, 0o644)
    else:
        path.unlink()
    file.is_changed()
    assert file.is_changed()
    with pytest.raises(BadValue):
        file.read_again()
    assert file.identities.fault
    assert file.identities.of_token(SECRET, NOW).name == "trainer"
    assert not file.is_changed(), "the same wrong file is not read again and again"
    written(path, entry())
    file.is_changed()
    assert file.is_changed()
    file.read_again()
    assert file.identities.fault == ""
