"""Verbs about keys: what they print and what their exit codes say."""

from __future__ import annotations

import json
import re

import pytest

from holdfast.errors import NodeLost
from tests.cli.conftest import Run
from tests.cli.fake_cache import FakeCache


def test_exists_is_0_when_all_are_there_and_4_when_some_are_not(run: Run, cache: FakeCache) -> None:
    cache.stored = {"a": b"1", "b": b"2"}
    assert run("exists", "a", "b").code == 0
    some = run("exists", "a", "c")
    assert (some.code, some.text) == (4, "yes  a\nno   c\n")
    assert run("exists", "a", "c", "--json").data == {"a": True, "c": False}


def test_ls_prints_a_key_a_line(run: Run, cache: FakeCache) -> None:
    cache.stored = {"m/1": b"1", "m/[red]2": b"2", "n": b"3"}
    assert run("ls", "m/").text == "m/1\nm/[red]2\n"
    assert [json.loads(line) for line in run("ls", "--json").text.splitlines()] == [
        {"key": "m/1"},
        {"key": "m/[red]2"},
        {"key": "n"},
    ]


def test_ls_long_never_wraps_for_a_script_and_takes_no_markup(run: Run, cache: FakeCache) -> None:
    key = "k" * 900 + "[red]"
    cache.stored = {key: b"12345"}
    lines = run("ls", "--long").text.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == ["5", "B", "9.0", "s", "soft", "node-1", key]
    assert json.loads(run("ls", "-l", "--json").out)["size_bytes"] == 5


def test_a_long_listing_has_one_heading_however_many_pages_it_has(run: Run, cache: FakeCache) -> None:
    cache.stored = {f"k{number:05}": b"1" for number in range(10_000)}
    lines = run("ls", "-l").text.splitlines()
    assert len(lines) == 10_001
    assert [line for line in lines if line.startswith((" SIZE", "SIZE"))] == lines[:1]
    assert {len(line) for line in lines[1:]} == {len(lines[1])}


def test_what_left_while_it_was_listed_is_left_out(run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.stored = {"stays": b"1"}
    monkeypatch.setattr(cache, "keys", lambda prefix="": iter(["left", "stays"]))
    assert [json.loads(line)["key"] for line in run("ls", "-l", "--json").text.splitlines()] == ["stays"]
    assert len(run("ls", "-l").text.splitlines()) == 2


def test_pin_and_unpin_change_the_pins_of_what_is_there(run: Run, cache: FakeCache) -> None:
    cache.stored = {"a": b"1", "b": b"2"}
    pinned = run("pin", "a", "b")
    assert (pinned.code, pinned.err, cache.pins) == (0, "pinned 2 objects\n", {"a": "soft", "b": "soft"})
    assert run("pin", "a", "--hard").err == "pinned 1 object\n"
    assert run("pin", "b", "--soft").code == 0
    assert cache.pins == {"a": "hard", "b": "soft"}
    some = run("unpin", "a", "c")
    assert (some.code, cache.pins) == (4, {"b": "soft"})
    assert some.err == "holdfast: c: no object is stored under this key\nunpinned 1 object\n"
    assert run("pin", "a", "c", "--json").data == {"a": True, "c": False}
    assert run("unpin", "a", "c", "--json").data == {"a": True, "c": False}


def test_a_pin_is_soft_or_hard(run: Run, cache: FakeCache) -> None:
    cache.stored = {"a": b"1"}
    refused = run("pin", "a", "--soft", "--hard")
    assert (refused.code, cache.pins) == (2, {})
    assert "soft or hard, not both" in refused.err


def test_touch_marks_what_is_there_as_used(run: Run, cache: FakeCache) -> None:
    cache.stored = {"a": b"1", "b": b"2"}
    touched = run("touch", "a", "b")
    assert (touched.code, touched.err, cache.used) == (0, "touched 2 objects\n", ["a", "b"])
    some = run("touch", "a", "c")
    assert some.code == 4
    assert some.err == "holdfast: c: no object is stored under this key\ntouched 1 object\n"
    assert run("touch", "a", "c", "--json").data == {"a": True, "c": False}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("model/*/kv-??", ["model/a/kv-01", "model/b/c/kv-02"]),
        ("model/[!b]*", ["model/a/kv-001", "model/a/kv-01"]),
        ("*kv-01", ["model/a/kv-01"]),
        ("model/a/kv-0", ["model/a/kv-001", "model/a/kv-01"]),  # Without a wildcard it is how keys begin.
        ("[*]", ["*"]),
        ("model/a", ["model/a/kv-001", "model/a/kv-01"]),
        ("?", ["*"]),
    ],
)
def test_ls_takes_wildcards(run: Run, cache: FakeCache, pattern: str, found: list[str]) -> None:
    cache.stored = dict.fromkeys(["model/a/kv-01", "model/a/kv-001", "model/b/c/kv-02", "*", "other"], b"1")
    assert sorted(run("ls", pattern).text.splitlines()) == found


