"""The one place where verbs get their client, so that a test can give them another."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import msgspec

import holdfast
from holdfast.addresses import split_address
from holdfast.environment.client_settings import ClientSettings
from holdfast.errors import Unreachable
from holdfast.messages.hello import fresh_hello
from holdfast.transport.addresses import master_addresses
from holdfast.transport.channel import Channel
from holdfast.transport.shared_memory import populate_nothing

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

LISTENS_SECONDS = 1.0
"""The longest wait for one master before the client, which is more patient, tries them all."""
AFTERWARDS_SECONDS = 3.0
"""How long to ask, after Ctrl-C, what was done."""


def open_cache(settings: ClientSettings, brief: bool = False) -> Cache:
    """Connected to the primary, or `Unreachable`; close it with `with`. `brief`: it will move one object."""
    use_certificates(settings)
    if "://" not in settings.address:
        refuse_where_nobody_listens(master_addresses(settings.address), min(LISTENS_SECONDS, settings.timeout))
    if brief:
        populate_nothing()
    return holdfast.connect(settings.address, timeout=settings.timeout, token=settings.token)


def afterwards(settings: ClientSettings) -> ClientSettings:
    """For a question after Ctrl-C: what is true now? Nobody wants to wait for long then."""
    return msgspec.structs.replace(settings, timeout=min(settings.timeout, AFTERWARDS_SECONDS))


def use_certificates(settings: ClientSettings) -> None:
    """Dial with TLS from now on, if the settings say so."""
    if settings.tls_ca is not None or settings.tls_cert is not None:
        from holdfast.transport.tls import client_context, speak_as

        speak_as(client_context(settings.tls_ca, settings.tls_cert, settings.tls_key))


def open_channel(address: str, token: str, deadline: float) -> Channel:
    """Connected to the master at this very address, whatever its role."""
    return Channel.open(address, fresh_hello(token, looks=True), deadline)


def refuse_where_nobody_listens(addresses: list[str], seconds: float) -> None:
    """Unreachable if each of these masters refuses the connection at once, or has a name that is none.

    A client goes on trying for some seconds, as a master may be about to take over or to start; somebody at a keyboard
    wants to know. Where any of them accepts, or does not answer at all, waiting is left to the client."""
    faults = []
    for address in addresses:
        try:
            socket.create_connection(split_address(address), seconds).close()
        except OSError as error:
            if not isinstance(error, socket.gaierror) and error.errno != errno.ECONNREFUSED:
                return
            faults.append(f"{address} ({error})")
        else:
            return
    raise Unreachable(f"nobody answers at {', '.join(faults)}; nothing was sent. Is the master running?")
