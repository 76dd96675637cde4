"""The one place where verbs get their client, so that a test can give them another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.settings import ClientSettings

if TYPE_CHECKING:
    from holdfast.client.blocking import Cache


def open_cache(settings: ClientSettings) -> Cache:
    """Connected, or `Unreachable`; close it with `with`."""
    import holdfast

    return holdfast.connect(settings.address, timeout=settings.timeout, token=settings.token)
