"""The check of TCP writes to a node: a write needs a grant with the master's MAC that was not refused. Pure.

A node confirms `clean` once, and the range may belong to another writer from then on: so a refusal is for ever (I2,
I11), and yet its memory is bounded (I17). When there are too many, the older half is folded into one number per client:
all serials up to that floor are refused. A client takes its serials in order, so this costs at most a put that was long
in flight; it is refused and takes another grant. If even the clients become too many, every TCP write is refused until
the node has new memory: slow is better than wrong.
"""

from __future__ import annotations

from itertools import islice

from holdfast.errors import GrantRefused
from holdfast.ids import COPIES, GrantId
from holdfast.messages.of_nodes import ReadBack, WriteRange
from holdfast.wire.mac import issued_at, range_mac, same_mac

NEWEST_KEPT = 1_000_000
CLIENTS_KEPT = 1_000_000
LAST_SERIAL = 1 << 64


def check_write(key: bytes, request: WriteRange | ReadBack) -> None:
    """Raise unless the write, or its reading back, has a valid MAC and is inside its grant's range."""
    issued = issued_at(request.mac)
    right = range_mac(key, request.segment, request.grant, request.range_offset, request.range_length, issued)
    if not key or not same_mac(request.mac, right):
        raise GrantRefused(f"grant {request.grant} is not vouched for by the master; nothing was written or read")
    if request.offset < 0 or request.length < 0 or request.offset + request.length > request.range_length:
        raise GrantRefused(
            f"the write would leave the range of grant {request.grant} ({request.range_length:,} bytes); "
            "nothing was written"
        )


class RefusedGrants:
    """Grants that are refused for ever."""

    __slots__ = ("_clients_kept", "_floors", "_newest", "_newest_kept", "full")

    def __init__(self, newest_kept: int = NEWEST_KEPT, clients_kept: int = CLIENTS_KEPT) -> None:
        self._newest_kept = newest_kept
        self._clients_kept = clients_kept
        # A dict keeps the order of arrival.
        self._newest: dict[GrantId, None] = {}
        self._floors: dict[int, int] = {}
        self.full = False

    def __contains__(self, grant: GrantId) -> bool:
        return self.full or grant in self._newest or grant.serial <= self._floors.get(grant.client, -1)

    def __len__(self) -> int:
        """How many entries it keeps in memory."""
        return len(self._newest) + len(self._floors)

    def check(self, grant: GrantId) -> None:
        if grant in self:
            raise GrantRefused(f"grant {grant} has ended; nothing was written. Take another one")

    def add_client(self, client: int) -> None:
        """Refuse every grant of this client, also future ones."""
        self._floors[client] = LAST_SERIAL

    def add_through(self, client: int, serial: int) -> None:
        """Refuse every grant of this client up to this serial."""
        self._floors[client] = max(serial, self._floors.get(client, -1))

    def of_copies(self) -> RefusedGrants:
        """The refused grants for copying: they may be on a disk, which outlives the memory."""
        kept = RefusedGrants(self._newest_kept, self._clients_kept)
        kept._newest = {grant: None for grant in self._newest if grant.client == COPIES}
        kept._floors = {client: floor for client, floor in self._floors.items() if client == COPIES}
        return kept

    def add(self, grant: GrantId) -> None:
        if grant in self:
            return
        self._newest[grant] = None
        if len(self._newest) <= self._newest_kept:
            return
        for old in list(islice(self._newest, -(-len(self._newest) // 2))):
            del self._newest[old]
            self._floors[old.client] = max(old.serial, self._floors.get(old.client, -1))
        if len(self._floors) > self._clients_kept:
            self.full = True
            self._newest.clear()
            self._floors.clear()