COLOUR = re.compile("\x1b\\[[0-9;]*m")
HOSTILE = "a\x1b[2Jb\nyes  c\x9bd\u202ee\u2028f\rg\x7f"
"""Clears the screen, forges a line, turns the direction of writing around, and goes back to overwrite."""


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    "verb", [["ls"], ["ls", "--long"], ["exists", HOSTILE], ["stat", HOSTILE], ["explain", HOSTILE]]
)
def test_a_key_cannot_control_a_terminal_or_forge_a_line(
    run: Run, cache: FakeCache, verb: list[str], terminal: bool
) -> None:
    """Also not through a pipe, which often ends at a terminal."""
    cache.stored = {HOSTILE: b"1"}
    lines = COLOUR.sub("", run(*verb, terminal=terminal).text).split("\n")
    assert all(line.isprintable() for line in lines)
    if terminal:
        return  # A long line is folded there.
    assert sum(r"a\x1b[2Jb\nyes  c\x9bd\u202ee\u2028f\rg\x7f" in line for line in lines) == 1


def test_json_has_the_key_exactly_and_nothing_that_a_terminal_obeys(run: Run, cache: FakeCache) -> None:
    cache.stored = {HOSTILE: b"1", "schön": b"2"}
    printed = run("ls", "--json").text
    assert all(line.isprintable() for line in printed.split("\n"))
    assert [json.loads(line)["key"] for line in printed.splitlines()] == [HOSTILE, "schön"]
    assert "schön" in printed


@pytest.mark.parametrize("verb", [["stat"], ["rm"], ["get"]])
def test_an_error_that_quotes_a_key_is_one_printable_line(run: Run, cache: FakeCache, verb: list[str]) -> None:
    result = run(*verb, HOSTILE)
    assert result.code == 4
    assert all(line.isprintable() for line in result.err.split("\n"))
    assert r"\x1b[2J" in result.err


def test_rm_removes_what_is_named_and_says_what_was_not_there(run: Run, cache: FakeCache) -> None:
    cache.stored = {"a": b"1", "b": b"2"}
    result = run("rm", "a", "c", "--json")
    assert (result.code, result.data) == (4, {"removed": 1, "missing": ["c"]})
    assert run("rm", "b").code == 0
    assert cache.stored == {}


def test_rm_of_a_leased_object_needs_force(run: Run, cache: FakeCache) -> None:
    """I8, as the command line shows it."""
    cache.stored, cache.leased = {"a": b"1"}, {"a"}
    refused = run("rm", "a")
    assert refused.code == 1
    assert "being read" in refused.err
    assert cache.stored == {"a": b"1"}
    assert run("rm", "a", "--force").code == 0
    assert cache.stored == {}


def test_rm_of_several_says_how_far_it_came(run: Run, cache: FakeCache) -> None:
    cache.stored, cache.leased = {"a": b"1", "b": b"2", "c": b"3"}, {"b"}
    refused = run("rm", "a", "b", "c")
    assert refused.code == 1
    assert refused.err.endswith("; before it 1 object removed, after it 1 key not tried\n")
    assert "force=True" not in refused.err
    assert set(cache.stored) == {"b", "c"}


