"""Bytes that wait in a master for its peers: frames that have not come whole, and replies that nobody reads.

Both have a bound for all connections together. Under it nobody is hurried. Over it the connection that has been waited
for the longest is ended, if that was longer than any honest peer needs; until there is one, those who add to it wait.
So a peer that is slow is served while there is room, and a thousand of them cannot fill the memory (I17).
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from holdfast.instant import Instant

INCOMING_BYTES = 24 << 20
"""For frames that have not come whole, of all connections: three of the longest. While one grows it is there twice."""
OUTGOING_BYTES = 32 << 20
"""For replies that wait for peers that do not read, of all connections."""
SMALL_BYTES = 64 << 10
"""A frame below this is received even while others wait for room."""
HURRY_MS = 1_000
"""Over the bound, a peer that has been waited for longer than this gives way."""
UNREAD_MS = 30_000
"""A peer that has read nothing for so long, though replies wait for it, is gone or means harm."""


class CountedPeer(Protocol):
    """A connection whose bytes are counted."""

    def waiting_bytes(self) -> int:
        """Bytes of replies that its peer has not read."""

    def go_on_receiving(self) -> None:
        """There is room again for its frame."""


PeerT = TypeVar("PeerT", bound=CountedPeer)


class Backlog(Generic[PeerT]):
    def __init__(self) -> None:
        self.incoming = 0
        self.outgoing = 0
        self._held: dict[PeerT, tuple[int, Instant]] = {}
        """Connection -> (bytes of its frame that is not whole, since when); in the order of the latter."""
        self._halted: dict[PeerT, None] = {}
        """Connections that are not read until there is room."""
        self._unread: dict[PeerT, tuple[int, Instant, Instant]] = {}
        """Connection -> (bytes of its replies, since when they wait, when its peer last read some); in the order in
        which they began to wait."""

    def may_reply(self) -> bool:
        return self.outgoing <= OUTGOING_BYTES

    def hold(self, peer: PeerT, size: int, now: Instant) -> bool:
        """A connection keeps this many bytes of a frame that is not whole; 0: none. False: it must not be read until
        `go_on_receiving`."""
        before, since = self._held.get(peer, (0, now))
        self.incoming += size - before
        if size:
            self._held[peer] = size, since
        else:
            self._held.pop(peer, None)
        if self.incoming <= INCOMING_BYTES or size <= SMALL_BYTES:
            return True
        self._halted[peer] = None
        return False

    def wait_for_reader(self, peer: PeerT, now: Instant) -> None:
        """Its peer does not read: its replies wait here."""
        size = peer.waiting_bytes()
        self.outgoing += size
        self._unread[peer] = size, now, now

    def is_read(self, peer: PeerT) -> None:
        """Its peer has read."""
        size, _, _ = self._unread.pop(peer, (0, 0, 0))
        self.outgoing -= size

    def forget(self, peer: PeerT) -> None:
        """The connection has ended."""
        size, _ = self._held.pop(peer, (0, 0))
        self.incoming -= size
        self._halted.pop(peer, None)
        self.is_read(peer)

    def ended(self, now: Instant) -> list[PeerT]:
        """Connections that must give way now. Then, whoever waited for room goes on."""
        victims = [*self._late_frames(now), *self._late_readers(now)]
        for peer in victims:
            self.forget(peer)
        if self._halted and self.incoming <= INCOMING_BYTES:
            halted, self._halted = self._halted, {}
            for peer in halted:
                # Its time begins again: it was not its peer that was slow.
                size, _ = self._held.pop(peer)
                self._held[peer] = size, now
                peer.go_on_receiving()
        return victims

    def _late_frames(self, now: Instant) -> list[PeerT]:
        late = []
        over = self.incoming - INCOMING_BYTES
        for peer, (size, since) in self._held.items():
            if over <= 0 or now - since <= HURRY_MS:
                break
            if peer not in self._halted:
                late.append(peer)
                over -= size
        return late

    def _late_readers(self, now: Instant) -> list[PeerT]:
        late = []
        over = self.outgoing - OUTGOING_BYTES
        for peer, (size, since, read_at) in list(self._unread.items()):
            left = peer.waiting_bytes()
            if left < size:
                read_at = now
            self.outgoing += left - size
            self._unread[peer] = left, since, read_at
            if now - read_at > UNREAD_MS or (over > 0 and now - since > HURRY_MS):
                late.append(peer)
                over -= left
        return late
