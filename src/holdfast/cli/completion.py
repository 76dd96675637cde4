"""Keys and names of nodes, for the shell that completes a command line.

Somebody waits with a finger on the key: the cluster is asked with a short deadline, and where it does not answer,
nothing is offered and nothing is said.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import msgspec
import typer

from holdfast.cli import connection
from holdfast.environment.client_settings import ClientSettings
from holdfast.errors import HoldfastError
from holdfast.settings import load

ANSWER_SECONDS = 0.5
MOST_OFFERED = 100


def keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Some keys that begin so. One that a terminal could not show as it is, is not offered."""
    try:
        with connection.open_cache(settings_in(ctx)) as cache:
            page, cursor = cache.some_keys(incomplete)
            while cursor and len(page) < MOST_OFFERED:
                more, cursor = cache.some_keys(incomplete, cursor)
                page += more
    except (HoldfastError, OSError):
        return []
    return list(islice((key for key in page if key.isprintable()), MOST_OFFERED))


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    try:
        with connection.open_cache(settings_in(ctx)) as cache:
            names = [node.name for node in cache.nodes().nodes]
    except (HoldfastError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def settings_in(ctx: typer.Context) -> ClientSettings:
    """Of the flags that have been typed so far, with the short deadline."""
    typed = {name: ctx.params.get(name) for name in ClientSettings.__struct_fields__}
    config = ctx.params.get("config")
    flags = {name: value for name, value in typed.items() if value is not None}
    return msgspec.structs.replace(
        load(ClientSettings, flags, Path(config) if config else None), timeout=ANSWER_SECONDS
    )
