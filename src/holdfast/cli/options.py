"""Flags made from the settings' fields, so that no setting is declared twice.

`@takes(ClientSettings)` turns `verb(settings, out, ...)` into a command whose flags are the verb's own
parameters, then one flag for each field of the model, `--config`, and `--json` where the verb has an `out`. Flags
arrive as text and the model reads them: a size means the same on the command line, in a variable and in a file.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer
from pydantic.fields import FieldInfo

from holdfast.cli import completion
from holdfast.cli.declared import Flag, Operand
from holdfast.cli.output import Output
from holdfast.environment.client_settings import CONFIG_VARIABLE, ClientSettings, flag_of, variable_of
from holdfast.settings import ClientTable, Settings, load

Verb: TypeAlias = Callable[..., int | None]

PLACEHOLDERS: dict[object, str] = {int: "N", float: "NUMBER", Path: "PATH", str: "TEXT"}
NAMED_PLACEHOLDERS = {
    "size": "SIZE",
    "listen": "HOST:PORT",
    "http": "HOST:PORT",
    "mooncake_http": "HOST:PORT",
    "advertise": "HOST:PORT",
}


def takes(model: type[Settings | ClientSettings]) -> Callable[[Verb], Verb]:
    """Give a verb its settings, read from flags, environment and file."""
    table = ClientTable if issubclass(model, ClientSettings) else model

    def decorate(verb: Verb) -> Verb:
        hints = typing.get_type_hints(verb, include_extras=True)
        own = [parameter for name, parameter in inspect.signature(verb).parameters.items() if name not in _GIVEN]
        parameters = [parameter.replace(annotation=_for_typer(hints[parameter.name])) for parameter in own]
        parameters += [_flag(name, field, table) for name, field in table.model_fields.items()]
        parameters.append(_config_flag())
        prints = "out" in hints
        if prints:
            parameters.append(_json_flag())

        @functools.wraps(verb)
        def command(**given: Any) -> int | None:
            config = given.pop("config") or os.environ.get(CONFIG_VARIABLE) or None
            fields = {name: given.pop(name) for name in table.model_fields}
            flags = {name: value for name, value in fields.items() if value is not None}
            settings = load(model, flags, Path(config) if config is not None else None)
            if prints:
                given["out"] = Output(as_json=given.pop("json"))
            if "config" in hints:
                given["config"] = Path(config) if config is not None else None
            return verb(settings=settings, **given)

        # Typer reads the signature; following `__wrapped__` would show it the verb's own.
        del command.__wrapped__
        shown: Any = command
        shown.__signature__ = inspect.Signature(parameters)
        shown.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


COMPLETIONS: dict[str, Callable[..., list[str]] | None] = {
    "": None,
    "keys": completion.keys,
    "nodes": completion.nodes,
}
_GIVEN = {"settings", "out", "config"}


def _for_typer(annotation: Any) -> Any:
    """An annotation that typer understands, of one that may have a declaration of ours."""
    parts = get_args(annotation)
    declared = parts[-1] if parts else None
    if isinstance(declared, Operand):
        argument: Any = typer.Argument(
            metavar=declared.metavar,
            help=declared.help,
            show_default=False,
            autocompletion=COMPLETIONS[declared.completes],
        )
        return Annotated[parts[0], argument]
    if isinstance(declared, Flag):
        option: Any = typer.Option(
            *declared.names,
            help=declared.help,
            metavar=declared.metavar,
            min=declared.least,
            show_default=declared.shows_default,
            autocompletion=COMPLETIONS[declared.completes],
        )
        return Annotated[parts[0], option]
    return annotation


def _flag(name: str, field: FieldInfo, model: type[Settings]) -> inspect.Parameter:
    panel = "Connection" if model.table == "client" else "Settings"
    help_text = f"{field.description} ({variable_of(name)}{_default(field)})"
    option: Any
    if field.annotation is bool:
        flags = f"{flag_of(name)}/--no-{name.replace('_', '-')}"
        option = typer.Option(flags, help=help_text, show_default=False, rich_help_panel=panel)
        return _parameter(name, Annotated[bool | None, option])
    option = typer.Option(
        flag_of(name), help=help_text, show_default=False, metavar=_placeholder(name, field), rich_help_panel=panel
    )
    return _parameter(name, Annotated[str | None, option])


def _config_flag() -> inspect.Parameter:
    text = f"Settings file in TOML ({CONFIG_VARIABLE})."
    option = typer.Option("--config", help=text, metavar="FILE", show_default=False)
    return _parameter("config", Annotated[str | None, option])


def _json_flag() -> inspect.Parameter:
    option = typer.Option("--json", help="Print JSON, for scripts; a failure too.")
    return _parameter("json", Annotated[bool, option], default=False)


def _parameter(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default(field: FieldInfo) -> str:
    if field.default is None or field.default == "":
        return ""
    if isinstance(field.default, bool):
        return "; yes" if field.default else "; no"
    return f"; {field.default}"


def _placeholder(name: str, field: FieldInfo) -> str:
    if name in NAMED_PLACEHOLDERS or name.endswith("_bytes"):
        return NAMED_PLACEHOLDERS.get(name, "SIZE")
    plain: object = field.annotation
    if isinstance(plain, types.UnionType):
        plain = next(part for part in get_args(plain) if part is not type(None))
    return PLACEHOLDERS.get(plain, "TEXT")
