"""Variables that nothing reads are told, once, and those that something reads are not."""

from __future__ import annotations

import pytest

from holdfast.environment.variables import FIELDS, OTHERS, told, unknown
from holdfast.settings import MODELS, variable_of
from tests.cli.conftest import Run, asked, cache, masters, run  # noqa: F401 - fixtures
from tests.cli.fake_cache import FakeCache


def test_the_list_is_that_of_the_declarations() -> None:
    assert {field for model in MODELS.values() for field in model.model_fields} == FIELDS


def test_what_something_reads_is_not_told() -> None:
    read = [*map(variable_of, FIELDS), *OTHERS, "holdfast_address", "PATH", "HOLDFAST"]
    of_kubernetes = ["HOLDFAST_SERVICE_HOST", "HOLDFAST_PORT", "HOLDFAST_PORT_7070_TCP_ADDR", "HOLDFAST_A_SERVICE_PORT"]
    assert unknown(dict.fromkeys([*read, *of_kubernetes], "x")) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HOLDFAST_ADRESS", "HOLDFAST_ADDRESS"),
        ("HOLDFAST_TOKENFILE", "HOLDFAST_TOKEN_FILE"),
        ("holdfast_timout", "HOLDFAST_TIMEOUT"),
        ("HOLDFAST_LEASE_TTL", "HOLDFAST_LEASE_TTL_MS"),
    ],
)
def test_the_one_that_may_be_meant_is_named(name: str, meant: str) -> None:
    assert unknown({name: "x"}) == [name]
    assert f"{name} (is {meant} meant?)" in told([name])


def test_one_that_resembles_none_is_told_without_a_guess() -> None:
    assert told(["HOLDFAST_XYZZY"]) == "nothing reads HOLDFAST_XYZZY; unset it, or correct its name"


def test_a_command_tells_it_once_and_goes_on(run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    cache.stored = {"k": b"1"}
    monkeypatch.setenv("HOLDFAST_ADRESS", "there:1")
    result = run("exists", "k")
    assert (result.code, result.text) == (0, "yes  k\n")
    assert result.err.count("HOLDFAST_ADRESS") == result.err.count("\n") == 1
    monkeypatch.setenv("HOLDFAST_PARENT_PID", "1")
    assert run("exists", "k").err == ""
