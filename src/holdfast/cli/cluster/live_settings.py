"""`settings`: what can be changed while the cluster runs. It is in the log, and so outlives a failover."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import connection
from holdfast.cli.cluster.masters import ask_one
from holdfast.cli.options import takes
from holdfast.cli.output import Output
from holdfast.errors import BadValue
from holdfast.instant import now_seconds
from holdfast.messages.requests import ChangeSettings, SettingsInForce
from holdfast.messages.shapes import SettingValue
from holdfast.settings import ClientSettings, parse_size


@takes(ClientSettings)
def settings(
    settings: ClientSettings,
    out: Output,
    changes: Annotated[
        list[str] | None, typer.Argument(help="NAME=VALUE; NAME= for what each master was started with.")
    ] = None,
) -> None:
    """Show the settings that can be changed while the cluster runs, or change some."""
    wanted = dict(map(parse_change, changes or []))
    with connection.open_cache(settings) as cache:
        primary = cache.status().leader
    deadline = now_seconds() + settings.timeout
    found = ask_one(primary, settings.token, ChangeSettings(wanted), SettingsInForce, deadline)
    if out.as_json:
        out.data({"settings": found.settings, "changed": found.changed})
        return
    out.table(
        ("setting", "value", ""),
        [
            (name, shown(value), "changed while running" if name in found.changed else "")
            for name, value in found.settings.items()
        ],
    )


def parse_change(text: str) -> tuple[str, SettingValue | None]:
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name:
        raise BadValue(f"{text!r} is no change: write it like lease_ttl_ms=5000, or lease_ttl_ms= to take it back")
    value = value.strip()
    if not value:
        return name, None
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    try:
        return name, parse_size(value) if "_bytes" in name else int(value)
    except ValueError:
        pass
    try:
        return name, float(value)
    except ValueError:
        raise BadValue(f"{value!r} is no number, nor true or false; nothing was changed") from None


def shown(value: SettingValue) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else f"{value:g}"
