"""Who may ask a master what over HTTP: the same identities as over RPC, a role for every route, and no stranger's page.

Each route declares the role that it needs (`needs`), or that it is open (`open_to_all`). One that declares nothing is
refused, and so is a path that does not exist to whoever may not read: deny by default. The checks, in this order:

1. The name by which it was asked (`Host`). A page of a stranger can have its own name resolved to 127.0.0.1 and then
   ask this server from the user's browser; it cannot change the name that the browser sends. An address as the host is
   fine: it cannot be resolved to another one.
2. For whatever changes something, the origin: a browser sends forms to everywhere.
3. The identity: a token (`Authorization: Bearer`, or the password of `Basic`, which browsers and old tools can send),
   or the client's certificate.
4. The role.
5. Its share: of the requests under way, those of one identity and those of all who are no operators have a part each.
   What is open to all and what is refused has none: strangers cannot use up anybody's, and a probe needs none.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Depends, HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from holdfast.addresses import split_address
from holdfast.errors import BadValue, HoldfastError, NotAuthorized
from holdfast.identity.identities import Identities, Identity
from holdfast.identity.roles import Role
from holdfast.instant import calendar_seconds

MOST_BODY_BYTES = 65_536
"""Of a request; the largest that anybody needs has a few hundred."""
PIECE_BYTES = 65_536
"""Of an answer: as much is handed to the connection at once, and the next when the client has taken enough of it."""
LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost", "localhost.localdomain"})
NOBODY = Identity("", frozenset())
OF_PAGE = b"x-holdfast-page"
"""The header by which the dashboard's page tells that it asks."""
SECURITY_HEADERS: dict[bytes, bytes] = {
    b"content-security-policy": b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}

