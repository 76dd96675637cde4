"""Whom a token or a certificate stands for, and until when."""

from __future__ import annotations

import pytest

from holdfast.errors import NotAuthorized
from holdfast.identity.identities import EVERYBODY, Entry, Identities, Identity, hash_of
from holdfast.identity.roles import ALL_ROLES, Role, with_included

NOW = 1_800_000_000.0
TRAINER = Identity("trainer", with_included([Role.WRITER]), "blue", shared_memory=False)


def trainers(*tokens: str, not_after: float = NOW + 10, certificates: tuple[str, ...] = ()) -> Identities:
    return Identities([Entry(TRAINER, tuple(hash_of(one) for one in tokens), certificates, not_after)])


def test_without_a_token_everybody_may_do_everything() -> None:
    known = Identities.of_everybody()
    assert known.of_token("", NOW) is EVERYBODY
    assert known.of_token("any", NOW) is EVERYBODY
    assert known.of_certificate("any", NOW) is EVERYBODY
    assert all(EVERYBODY.may(role) for role in Role)
    assert EVERYBODY.tenant == ""
    assert EVERYBODY.shared_memory


def test_one_token_has_all_roles() -> None:
    known = Identities.of_one_token("s3cret")
    found = known.of_token("s3cret", NOW)
    assert (found.name, found.roles, found.tenant) == ("token", ALL_ROLES, "")


@pytest.mark.parametrize("token", ["", "s3cre", "s3cret ", "S3cret", hash_of("s3cret")])
def test_a_wrong_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(NotAuthorized, match="missing or wrong") as caught:
        Identities.of_one_token("s3cret").of_token(token, NOW)
    assert "s3cre" not in str(caught.value)


def test_each_of_several_tokens_stands_for_the_identity() -> None:
    known = trainers("old", "new")
    for token in ("old", "new"):
        found = known.of_token(token, NOW)
        assert (found.name, found.tenant, found.shared_memory) == ("trainer", "blue", False)
        assert found.may(Role.READER)
        assert not found.may(Role.OPERATOR)


def test_an_expired_identity_is_refused() -> None:
    known = trainers("one", certificates=("trainer.example",))
    assert known.of_token("one", NOW + 9.9).name == "trainer"
    with pytest.raises(NotAuthorized, match="'trainer' has expired"):
        known.of_token("one", NOW + 10)
    with pytest.raises(NotAuthorized, match="'trainer' has expired"):
        known.of_certificate("trainer.example", NOW + 10)


def test_a_certificate_stands_for_the_identity_that_names_it() -> None:
    known = trainers("one", certificates=("trainer.example",))
    assert known.of_certificate("trainer.example", NOW).name == "trainer"
    assert known.knows_certificate("trainer.example")
    with pytest.raises(NotAuthorized, match=r"no identity has the certificate 'other\.example'"):
        known.of_certificate("other.example", NOW)


def test_a_certificate_is_no_token_nor_the_other_way_round() -> None:
    known = trainers("one", certificates=("trainer.example",))
    with pytest.raises(NotAuthorized):
        known.of_token("trainer.example", NOW)
    with pytest.raises(NotAuthorized):
        known.of_certificate(hash_of("one"), NOW)


def test_whoever_would_not_be_admitted_as_the_same_is_not_admitted_any_more() -> None:
    before = trainers("old", "new", certificates=("trainer.example",))
    by_old, by_new = before.of_token("old", NOW), before.of_token("new", NOW)
    by_certificate = before.of_certificate("trainer.example", NOW)
    assert all(before.still_admits(one, NOW) for one in (by_old, by_new, by_certificate))
    assert not before.still_admits(by_old, NOW + 10)
    rotated = trainers("new")
    assert not rotated.still_admits(by_old, NOW)
    assert rotated.still_admits(by_new, NOW)
    assert not rotated.still_admits(by_certificate, NOW)
    demoted = Identities([Entry(Identity("trainer", with_included([Role.READER]), "blue"), (hash_of("new"),))])
    assert not demoted.still_admits(by_new, NOW)
    assert not rotated.still_admits(EVERYBODY, NOW)
    assert not Identities.of_everybody().still_admits(by_new, NOW)
    assert Identities.of_everybody().still_admits(EVERYBODY, NOW)


def test_no_token_is_in_what_can_be_printed() -> None:
    known = Identities.of_one_token("s3cret")
    printed = f"{known.entries!r} {known.of_token('s3cret', NOW)!r}"
    assert "s3cret" not in printed
    assert hash_of("s3cret") not in printed
