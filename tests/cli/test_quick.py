"""The quick parser against typer, for every flag of every verb that it takes."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli import app, quick
from holdfast.cli.app import VERBS, app_for, run_with_typer
from holdfast.cli.declared import Flag, Misuse, Operand
from holdfast.environment.client_settings import ClientSettings, flag_of, given, variable_of
from holdfast.errors import BadValue
from holdfast.settings import BadSetting, ClientTable, load

CONNECTING = [name for name, verb in VERBS.items() if verb.connects]
OF_SETTINGS = {
    "address": "10.0.0.1:7070,10.0.0.2:7071",
    "token": "hush",
    "tls_cert": "/a/cert.pem",
    "tls_key": "key.pem",
    "tls_ca": "../ca.pem",
    "timeout": "2.5",
}
ODD_VALUES = ("", "-", "--", "-1", "0", "1e3", "1_0", " 5", "soon", "nan", "inf", "99999999999", "é", "a=b", "--json")


class Twins:
    """Both ways to the verbs, which are not run: what each would have called them with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called: list[dict[str, Any]] = []
        # Typer makes its parser from the declarations anew for each command line, which would take this test minutes.
        apps = functools.cache(lambda verb: app_for([verb]))
        monkeypatch.setattr(app, "app_for", lambda words: apps(words[0]))
        monkeypatch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        for name in CONNECTING:
            module = import_module(f"holdfast.cli.{VERBS[name].module}")
            monkeypatch.setattr(module, name, self._recorded(getattr(module, name)))

    def _recorded(self, verb: Any) -> Any:
        @functools.wraps(verb)
        def record(**arguments: Any) -> int:
            self.called.append(arguments)
            return 0

        return record

    def quick(self, words: list[str]) -> dict[str, Any] | None:
        call = quick.read(words)
        return None if call is None else call.arguments

    def slow(self, words: list[str]) -> dict[str, Any] | None:
        """None if it says what is wrong."""
        self.called.clear()
        try:
            assert run_with_typer(words) == 0
        except (Misuse, BadSetting):
            return None
        return self.called.pop() if self.called else None

    def same(self, words: list[str]) -> dict[str, Any]:
        """What both call the verb with."""
        found = self.quick(words)
        assert found is not None, f"the quick parser leaves {words} to typer"
        assert found == self.slow(words)
        return found

    def never_differ(self, words: list[str]) -> None:
        found = self.quick(words)
        assert found is None or found == self.slow(words), words


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Twins:
    for variable in os.environ:
        if variable.upper().startswith("HOLDFAST_"):
            monkeypatch.delenv(variable)
    return Twins(monkeypatch)


def parts_of(verb: str) -> tuple[list[str], list[list[str]]]:
    """Operands that suffice, and each of its flags in a word or two."""
    run = getattr(import_module(f"holdfast.cli.{VERBS[verb].module}"), verb)
    operands: list[str] = []
    flags: list[list[str]] = [["--json"]]
    for parameter, declared in quick.parameters_of(run):
        if isinstance(declared, Operand):
            operands += ["one"] if parameter.annotation is str else ["two", "three"][: 1 + ("list" in str(parameter))]
        else:
            assert isinstance(declared, Flag)
            value = {int: "2", str: "text", bool: None}.get(parameter.annotation, "text")
            flags += [[one] if value is None else [one, value] for one in declared.spellings(parameter.name)]
    flags += [[flag_of(field), text] for field, text in OF_SETTINGS.items()]
    return operands, flags


@pytest.mark.parametrize("verb", CONNECTING)
def test_every_flag_is_read_alike(twins: Twins, verb: str) -> None:
    operands, flags = parts_of(verb)
    twins.same([verb, *operands])
    for flag in flags:
        twins.same([verb, *flag, *operands])
        twins.same([verb, *operands, *flag])
        if len(flag) == 2 and flag[0].startswith("--"):
            twins.same([verb, *operands, "=".join(flag)])
    # All at once, each by one of its names.
    several = {len(flag[0]) > 2: flag for flag in flags}
    twins.same([verb, *operands, *itertools.chain(*several.values())])


