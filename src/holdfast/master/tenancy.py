"""Translates between a tenant's keys and those inside the master: requests inwards, replies outwards (ADR 50).

Inside, a tenant's keys have its prefix (`ids.namespace_of`). A connection of a tenant has a `Tenancy`, and so has one
of the default tenant, whose prefix is empty, once there are tenants: then nobody can name, list, read, match, renew or
remove what is another's (I20). Every message class has a row in one of the tables below. One that has none is refused:
it might name keys that nobody translates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from holdfast.core.catalogue.catalogue import Catalogue
from holdfast.core.primary.request_rate import RequestRate
from holdfast.errors import BadKey, BadRequest, BadValue, HoldfastError, TenantBusy, TooManyClients
from holdfast.identity.identities import Identity
from holdfast.identity.roles import Role
from holdfast.ids import FIRST_FREE, MAX_KEY_BYTES, NAMESPACE_CHARACTERS, KeysOf, is_reserved, namespace_of
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine
from holdfast.messages import of_masters, of_nodes, of_sessions, of_tenants, requests
from holdfast.messages.rows import SeenRow
from holdfast.messages.shapes import Message

_FREQUENT = frozenset({requests.Exists, requests.Locate, requests.GrantRanges, requests.CommitPuts})
_KEEPING = frozenset({requests.RenewLeases, requests.ExtendGrants, requests.ReturnGrants})
_CLIENTS_AGAIN_MS = 1_000
LONGEST_KEY_BYTES = MAX_KEY_BYTES - NAMESPACE_CHARACTERS
"""Of a tenant's key: with its prefix it is as long as any key may be."""
_SURELY_SHORT = LONGEST_KEY_BYTES // 4
"""Characters, of four bytes at most."""


class Tenancy:
    """The view that one connection has of the keys."""

    __slots__ = ("_refused", "_written", "number", "prefix", "rate")

    def __init__(self, number: int, rate: RequestRate | None = None, refused: Counter[int] | None = None) -> None:
        self.number = number
        self.rate = rate
        """Of all connections of the tenant together; None: no limit."""
        self._refused = refused if refused is not None else Counter()
        self.prefix = namespace_of(number)
        self._written = repr(self.prefix)[1:-1]
        """The prefix as error texts show it."""

    def check_rate(self, request: Message, now: Instant) -> None:
        """Refuse a client's request that comes too soon after the others of its tenant. What keeps leases and grants
        alive, or gives them back, is only counted."""
        if self.rate is None or request.needs not in (Role.READER, Role.WRITER):
            return
        wait_ms = self.rate.take(now, type(request) in _KEEPING)
        if wait_ms:
            self._refused[self.number] += 1
            busy = TenantBusy(
                "the clients of this tenant send more requests per second than its quota allows; nothing was changed. "
                f"Try again in {wait_ms} ms"
            )
            busy.retry_after_ms = wait_ms
            raise busy

    def inward(self, request: Message, catalogue: Catalogue) -> None:
        """Translate a request, in place. Raises, with nothing changed, if it names what no client may name."""
        kind = type(request)
        if kind in _FREQUENT and (kind is not requests.CommitPuts or request.ahead is None):  # type: ignore[attr-defined]
            # Almost every put and get: one short key. It is as `inside` makes it, in a quarter of the time.
            keys: list[str] = request.keys  # type: ignore[attr-defined]
            if len(keys) == 1 and (key := keys[0]) >= FIRST_FREE and len(key) <= _SURELY_SHORT:
                request.keys = [self.prefix + key]  # type: ignore[attr-defined]
                return
        translate = INWARD.get(kind)
        if translate is not None:
            translate(self, request, catalogue)
        elif kind not in REQUESTS_WITHOUT_KEYS:
            raise BadRequest(f"{kind.__name__} cannot be sent where there are tenants; nothing was changed")

    def outward(self, reply: Message) -> None:
        """Translate a reply, in place."""
        kind = type(reply)
        if kind not in REPLIES_WITHOUT_KEYS:
            OUTWARD[kind](self, reply)

    def inside(self, keys: list[str]) -> list[str]:
        """These keys of a client as they are inside the master."""
        if keys and min(keys) < FIRST_FREE:
            self._check_small(keys)
        prefix = self.prefix
        if not prefix:
            return keys
        if max(map(len, keys), default=0) > _SURELY_SHORT:
            _check_long(keys)
        return KeysOf(prefix, [prefix + key for key in keys])

    def _check_small(self, keys: list[str]) -> None:
        if any(map(is_reserved, keys)):
            raise BadValue("a key begins with \\x01, which is reserved; nothing was changed")
        if self.prefix and "" in keys:
            raise BadKey("a key is empty; nothing was changed")

    def outside(self, text: str) -> str:
        """A text from inside the master, such as an error's, without the prefix."""
        return text.replace(self.prefix, "").replace(self._written, "") if self.prefix else text

    def owns(self, key: str | None) -> bool:
        """Is this key, from inside the master, one of this tenant's?"""
        return key is not None and (key.startswith(self.prefix) if self.prefix else not is_reserved(key))


