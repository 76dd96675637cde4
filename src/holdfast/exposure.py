"""Listeners beyond loopback: what protects them, and the refusal to open one that nothing protects (ADR 49).

A listener on loopback needs nothing. One that other machines reach needs both: whoever connects must show who it is,
and the bytes are encrypted. A token that is sent in the clear protects nobody, and encryption alone hides the bytes
from everybody but the strangers who may ask for them.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.addresses import split_address
from holdfast.errors import BadValue

ADVICE = (
    "Give every process a certificate (--tls-cert, --tls-key, --tls-ca) and a secret to ask for ({ways}), as "
    "docs/guides/security.md shows; or listen on 127.0.0.1; or, where only machines that you trust reach it, insist "
    "with --insecure"
)


class Exposed(BadValue):
    """A listener would have been open to strangers; nothing was started."""


@dataclass(frozen=True, slots=True)
class PlannedListener:
    """A listener that a process is about to open."""

    flag: str
    address: str
    asks: bool
    """Must whoever connects show who it is?"""
    encrypts: bool
    why: str = ""
    """Why it lacks protection whatever is given, where that is so."""

    def lacks(self) -> str:
        """What it lacks, for people; empty: nothing."""
        if (self.asks and self.encrypts) or is_loopback(split_address(self.address)[0]):
            return ""
        lacking = [] if self.asks else ["anybody may connect"]
        lacking += [] if self.encrypts else ["nothing is encrypted"]
        return f"{self.flag} {self.address}: {' and '.join(lacking)}{f' ({self.why})' if self.why else ''}"


def check_exposure(listeners: Iterable[PlannedListener], insecure: bool, ways: str) -> list[str]:
    """What each listener beyond loopback lacks. `Exposed` if there is any and nobody insists (`insecure`).

    `ways` names the flags by which this process can be told whom to let in.
    """
    found = [text for one in listeners if (text := one.lacks())]
    if found and not insecure:
        raise Exposed(
            f"other machines could reach this process unprotected: {'; '.join(found)}. Nothing was started. "
            + ADVICE.format(ways=ways)
        )
    return found


def is_loopback(host: str) -> bool:
    """Is this host reached from its own machine only? A name is when all of its addresses are."""
    try:
        return _is_loopback_address(host)
    except ValueError:  # A name.
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(_is_loopback_address(str(place[0])) for *_, place in found)


def _is_loopback_address(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