@pytest.mark.parametrize("verb", CONNECTING)
def test_what_only_one_of_them_understands_is_left_to_typer(twins: Twins, verb: str) -> None:
    operands, flags = parts_of(verb)
    of_settings = {flag_of(field) for field in OF_SETTINGS}
    for flag in flags:
        name = flag[0]
        twins.never_differ([verb, name])
        twins.never_differ([verb, *operands, *flag, *flag])
        twins.never_differ([verb, *operands, name[:-1], *flag[1:]])
        twins.never_differ([verb, *operands, f"{name}{''.join(flag[1:])}"])
        for value in ODD_VALUES if verb == "status" or name not in of_settings else ():
            twins.never_differ([verb, name, value, *operands])
            twins.never_differ([verb, *operands, f"{name}={value}"])
    for words in ([], ["-"], [""], ["--", "--json"], ["--"], ["a", "b", "c", "d"], ["a", "-", "b"], ["--help"], ["-h"]):
        twins.never_differ([verb, *words])
        twins.never_differ([verb, *operands, *words])
    assert twins.quick([verb, *operands, "--nonsense"]) is None
    assert twins.quick([verb, *operands, "--config", "holdfast.toml"]) is None


@pytest.mark.parametrize("verb", [name for name in VERBS if name not in CONNECTING] + ["", "nonsense", "--version"])
def test_other_verbs_are_left_to_typer(verb: str) -> None:
    assert quick.read([verb, "--json"]) is None
    assert quick.read([]) is None


@pytest.mark.parametrize(("field", "text"), OF_SETTINGS.items())
def test_variables_are_read_alike_and_flags_win(
    twins: Twins, monkeypatch: pytest.MonkeyPatch, field: str, text: str
) -> None:
    monkeypatch.setenv(variable_of(field), text)
    assert str(getattr(twins.same(["status"])["settings"], field)) == text.removeprefix("./")
    if field != "timeout":
        assert str(getattr(twins.same(["status", flag_of(field), "other:1"])["settings"], field)) == "other:1"
    monkeypatch.setenv(variable_of(field), "")
    assert twins.same(["status"])["settings"] == ClientSettings()
    for value in ODD_VALUES:
        monkeypatch.setenv(variable_of(field), value)
        twins.never_differ(["status"])


def test_variables_in_small_letters_and_a_settings_file_are_left_to_pydantic(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("holdfast_address", "there:1")
    assert given({}) is None
    slow = twins.slow(["status"])
    assert slow is not None
    assert slow["settings"].address == "there:1"
    monkeypatch.delenv("holdfast_address")
    monkeypatch.setenv("HOLDFAST_CONFIG", "holdfast.toml")
    assert given({}) is None


def test_the_token_of_a_file_is_read_alike(twins: Twins, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("hush\n")
    path.chmod(0o600)
    assert twins.same(["status", "--token-file", str(path)])["settings"].token == "hush"
    monkeypatch.setenv("HOLDFAST_TOKEN", "another")
    assert twins.same(["status", "--token-file", str(path)])["settings"].token == "hush"
    assert twins.same(["status", "--token", "third"])["settings"].token == "third"
    absent = str(tmp_path / "absent")
    both = {"token_file": str(path), "token": "x"}
    for flags in (both, {"token_file": absent}):
        with pytest.raises(BadValue) as quickly:
            given(flags)
        with pytest.raises(BadValue) as slowly:
            load(ClientSettings, flags)
        assert str(quickly.value) == str(slowly.value)


def test_the_table_of_client_settings_is_the_declarations() -> None:
    """Bounds and defaults of one are those of the other."""
    assert list(ClientTable.model_fields) == list(ClientSettings.__struct_fields__)
    assert load(ClientSettings, {}) == ClientSettings()
    assert "hush" not in repr(ClientSettings(token="hush"))
    assert "hush" not in repr(ClientTable(token="hush"))  # type: ignore[call-arg]


@pytest.mark.parametrize("verb", CONNECTING)
def test_a_quick_verb_imports_none_of_the_libraries_that_take_long(verb: str) -> None:
    """The client needs msgspec and xxhash only, and so do these verbs: they work without the server extra."""
    operands = {"nodes": [], "clients": [], "status": []}.get(verb, parts_of(verb)[0])
    code = f"""if True:
        import sys
        from holdfast.cli.main import main
        code = main({[verb, *operands, "--address", "127.0.0.1:1"]!r})
        slow = {{"typer", "click", "rich", "pydantic", "pydantic_settings", "numpy", "asyncio", "ssl", "subprocess"}}
        print(code, *sorted(slow & sys.modules.keys()))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert ran.stdout == "3\n", ran.stderr