def _check_long(keys: list[str]) -> None:
    for key in keys:
        if (size := len(key.encode())) > LONGEST_KEY_BYTES:
            raise BadKey(
                f"the key {key[:40]!r}... takes {size:,} bytes; those of a tenant have at most "
                f"{LONGEST_KEY_BYTES:,}. Nothing was changed"
            )


class Greeted(Protocol):
    """A connection that has greeted."""

    identity: Identity
    client: int
    tenancy: Tenancy | None


GreetedT = TypeVar("GreetedT", bound=Greeted)


class Tenancies:
    """Gives connections the tenancy of their identity, at a primary. A standby decides nothing about keys, and knows
    no numbers of tenants for sure."""

    def __init__(self) -> None:
        self._connections: Counter[int] = Counter()
        """Client of a tenant -> its open connections."""
        self._rates: dict[int, RequestRate] = {}

    def settle(self, peer: Greeted, peers: Callable[[], Iterable[Greeted]], engine: Engine, now: Instant) -> None:
        """One has greeted; `peers` gives all that have. Raises if its tenant is new and cannot be defined now."""
        if not peer.identity.tenant and not engine.state.tenants:
            return
        were_none = not engine.state.tenants
        number = engine.tenant(peer.identity.tenant, now)
        if were_none:
            # From now on there is something to keep the default tenant from.
            for other in peers():
                other.tenancy = self._tenancy(0, engine)
        self._enter(peer, number, engine)

    def settle_all(self, peers: Iterable[GreetedT], engine: Engine, now: Instant) -> list[GreetedT]:
        """An engine begins to lead, or the operator has changed the tenants. Returns those whose tenant is new and
        cannot be defined now: they must go."""
        self._connections.clear()
        engine.primary.namespaces.clear()
        tenants = engine.state.tenants
        kept = {number: rate for number, rate in self._rates.items() if rate.is_of(tenants.of(number))}
        self._rates = kept  # A change of one tenant's quotas gives the others no new second's worth.
        settled: list[tuple[GreetedT, int]] = []
        refused: list[GreetedT] = []
        for peer in peers:
            try:
                settled.append((peer, engine.tenant(peer.identity.tenant, now)))
            except HoldfastError:
                refused.append(peer)
        for peer, number in settled:
            peer.tenancy = None
            if engine.state.tenants:
                try:
                    self._enter(peer, number, engine)
                except HoldfastError:
                    refused.append(peer)
        return refused

    def _enter(self, peer: Greeted, number: int, engine: Engine) -> None:
        tenancy = self._tenancy(number, engine)
        if number:
            self._check_clients(peer, tenancy, engine)
            self._connections[peer.client] += 1
            engine.primary.namespaces[peer.client] = tenancy.prefix
        peer.tenancy = tenancy

    def _tenancy(self, number: int, engine: Engine) -> Tenancy:
        per_second = engine.state.tenants.of(number).requests_per_second
        rate = self._rates.setdefault(number, RequestRate(per_second)) if per_second else None
        return Tenancy(number, rate, engine.primary.tenants.refused)

    def _check_clients(self, peer: Greeted, tenancy: Tenancy, engine: Engine) -> None:
        most = engine.state.tenants.of(tenancy.number).max_clients
        if not most or peer.client in self._connections:
            return
        there = sum(prefix == tenancy.prefix for prefix in engine.primary.namespaces.values())
        if there >= most:
            engine.primary.tenants.refused[tenancy.number] += 1
            busy = TooManyClients(
                f"{there:,} clients of this tenant are connected, and it may have {most:,}; close one, or try later"
            )
            busy.retry_after_ms = _CLIENTS_AGAIN_MS
            raise busy

    def leave(self, peer: Greeted, engine: Engine) -> None:
        """Its connection is closed."""
        if peer.tenancy is not None and peer.tenancy.number and peer.client in self._connections:
            self._connections[peer.client] -= 1
            if not self._connections[peer.client]:
                del self._connections[peer.client]
                engine.primary.namespaces.pop(peer.client, None)


def _keys(tenancy: Tenancy, request: Any, catalogue: Catalogue) -> None:
    request.keys = tenancy.inside(request.keys)


def _commit(tenancy: Tenancy, request: requests.CommitPuts, catalogue: Catalogue) -> None:
    _keys(tenancy, request, catalogue)
    if request.ahead is not None:
        request.ahead.keys = tenancy.inside(request.ahead.keys)


def _prefix(tenancy: Tenancy, request: requests.ListKeys, catalogue: Catalogue) -> None:
    if request.prefix:
        tenancy.inside([request.prefix])
    request.prefix = tenancy.prefix + request.prefix


