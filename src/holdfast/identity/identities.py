"""Identities: who a connection belongs to, found by the token or the certificate that it shows.

Three kinds of cluster have them, and all ask the same way:

1. without a token or a file everybody is `EVERYBODY`: all roles, nothing to show;
2. with `--token` whoever shows it is the identity "token", with all roles;
3. with a file of identities a token or a certificate's name stands for one of them.

Only hashes of tokens are kept. A plain SHA-256 is enough: a token has 256 random bits, so there is no dictionary to try
and nothing that a salt or a slow hash would add; the greeting stays cheap, also for a flood of wrong tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.errors import NotAuthorized
from holdfast.identity.roles import ALL_ROLES, Role

HASH_PREFIX = "sha256:"
CERTIFICATE_PREFIX = "certificate:"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a connection belongs to."""

    name: str
    roles: frozenset[Role]
    """With all that they include."""
    tenant: str = ""
    """Empty: the default tenant."""
    shared_memory: bool = True
    """May map the memory of nodes on its machine; otherwise it reads and writes over the socket."""
    shown: str = field(default="", repr=False)
    """The hash or the certificate's name that it was recognised by, to notice when that one is withdrawn."""

    def may(self, role: Role) -> bool:
        return role in self.roles

    @property
    def by_certificate(self) -> bool:
        """Was it recognised by a certificate, and not by a token?"""
        return self.shown.startswith(CERTIFICATE_PREFIX)


EVERYBODY = Identity("", ALL_ROLES)
"""What a cluster without token and file gives to every connection."""

ONE_TOKEN = Identity("token", ALL_ROLES)
"""Whoever shows the one token of a cluster without a file of identities."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An identity, and the proofs that stand for it."""

    identity: Identity
    hashes: tuple[str, ...] = field(default=(), repr=False)
    """Hashes of its tokens, as `hash_of` makes them."""
    certificates: tuple[str, ...] = ()
    """Names of client certificates."""
    not_after: float = math.inf
    """Seconds since 1970: it is refused from then on."""


class Identities:
    """All identities of a cluster."""

    def __init__(self, entries: Iterable[Entry], *, open_to_all: bool = False, one_token: bool = False) -> None:
        self.entries = tuple(entries)
        self.open_to_all = open_to_all
        self._one_token = one_token
        self.fault = ""
        """Why the file that is there now is not in force; empty: it is, or there is none. It names identities."""

    @classmethod
    def of_everybody(cls) -> Identities:
        return cls((), open_to_all=True)

    @classmethod
    def of_one_token(cls, token: str) -> Identities:
        return cls([Entry(ONE_TOKEN, (hash_of(token),))], one_token=True)

    def replace(self, entries: Iterable[Entry]) -> None:
        """These are in force from now on. Whoever holds this object sees them: the servers of RPC and of HTTP do."""
        self.entries = tuple(entries)
        self.fault = ""

    @property
    def gives_all_roles(self) -> bool:
        """Is there only one identity, with all roles? Then nothing that is sent needs to be checked."""
        return self.open_to_all or self._one_token

    def of_greeting(self, token: str, certificate_names: Iterable[str], now: float) -> Identity:
        """Whom a connection belongs to that shows this token, or none and a certificate of these names."""
        known = next((name for name in certificate_names if self.knows_certificate(name)), "") if not token else ""
        return self.of_certificate(known, now) if known else self.of_token(token, now)

    def of_token(self, token: str, now: float) -> Identity:
        """Whom this token stands for; `now` in seconds since 1970."""
        if self.open_to_all:
            return EVERYBODY
        shown = hash_of(token)
        # All are compared, each in constant time: how long it takes tells nothing about any of them.
        found = [(entry, one) for entry in self.entries for one in entry.hashes if hmac.compare_digest(one, shown)]
        if not found:
            raise NotAuthorized("the token is missing or wrong; the connection is closed. Give a token of the cluster")
        return _admitted(*found[0], now)

    def of_certificate(self, name: str, now: float) -> Identity:
        """Whom a client certificate of this name stands for; `now` in seconds since 1970."""
        if self.open_to_all:
            return EVERYBODY
        for entry in self.entries:
            if name in entry.certificates:
                return _admitted(entry, CERTIFICATE_PREFIX + name, now)
        raise NotAuthorized(
            f"no identity has the certificate {name!r}; the connection is closed. "
            "Name it in the file of identities, or show a token"
        )

    def knows_certificate(self, name: str) -> bool:
        return any(name in entry.certificates for entry in self.entries)

    def next_end(self, now: float) -> float:
        """When the next of those that still count ends, in seconds since 1970."""
        return min((entry.not_after for entry in self.entries if entry.not_after > now), default=math.inf)

    def still_admits(self, identity: Identity, now: float) -> bool:
        """Whether a connection that was admitted as this identity would be admitted as the same one now."""
        if self.open_to_all:
            return identity is EVERYBODY
        kind, _, name = identity.shown.partition(":")
        for entry in self.entries:
            proofs = entry.certificates if kind == "certificate" else entry.hashes
            if (name if kind == "certificate" else identity.shown) in proofs:
                return now < entry.not_after and _shown(entry.identity, identity.shown) == identity
        return False


def fault_for(identity: Identity, fault: str) -> str:
    """As much of a file's fault as this identity may know: others would read the names of other tenants' identities."""
    return fault if identity.may(Role.OPERATOR) or not fault else "the new file cannot be used; operators are told why"


def hash_of(token: str) -> str:
    return HASH_PREFIX + hashlib.sha256(token.encode()).hexdigest()


def _admitted(entry: Entry, shown: str, now: float) -> Identity:
    if now >= entry.not_after:
        raise NotAuthorized(
            f"the identity {entry.identity.name!r} has expired; the connection is closed. "
            "Ask the operator for a new token"
        )
    return _shown(entry.identity, shown)


def _shown(identity: Identity, shown: str) -> Identity:
    return Identity(identity.name, identity.roles, identity.tenant, identity.shared_memory, shown)
