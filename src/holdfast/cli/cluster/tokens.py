"""`holdfast token`: new tokens for the file of identities, hashes of tokens that exist, and old tokens taken out."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Output
from holdfast.errors import BadValue
from holdfast.identity.identities import hash_of
from holdfast.identity.new_tokens import NewEntry, append_entry, fresh_token, remove_token
from holdfast.identity.roles import Role


def token(
    action: Annotated[
        str, typer.Argument(metavar="new|hash|remove", help="Make one; or hash or remove one that stdin gives.")
    ],
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Of new: whose it is.")] = "",
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help=f"Of new, once or several times: {', '.join(Role)}. Needed for a new name."),
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant; without it, the default one.")] = "",
    not_after: Annotated[
        str, typer.Option("--not-after", metavar="DATE", help="The last day (UTC), or an RFC 3339 date and time.")
    ] = "",
    shared_memory: Annotated[
        bool | None,
        typer.Option("--shared-memory/--no-shared-memory", help="May it map nodes' memory? Without tenant: yes."),
    ] = None,
    identities: Annotated[
        Path | None,
        typer.Option("--identities", metavar="FILE", help="Of new and remove: the file to change (mode 0600)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts; a failure too.")] = False,
) -> None:
    """Make a token and its entry for the file of identities: the token to stdout, once; the entry to stderr, or into
    the file. Or hash a token, for an entry that you write yourself; or take a token out of the file, from stdin."""
    out = Output(as_json)
    if action == "hash":
        hashed = hash_of(_given_token())
        out.data({"hash": hashed}) if as_json else out.line(hashed)
        return
    if action == "remove" and identities is not None:
        _remove(out, identities)
        return
    if action != "new" or not name:
        raise BadValue(
            "say what to do: holdfast token new NAME --role ROLE, holdfast token hash, or holdfast token remove "
            "--identities FILE < TOKEN_FILE. Nothing was made"
        )
    entry, made = NewEntry(name, role or (), tenant, not_after, shared_memory), fresh_token()
    text = append_entry(identities, entry, made) if identities is not None else entry.text(made)
    if as_json:
        out.data({"name": name, "token": made, "entry": text})
        return
    # stderr is TOML too, so that `2>> FILE` makes an entry.
    note = f"# appended to {identities}; the token is shown this once" if identities is not None else text.rstrip()
    for line in note.splitlines():
        out.note(line)
    out.line(made)


def _remove(out: Output, identities: Path) -> None:
    owner = remove_token(identities, _given_token())
    text = f"a token of {owner} was removed from {identities}; masters refuse it within two seconds"
    out.data({"name": owner}) if out.as_json else out.line(text)


def _given_token() -> str:
    """Not from the command line, which other users can see."""
    given = getpass.getpass("token: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not given.strip():
        raise BadValue("stdin gave no token; nothing was done. Write it to stdin: holdfast token hash < FILE")
    return given.strip()