def _pattern(tenancy: Tenancy, request: requests.RemoveMatching, catalogue: Catalogue) -> None:
    """`core.objects.removals` matches behind the prefix."""
    if is_reserved(request.pattern):
        raise BadValue("the pattern begins with \\x01, which is reserved; nothing was removed")
    request.pattern = tenancy.prefix + request.pattern


def _seen(tenancy: Tenancy, request: requests.RenewLeases, catalogue: Catalogue) -> None:
    """Objects of others become unknown ones: id 0 is nobody's."""
    if len(request.rows) % SeenRow.size_bytes:
        return  # It is refused by core.
    slot_of, keys = catalogue.by_id.slot_of, catalogue.keys
    rows = list(SeenRow.iter_unpack(request.rows))
    slots = [slot_of(oid) for oid, _, _ in rows]
    own = [slot >= 0 and tenancy.owns(keys[slot]) for slot in slots]
    if not all(own):
        request.rows = SeenRow.pack_rows(
            [row if is_own else (0, *row[1:]) for row, is_own in zip(rows, own, strict=True)]
        )


def _key_list(tenancy: Tenancy, reply: requests.KeyList) -> None:
    reply.keys = [key[len(tenancy.prefix) :] for key in reply.keys if tenancy.owns(key)]


def _stats(tenancy: Tenancy, reply: requests.Stats | requests.Explanations) -> None:
    for stat in reply.stats:
        if stat is not None:
            stat.key = stat.key[len(tenancy.prefix) :]


def _failed(tenancy: Tenancy, reply: requests.Failed) -> None:
    reply.text = tenancy.outside(reply.text)


INWARD: dict[type[Message], Callable[[Tenancy, Any, Catalogue], None]] = {
    requests.Exists: _keys,
    requests.Locate: _keys,
    requests.GrantRanges: _keys,
    requests.CommitPuts: _commit,
    requests.Remove: _keys,
    requests.ChangePins: _keys,
    requests.Stat: _keys,
    requests.Explain: _keys,
    requests.ListKeys: _prefix,
    requests.RemoveMatching: _pattern,
    requests.RenewLeases: _seen,
}
OUTWARD: dict[type[Message], Callable[[Tenancy, Any], None]] = {
    requests.KeyList: _key_list,
    requests.Stats: _stats,
    requests.Explanations: _stats,
    requests.Failed: _failed,
}
REQUESTS_WITHOUT_KEYS: frozenset[type[Message]] = frozenset(
    {
        requests.Hello,
        requests.ExtendGrants,
        requests.ReturnGrants,
        requests.ListSegments,
        requests.GetStatus,
        requests.ListNodes,
        requests.ChangeMode,
        requests.ResizeNode,
        requests.RevokeWrites,
        requests.ChangeCopying,
        requests.ChangeSettings,
        of_tenants.ListTenants,
        of_tenants.ChangeTenant,
        of_tenants.RemoveTenant,
        of_masters.FetchSnapshot,
        of_masters.HoldTail,
        of_masters.HandOver,
        of_masters.TakeSnapshot,
        of_masters.DescribeHistories,
        of_masters.OfferCatalogue,
        of_masters.RestoreHistory,
        of_masters.ListClients,
        of_masters.GetOverview,
        of_masters.ListEvents,
        of_masters.EndClient,
        of_nodes.RegisterNode,
        of_nodes.ReportWriters,
        of_nodes.ReportUsage,
        of_nodes.ReportGone,
        of_nodes.AddReplicas,
        of_nodes.MountDisk,
        of_nodes.ReportFiles,
        of_nodes.ReportDisk,
        of_nodes.MountSegment,
        of_nodes.ReportLostFiles,
        of_nodes.ListFiles,
        of_nodes.ReportFilesVerified,
        of_nodes.VerifyRanges,
        of_sessions.OpenSession,
        of_sessions.KeepAlive,
        of_sessions.CloseSession,
        of_sessions.GiveSign,
    }
)
REPLIES_WITHOUT_KEYS: frozenset[type[Message]] = frozenset(
    {
        requests.Welcome,
        requests.Presence,
        requests.Located,
        requests.Granted,
        requests.Committed,
        requests.Done,
        requests.Removed,
        requests.SegmentList,
        requests.Status,
        requests.NodeList,
        requests.SettingsInForce,
        of_tenants.TenantList,
        of_masters.SnapshotPiece,
        of_masters.TailHeld,
        of_masters.HistoriesDescribed,
        of_masters.ClientList,
        of_masters.Overview,
        of_masters.EventList,
        of_nodes.Registered,
        of_nodes.DiskMounted,
        of_nodes.FilesForgotten,
        of_nodes.FileList,
        of_nodes.RangesToVerify,
        of_sessions.Opened,
        of_sessions.KeptAlive,
        of_sessions.EpochDiffers,
    }
)
