"""`config check FILE`: everything that is wrong with a settings file, before a process is started with it.

A process stops at the first thing that it cannot use, and looks at its own table only. This reads all tables and
reports everything at once: keys that nothing reads, values that cannot be used, and settings that contradict each
other. Only the file counts, neither variables nor flags.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.exit_codes import OK, USAGE
from holdfast.cli.output import Output
from holdfast.errors import HoldfastError
from holdfast.settings import MODELS, BadSetting, MasterSettings, NodeSettings, Settings, check_table, unknown_keys

FILES = ("token_file", "identities", "tls_cert", "tls_key", "tls_ca")


def config(
    action: Annotated[str, typer.Argument(metavar="check", help="What to do with the file: check.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Settings file in TOML, as --config takes it.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts; a failure too.")] = False,
) -> int:
    """Check a settings file without starting anything: unknown keys, wrong values, contradictions."""
    if action != "check":
        raise BadSetting("write `holdfast config check FILE`")
    out = Output(as_json=json)
    tables = _tables(file)
    faults, notes = faults_of(tables), notes_of(tables)
    if out.as_json:
        out.data({"file": str(file), "faults": faults, "notes": notes})
        return USAGE if faults else OK
    for text in faults:
        out.line(f"wrong: {text}")
    for text in notes:
        out.line(f"note: {text}")
    found = f"{len(faults)} thing{'s are' if len(faults) > 1 else ' is'} wrong" if faults else "nothing is wrong"
    read = ", ".join(f"[{table}]" for table in tables if table in MODELS) or "no table"
    out.line(f"{file}: {found} ({read})")
    return USAGE if faults else OK


def _tables(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(f"the settings file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"the settings file {file} is not TOML: {error}") from error


def faults_of(tables: dict[str, Any]) -> list[str]:
    """Why processes would not start with these tables, or would not do what the file says."""
    faults = [f"{text}: nothing reads this{_meant(text)}" for text in unknown_keys(tables)]
    for table, given in tables.items():
        if table not in MODELS or not isinstance(given, dict):
            continue
        known = {key: value for key, value in given.items() if key in MODELS[table].model_fields}
        settings = check_table(MODELS[table], known)
        found = settings if isinstance(settings, list) else _contradictions(settings)
        faults += [f"[{table}] {text}" for text in found]
    return faults


def _meant(unknown: str) -> str:
    """The known name that an unknown one may stand for."""
    table, _, key = unknown.rpartition(".")
    homes = [f"{key} in [{other}]" for other, model in MODELS.items() if key in model.model_fields]
    if homes:
        return f"; {homes[0]} is read"
    near = get_close_matches(key.strip("[]"), MODELS[table].model_fields if table else MODELS, n=1)
    return f"; is {near[0] if table else f'[{near[0]}]'} meant?" if near else ""


def _contradictions(settings: Settings) -> Iterator[str]:
    given = settings.model_fields_set
    if {"token", "token_file"} <= given:
        yield "token and token_file are both given; give one of them"
    if "tls_key" in given and "tls_cert" not in given:
        yield "tls_key is given, and tls_cert, whose key it is, is not"
    if isinstance(settings, MasterSettings):
        yield from _of_coordination(settings)
        yield from _of_master(settings)
    if isinstance(settings, NodeSettings):
        if settings.max_size and settings.max_size < settings.size:
            yield f"max_size ({settings.max_size:,}) is less than size ({settings.size:,})"
        if "disk_size" in given and settings.disk is None:
            yield "disk_size is given, and disk, the directory that it is for, is not"


def _of_coordination(settings: MasterSettings) -> Iterator[str]:
    from holdfast.coordination.urls import parse_location

    try:
        named = parse_location(settings.coordination, settings.cluster).cluster
    except HoldfastError as error:
        yield f"coordination: {error}"
        return
    if "cluster" in settings.model_fields_set and named != settings.cluster:
        yield f"cluster is {settings.cluster!r}, and the URL of coordination says {named!r}, which counts; leave it out"


def _of_master(settings: MasterSettings) -> Iterator[str]:
    from holdfast.replication.depots import parse_place

    if settings.snapshots:
        try:
            parse_place(settings.snapshots)
        except HoldfastError as error:
            yield f"snapshots: {error}"
        if settings.data_dir is None:
            yield "snapshots is given, and data_dir, where they are kept first, is not"
    if settings.events_replay and not settings.events:
        yield "events_replay is given, and events, which it repeats, is not"
    if settings.tls_ask_clients and settings.tls_ca is None:
        yield "tls_ask_clients is on, and tls_ca, whose certificates clients are to have, is not given"
    if settings.eviction_margin >= settings.high_watermark:
        yield (
            f"eviction_margin ({settings.eviction_margin:g}) is not less than high_watermark "
            f"({settings.high_watermark:g}): eviction would empty the memory"
        )


def notes_of(tables: dict[str, Any]) -> list[str]:
    """Files that are named and are not on this machine: they may be where the process will run."""
    return [
        f"[{table}] {key}: {given[key]} is not on this machine"
        for table, given in tables.items()
        if table in MODELS and isinstance(given, dict)
        for key in FILES
        if isinstance(given.get(key), str) and not Path(given[key]).exists()
    ]
