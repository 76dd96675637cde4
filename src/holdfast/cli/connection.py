"""The one place where verbs get their client, so that a test can give them another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.messages.hello import fresh_hello
from holdfast.settings import ClientSettings
from holdfast.transport.channel import Channel
from holdfast.transport.tls import client_context, speak_as

if TYPE_CHECKING:
    from holdfast.client.cache import Cache


def open_cache(settings: ClientSettings) -> Cache:
    """Connected to the primary, or `Unreachable`; close it with `with`."""
    import holdfast

    if settings.tls_ca is not None or settings.tls_cert is not None:
        speak_as(client_context(settings.tls_ca, settings.tls_cert, settings.tls_key))
    return holdfast.connect(settings.address, timeout=settings.timeout, token=settings.token)


def open_channel(address: str, token: str, deadline: float) -> Channel:
    """Connected to the master at this very address, whatever its role."""
    return Channel.open(address, fresh_hello(token, looks=True), deadline)
