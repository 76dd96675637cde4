"""The quick way from a command line to a verb that only connects: without typer, rich and pydantic.

Importing these takes twice as long as such a verb. This parser reads the same declarations and takes what is written
plainly. It takes nothing else: an argument that it does not know or cannot read, a flag that is given twice, a settings
file, help. It gives up before anything is done, and leaves the command line to its twin, `app.run_with_typer`, which
reads it or says what is wrong with it. `tests/cli/test_quick.py` compares the two for every flag of every such verb.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from holdfast.cli.app import VERBS
from holdfast.cli.declared import Flag, Operand
from holdfast.cli.output import Output
from holdfast.environment import client_settings
from holdfast.environment.client_settings import ClientSettings, flag_of

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


class VerbCall(NamedTuple):
    """A verb and everything that it is to be called with."""

    verb: Callable[..., int | None]
    arguments: dict[str, Any]

    def run(self) -> int | None:
        return self.verb(**self.arguments)


class _Unclear(Exception):
    """The command line is not for this parser."""


class _Words(NamedTuple):
    flags: dict[str, str | bool]
    """By their names as typed first in the declaration."""
    operands: list[str]


def read(words: Sequence[str]) -> VerbCall | None:
    """The call that these words ask for; None where the twin is to read them."""
    verb = VERBS.get(words[0]) if words else None
    if verb is None or not verb.connects:
        return None
    run = getattr(import_module(f"holdfast.cli.{verb.module}"), words[0])
    try:
        return _read(run, words[1:])
    except _Unclear:
        return None


def _read(run: Callable[..., int | None], words: Sequence[str]) -> VerbCall | None:
    operands: list[inspect.Parameter] = []
    flags: list[tuple[inspect.Parameter, Flag]] = []
    for parameter, declared in parameters_of(run):
        if isinstance(declared, Operand):
            operands.append(parameter)
        else:
            flags.append((parameter, declared))
    names = {flag_of(field): (flag_of(field), True) for field in ClientSettings.__struct_fields__}
    names["--json"] = ("--json", False)
    for parameter, flag in flags:
        spellings = flag.spellings(parameter.name)
        names.update(dict.fromkeys(spellings, (spellings[0], parameter.annotation is not bool)))
    typed = _split(words, names)
    settings = client_settings.given(
        {
            field: str(typed.flags[flag_of(field)])
            for field in ClientSettings.__struct_fields__
            if flag_of(field) in typed.flags
        }
    )
    if settings is None:
        return None
    arguments: dict[str, Any] = {"settings": settings, "out": Output(as_json="--json" in typed.flags)}
    arguments.update(_operands(operands, typed.operands))
    for parameter, flag in flags:
        given = typed.flags.get(flag.spellings(parameter.name)[0])
        arguments[parameter.name] = parameter.default if given is None else _value(parameter, flag, given)
    return VerbCall(run, arguments)


def parameters_of(run: Callable[..., int | None]) -> list[tuple[inspect.Parameter, Operand | Flag]]:
    """A verb's own parameters, with their plain types, and their declarations."""
    hints = typing.get_type_hints(run, include_extras=True)
    found = []
    for name, parameter in inspect.signature(run).parameters.items():
        if name not in ("settings", "out"):
            plain, declared = typing.get_args(hints[name])
            found.append((parameter.replace(annotation=plain), declared))
    return found


def _split(words: Sequence[str], names: dict[str, tuple[str, bool]]) -> _Words:
    flags: dict[str, str | bool] = {}
    operands: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            operands += rest
        elif not word.startswith("-") or word == "-":
            operands.append(word)
        else:
            name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            first, takes_value = names.get(name, ("", False))
            if not first or first in flags or (equals and not takes_value):
                raise _Unclear
            flags[first] = (value if equals else _next(rest)) if takes_value else True
    return _Words(flags, operands)


def _next(rest: typing.Iterator[str]) -> str:
    value = next(rest, None)
    if value is None or (value.startswith("-") and value != "-"):
        raise _Unclear
    return value


def _operands(parameters: Sequence[inspect.Parameter], words: list[str]) -> dict[str, Any]:
    """Each parameter takes a word, the last one all that are left if it is a list."""
    taken: dict[str, Any] = {}
    left = list(words)
    for parameter in parameters:
        if parameter.annotation in (list[str], list[str] | None):
            value: Any = left or None
            left = []
        else:
            value = left.pop(0) if left else None
        if value is None and parameter.default is inspect.Parameter.empty:
            raise _Unclear
        taken[parameter.name] = parameter.default if value is None else value
    if left:
        raise _Unclear
    return taken


def _value(parameter: inspect.Parameter, flag: Flag, given: str | bool) -> object:
    if isinstance(given, bool) or parameter.annotation in (str, str | None):
        return given
    if parameter.annotation is not int or not _NUMBER.fullmatch(given) or int(given) < (flag.least or 0):
        raise _Unclear
    return int(given)