@pytest.mark.parametrize(
    ("was_removed", "told"),
    [
        (False, "interrupted; 1 object removed, still stored: b, c\n"),
        (True, "interrupted; 2 objects removed, still stored: c\n"),
    ],
)
def test_ctrl_c_in_rm_says_what_was_removed_and_what_was_not(
    run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch, was_removed: bool, told: str
) -> None:
    cache.stored = {"a": b"1", "b": b"2", "c": b"3"}
    remove = cache.remove

    def interrupted(key: str, force: bool = False) -> int:
        if key == "a" or was_removed:
            remove(key, force)
        if key == "b":
            raise KeyboardInterrupt
        return 1

    monkeypatch.setattr(cache, "remove", interrupted)
    result = run("rm", "a", "b", "c")
    assert (result.code, result.err) == (130, f"holdfast: {told}")


def test_ctrl_c_in_rm_says_when_nobody_knows(run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.stored = {f"k/{number}": b"1" for number in range(9)}

    def interrupted(key: str, force: bool = False) -> int:
        cache.failure = NodeLost("no")
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "remove", interrupted)
    result = run("rm", *cache.stored)
    assert result.code == 130
    assert "0 objects removed, whether k/0 was is not known, k/1, k/2, k/3, k/4, k/5 and 3 more not tried" in result.err


@pytest.mark.parametrize(
    ("verb", "arguments"), [("remove_all", ("--all", "--yes")), ("remove_matching", ("--matching", "a"))]
)
def test_ctrl_c_in_rm_of_many_says_what_is_left(
    run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch, verb: str, arguments: tuple[str, ...]
) -> None:
    cache.stored = {"a": b"1", "b": b"2", "c": b"3"}

    def interrupted(*_: object, **__: object) -> int:
        del cache.stored["a"]
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, verb, interrupted)
    result = run("rm", *arguments)
    assert result.code == 130
    assert "nothing more is removed: the cluster held 3 objects before, and holds 2 now" in result.err


def test_rm_by_pattern_and_all_of_it(run: Run, cache: FakeCache) -> None:
    cache.stored = {"m/1": b"1", "m/2": b"2", "n": b"3"}
    assert run("rm", "--matching", "^m/", "--json").data == {"removed": 2, "missing": []}
    assert run("rm", "--all").code == 2
    assert cache.stored == {"n": b"3"}
    assert run("rm", "--all", "--yes").code == 0
    assert cache.stored == {}


@pytest.mark.parametrize("arguments", [(), ("a", "--all", "--yes"), ("a", "--matching", "x")])
def test_rm_takes_keys_or_a_pattern_or_all(run: Run, cache: FakeCache, arguments: tuple[str, ...]) -> None:
    cache.stored = {"a": b"1"}
    assert run("rm", *arguments).code == 2
    assert cache.stored == {"a": b"1"}


def test_stat_shows_each_and_is_4_when_one_is_missing(run: Run, cache: FakeCache) -> None:
    cache.stored = {"a": b"123"}
    result = run("stat", "a", "b")
    assert result.code == 4
    assert "3 B (3 bytes)" in result.text
    assert "holdfast: b: no object" in result.err
    [first, second] = run("stat", "a", "b", "--json").data
    assert (first["size_bytes"], first["replicas"][0]["node"]) == (3, "node-1")
    assert second == {"key": "b", "missing": True}


def test_explain_says_why_it_is_kept_or_gone(run: Run, cache: FakeCache) -> None:
    cache.stored = {"a": b"1"}
    assert "- it is leased for another 9.0 s" in run("explain", "a").text
    gone = run("explain", "b")
    assert (gone.code, gone.text) == (4, "- it was evicted 3.0 s ago\n")
    assert run("explain", "b", "--json").data["stored"] is False
