"""What `status`, `failover` and `snapshot` make of what each master says, over masters that are scripted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.cli import connection
from holdfast.cli.cluster import failover
from holdfast.cli.cluster.masters import MasterSeen, facts_of, given_addresses, primary_of, row_of
from holdfast.errors import Unreachable
from holdfast.messages.requests import Status
from tests.cli.conftest import Run
from tests.cli.fake_cache import FakeCache

PRIMARY, STANDBY = "127.0.0.1:7070", "127.0.0.1:7072"
BOTH = f"{PRIMARY},{STANDBY}"


def changed(status: Status, **fields: Any) -> Status:
    return msgspec.structs.replace(status, **fields)


def standby(status: Status, **fields: Any) -> Status:
    facts = {"name": "master-2", "role": "standby", "promotable": True, "promotable_reason": "it follows the log"}
    return changed(status, **(facts | fields))


def test_status_shows_every_master_with_its_lag_and_digest(
    run: Run, cache: FakeCache, masters: dict[str, Status]
) -> None:
    """I5 made visible."""
    masters |= {PRIMARY: cache.status(), STANDBY: standby(cache.status(), applied_index=6)}
    text = run("status", "--address", BOTH).text
    lines = [line.split() for line in text.splitlines() if line.startswith("master-")]
    assert [line[:7] for line in lines] == [
        ["master-1", PRIMARY, "primary", "1", "9", "0", "yes"],
        ["master-2", STANDBY, "standby", "1", "6", "3", "-"],
    ]
    assert "yes: it follows the log" in text


def test_status_keeps_the_primarys_facts_on_top_for_scripts(
    run: Run, cache: FakeCache, masters: dict[str, Status]
) -> None:
    masters |= {PRIMARY: cache.status(), STANDBY: standby(cache.status(), digest="other")}
    data = run("status", "--address", BOTH, "--json").data
    assert (data["role"], data["name"], data["primary"]["name"]) == ("primary", "master-1", "master-1")
    assert [one["digest_equal"] for one in data["masters"]] == [True, False]
    assert [one["lag"] for one in data["masters"]] == [0, 0]


def test_status_shows_a_master_that_does_not_answer(run: Run, cache: FakeCache, masters: dict[str, Status]) -> None:
    masters[PRIMARY] = cache.status()
    result = run("status", "--address", BOTH)
    assert result.code == 0
    assert f"{STANDBY}  unreachable" in result.text
    assert run("status", "--address", BOTH, "--json").data["masters"][1]["reachable"] is False


def test_status_without_a_primary_shows_who_is_left(
    run: Run, cache: FakeCache, masters: dict[str, Status], monkeypatch: pytest.MonkeyPatch
) -> None:
    masters[STANDBY] = standby(cache.status())

    def nobody(_: object) -> None:
        raise Unreachable("no primary")

    monkeypatch.setattr(connection, "open_cache", nobody)
    result = run("status", "--address", BOTH)
    assert result.code == 3
    assert "no master is primary now" in result.err
    assert "master-2" in result.text
    masters.clear()
    assert "no primary" in run("status", "--address", BOTH).err


def test_a_primary_of_an_older_epoch_is_not_taken_for_the_primary(cache: FakeCache) -> None:
    zombie, real = cache.status(), changed(cache.status(), name="master-2", epoch=2)
    assert primary_of([MasterSeen("a", zombie), MasterSeen("b", real), MasterSeen("c", None, "away")]) is real
    assert primary_of([MasterSeen("c", None, "away")]) is None


def test_digests_are_only_compared_at_the_same_record(cache: FakeCache) -> None:
    primary = cache.status()
    behind = MasterSeen("b", standby(primary, applied_index=primary.applied_index - 1, digest="other"))
    assert facts_of(behind, primary)["digest_equal"] is None
    assert row_of(behind, None)[5:7] == ("-", "-")


def test_an_address_in_coordination_names_no_master_itself() -> None:
    assert given_addresses("etcd://h:2379/c") == []
    assert given_addresses("h1:1, h2:2") == ["h1:1", "h2:2"]
    assert given_addresses(",") == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (None, "nobody answers at"),
        ({"promotable": False, "promotable_reason": "it has not caught up"}, "master-2: it has not caught up"),
    ],
)
def test_failover_does_nothing_while_no_standby_can_take_over(
    run: Run, cache: FakeCache, masters: dict[str, Status], other: dict[str, Any] | None, words: str
) -> None:
    masters[PRIMARY] = cache.status()
    if other is not None:
        masters[STANDBY] = standby(cache.status(), **other)
    result = run("failover", "--address", BOTH, "--json")
    assert result.code == 3
    assert result.data["error"]["code"] == "no_standby"
    assert "nothing was done" in result.data["error"]["text"]
    assert words in result.data["error"]["text"]


def test_failover_asks_for_the_other_masters_where_only_the_primary_is_known(
    run: Run, cache: FakeCache, masters: dict[str, Status]
) -> None:
    masters[PRIMARY] = cache.status()
    result = run("failover", "--address", PRIMARY)
    assert result.code == 3
    assert "--address host1:7070,host2:7070" in result.err


def test_a_probe_keeps_the_longest_wait_and_counts_failures(cache: FakeCache) -> None:
    with failover.probing(cache) as probe:  # type: ignore[arg-type]
        assert probe.answers >= 2
        cache.failure = Unreachable("away")
        probe.await_answer(0.0)
    assert probe.longest_s > 0


def test_a_snapshot_of_an_unreachable_master_is_an_error(run: Run) -> None:
    result = run("snapshot", "--address", STANDBY)
    assert result.code == 3
    assert "no master answers" in result.err
