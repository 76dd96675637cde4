"""`holdfast certificates`: an authority of one's own, and certificates for masters, nodes and clients."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Output
from holdfast.errors import BadValue
from holdfast.identity.certificates import AUTHORITY, NewCertificate, make_authority, sign
from holdfast.instant import calendar_seconds

AUTHORITY_DAYS = 3_650
DAYS = 365


def certificates(
    kind: Annotated[str, typer.Argument(metavar="authority|server|client", help="What to make.")],
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Whose it is: the common name, and the name of the files.")
    ] = "",
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Of server, once or several times: an address or a host name that others dial."),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", help=f"How long it is good. 0: {DAYS}, of an authority {AUTHORITY_DAYS:,}.")
    ] = 0,
    directory: Annotated[
        Path, typer.Option("--directory", help="Where the authority is, and where files are written.")
    ] = Path("certificates"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts; a failure too.")] = False,
) -> None:
    """Make an authority, and certificates that it signs: for servers (masters and nodes), and for clients. Keys are
    readable by you alone, and nothing is overwritten. It needs the program openssl."""
    hosts = host or []
    if kind == "authority" and not hosts:
        lasts = days or AUTHORITY_DAYS
        written = make_authority(directory, name or "holdfast-authority", lasts, force)
        notes = [
            f"{written[0].name} goes to every machine (--tls-ca); {written[1].name} to none, and is kept safe",
            "next: holdfast certificates server NAME --host ADDRESS; holdfast certificates client NAME",
        ]
    elif kind in ("server", "client") and name and (kind == "server") == bool(hosts):
        lasts = days or DAYS
        written = sign(directory, NewCertificate(name, hosts, kind == "server", lasts), force)
        flags = f"--tls-cert {written[0]} --tls-key {written[1]} --tls-ca {directory / AUTHORITY}.pem"
        notes = [f"next: holdfast {'master|node' if kind == 'server' else 'VERB'} {flags}"]
        if kind == "client":
            notes.append(f'it stands for a token where an identity lists it: certificates = ["{name}"]')
    else:
        raise BadValue(
            "write: certificates authority; certificates server NAME --host ADDRESS; or certificates client NAME. "
            "Nothing was written"
        )
    _tell(Output(as_json), written, hosts, lasts, notes)


def _tell(out: Output, written: Sequence[Path], hosts: Sequence[str], days: int, notes: Sequence[str]) -> None:
    until = dt.datetime.fromtimestamp(calendar_seconds() + days * 86_400, dt.UTC).date().isoformat()
    if out.as_json:
        out.data({"written": [str(path) for path in written], "hosts": hosts, "until": until})
        return
    for path in written:
        out.line(f"written: {path}")
    out.line(f"good until {until}" + (f", for {', '.join(hosts)}" if hosts else ""))
    for note in notes:
        out.note(note)
