"""`status`, `nodes`, `bench` and `doctor` over a cache that is a dict."""

from __future__ import annotations

import pytest

from holdfast.cli import connection
from holdfast.cli.cluster import doctor
from holdfast.cli.output import human_bytes, human_ms
from holdfast.errors import Unreachable
from tests.cli.conftest import Run
from tests.cli.fake_cache import FakeCache


def test_status_is_readable_and_json_has_names(run: Run, cache: FakeCache) -> None:
    cache.stored = {"a": b"1"}
    text = run("status").text
    assert "master-1 (primary, epoch 1), up 90.0 s" in text
    assert "1 node, 1 client" in text
    assert "1 B of 1 GiB used (0%)" in text
    data = run("status", "--json").data
    assert (data["objects"], data["role"], data["digest"]) == (1, "primary", "ab" * 8)


def test_nodes_says_how_their_sessions_stand(run: Run, cache: FakeCache) -> None:
    shown = run("nodes").text
    assert "safe" in shown
    assert "clean" in shown
    cache.node_available = False
    assert "jeopardy for 45.0 s" in run("nodes").text
    assert run("nodes", "--json").data[0]["available"] is False


def test_bench_measures_everything_and_cleans_up(run: Run, cache: FakeCache) -> None:
    cache.stored = {"mine": b"1"}
    rows = run("bench", "--seconds", "0.1", "--json").data["rows"]
    assert len(rows) == 8
    assert all(row["per_second"] > 0 for row in rows)
    assert cache.stored == {"mine": b"1"}


def test_bench_cleans_up_when_it_fails(run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise Unreachable("gone")

    monkeypatch.setattr(cache, "get", fail)
    assert run("bench", "--seconds", "0.1").code == 3
    assert cache.stored == {}


def test_bench_refuses_where_it_would_evict(run: Run, cache: FakeCache) -> None:
    cache.free_bytes = 1 << 20
    result = run("bench")
    assert result.code == 3
    assert "evicts nobody" in result.err


def test_doctor_is_content_with_a_sound_cluster(run: Run, cache: FakeCache) -> None:
    result = run("doctor", "--json")
    states = {one["check"]: one["state"] for one in result.data["findings"]}
    assert result.code == 0
    assert states["master"] == states["versions"] == states["nodes"] == states["put and get"] == "ok"
    assert cache.stored == {}


def test_doctor_says_what_to_do_about_what_is_wrong(run: Run, cache: FakeCache) -> None:
    cache.node_available = False
    result = run("doctor")
    assert result.code == 1
    assert "none of 1 is available" in result.text
    assert "-> nodes: start one" in result.text


def test_doctor_finds_bytes_that_are_not_what_was_put(run: Run, cache: FakeCache) -> None:
    cache.corrupts = True
    result = run("doctor", "--json")
    assert result.code == 1
    assert {"check": "put and get", "state": "fail"}.items() <= result.data["findings"][-1].items()


def test_doctor_without_a_master_checks_the_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: object) -> None:
        raise Unreachable("nobody answers at 127.0.0.1:7070")

    monkeypatch.setattr(connection, "open_cache", nobody)
    result = run("doctor", "--json")
    assert result.code == 3
    checks = [one["check"] for one in result.data["findings"]]
    assert checks == ["python", "extras", "memfd", "open files", "clock", "master"]


def test_doctor_warns_of_a_low_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (256, 256))
    finding = doctor.check_open_files()
    assert (finding.state, finding.advice[-14:]) == ("warn", "ulimit -n 4096")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 30, "1 GiB"), (1 << 52, "4 PiB")],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (600_000, "10 min"), (9_000_000, "2.5 h")]
)
def test_durations_for_people(milliseconds: int, text: str) -> None:
    assert human_ms(milliseconds) == text


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("resize",), "resize NODE SIZE"),
        (("resize", "node-1"), "resize NODE SIZE"),
        (("cordon",), "cordon NODE"),
        (("copy-rate",), "copy-rate SIZE"),
        (("revoke-client",), "revoke-client NUMBER"),
    ],
)
def test_an_action_on_nodes_says_what_it_lacks(run: Run, words: tuple[str, ...], written: str) -> None:
    result = run("nodes", *words)
    assert (result.code, result.err) == (2, f"holdfast: write: holdfast nodes {written}; nothing was changed\n")