EndpointT = TypeVar("EndpointT", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Needed:
    """The declaration of a route; None: it is open to all."""

    role: Role | None


def needs(role: Role) -> Callable[[EndpointT], EndpointT]:
    """Declare the role that this endpoint needs."""

    def declare(endpoint: EndpointT) -> EndpointT:
        endpoint.needed = Needed(role)  # type: ignore[attr-defined]
        return endpoint

    return declare


def open_to_all(endpoint: EndpointT) -> EndpointT:
    """Declare that this endpoint answers everybody, strangers too."""
    endpoint.needed = Needed(None)  # type: ignore[attr-defined]
    return endpoint


def declared(endpoint: object) -> Needed | None:
    """What the endpoint declares; None: nothing, so that it is refused."""
    return getattr(endpoint, "needed", None)


def _asker(request: Request) -> Identity:
    found: Identity = request.scope["identity"]
    return found


Asker = Annotated[Identity, Depends(_asker)]
"""An endpoint's parameter: who asks. Of an open endpoint, `NOBODY` for strangers."""


@dataclass(frozen=True, slots=True)
class Doorkeeper:
    """Finds out who asks."""

    identities: Identities
    """The very object of the RPC server, which changes with the file of identities."""
    asks_certificate: bool = False
    """Nobody is known without a certificate of the authority, as on the RPC port (`--tls-ask-clients`)."""
    hosts: frozenset[str] = frozenset()
    """Names of this server, in lower case, beside those of loopback."""

    def identity_of(self, scope: Scope) -> Identity:
        """`NotAuthorized` if it shows nothing that is known."""
        names: list[str] | None = scope.get("state", {}).get("certificate_names")
        if self.asks_certificate and names is None:
            raise NotAuthorized("show a certificate that the cluster's authority signed")
        return self.identities.of_greeting(_token(scope), names or (), calendar_seconds())

    def still_admits(self, identity: Identity) -> bool:
        """For answers that go on: is who was let in still to be let in?"""
        return self.identities.still_admits(identity, calendar_seconds())

    def is_own_host(self, scope: Scope) -> bool:
        given = _values(scope, b"host")
        if not given:
            return True  # HTTP/1.0, as load balancers ask; no browser does.
        try:
            host = split_address(given[0], default_port=0)[0].lower().rstrip(".")
        except BadValue:
            return False
        return len(given) == 1 and (host in LOOPBACK_NAMES or host in self.hosts or _is_address(host))


def names_of(addresses: Iterable[str], more: str) -> frozenset[str]:
    """Names of a server that listens on these addresses, with those of the setting."""
    given = [*(split_address(address)[0] for address in addresses if address), *more.split(",")]
    return frozenset(name.strip().lower().rstrip(".") for name in given if name.strip())


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _token(scope: Scope) -> str:
    """The token that it shows; empty: none."""
    given = _values(scope, b"authorization")
    kind, _, shown = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if kind.lower() == "bearer":
        return shown.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(shown.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


@dataclass(frozen=True, slots=True)
class Shares:
    """The most that may be under way at once, of requests or of streams."""

    of_all: int
    of_others: int
    """Of all who are no operators: an operator can hand over while they ask for everything there is."""
    of_one: int
    """Of one identity that is no operator's."""


class UnderWay:
    """Counts what is under way, by who asked for it."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._operators = 0
        self._others: Counter[str] = Counter()
        """Identity -> how many."""

    def has_room(self, identity: Identity) -> bool:
        """For one more of this identity?"""
        others = self._others.total()
        if self._operators + others >= self._shares.of_all:
            return False
        if identity.may(Role.OPERATOR):
            return True
        return others < self._shares.of_others and self._others[identity.name] < self._shares.of_one

    @contextlib.contextmanager
    def one_more(self, identity: Identity) -> Iterator[None]:
        """Counted until the end of the block."""
        if identity.may(Role.OPERATOR):
            self._operators += 1
        else:
            self._others[identity.name] += 1
        try:
            yield
        finally:
            if identity.may(Role.OPERATOR):
                self._operators -= 1
            else:
                self._others -= Counter([identity.name])  # Nothing is kept of an identity with none.


SHARES = Shares(of_all=64, of_others=40, of_one=24)


class GuardedApp:
    """An application behind these checks."""

    def __init__(self, app: Starlette, doorkeeper: Doorkeeper, shares: Shares = SHARES) -> None:
        self.app = app
        self._doorkeeper = doorkeeper
        self._under_way = UnderWay(shares)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = _in_pieces(_with_headers(send))
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            receive = _bounded(receive)
        if scope["is_open"]:
            await self.app(scope, receive, send)
            return
        with self._under_way.one_more(scope["identity"]):
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        endpoint = self._endpoint(scope)
        needed = Needed(Role.READER) if endpoint is None else declared(endpoint)
        if needed is None:
            return _refuse(403, "this path declares no role, and is nobody's")
        scope["identity"] = NOBODY
        scope["is_open"] = is_open = needed.role is None
        if not is_open and not self._doorkeeper.is_own_host(scope):
            return _refuse(421, "this server has another name; if it has this one too, name it in --http-hosts")
        if scope["method"] not in ("GET", "HEAD") and not _is_own_origin(scope):
            return _refuse(403, "a page of another origin may not change anything here")
        try:
            scope["identity"] = identity = self._doorkeeper.identity_of(scope)
        except HoldfastError:
            text = "show a token of the cluster (Authorization: Bearer TOKEN) or a certificate that it knows"
            # The dashboard's page asks for the token itself: for `Basic`, the browser would ask beside it.
            ways = "Bearer" if _values(scope, OF_PAGE) else 'Basic realm="holdfast", Bearer'
            return None if is_open else _refuse(401, text, {"www-authenticate": ways})
        scope["still_admitted"] = partial(self._doorkeeper.still_admits, identity)
        if is_open:
            return None
        if not self._under_way.has_room(identity):
            return _refuse(503, "too many requests are under way; try again", {"retry-after": "1"})
        return _check_role(identity, needed.role)

    def _endpoint(self, scope: Scope) -> object:
        """Of the route that would answer; None: there is none."""
        found = None
        for route in self.app.routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                return child.get("endpoint", route)
            if match is Match.PARTIAL and found is None:
                found = child.get("endpoint", route)
        return found


def _check_role(identity: Identity, role: Role | None) -> JSONResponse | None:
    if role is None or identity.may(role):
        return None
    has = ", ".join(sorted(identity.roles)) or "none"
    return _refuse(403, f"this needs the role {role}, and {identity.name!r} has {has}")


def _is_own_origin(scope: Scope) -> bool:
    """Tools send neither header; browsers send both, and no page can change them."""
    host = "".join(_values(scope, b"host"))
    if any(origin.partition("://")[2] != host for origin in _values(scope, b"origin")):
        return False
    return all(site in ("same-origin", "none") for site in _values(scope, b"sec-fetch-site"))


def _refuse(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": text}, status, headers)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = dict(message.get("headers", ()))
            message["headers"] = [*(SECURITY_HEADERS | given).items()]
        await send(message)

    return send_with_headers


def _bounded(receive: Receive) -> Receive:
    """Of a body, no more than `MOST_BODY_BYTES`: an application keeps all of it in memory before it looks at it."""
    taken = 0

    async def receive_bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MOST_BODY_BYTES:
            text = f"the body has more than {MOST_BODY_BYTES:,} bytes; nothing was changed"
            raise HTTPException(413, text, {"connection": "close"})
        return message

    return receive_bounded


def _in_pieces(send: Send) -> Send:
    """A large answer piece by piece, so that it is under way until the client has taken it, and the connection holds no
    second copy of it meanwhile."""

    async def send_in_pieces(message: Message) -> None:
        body = message.get("body", b"") if message["type"] == "http.response.body" else b""
        first = 0
        while len(body) - first > PIECE_BYTES:
            await send({**message, "body": body[first : first + PIECE_BYTES], "more_body": True})
            first += PIECE_BYTES
        await send({**message, "body": body[first:]} if first else message)

    return send_in_pieces
