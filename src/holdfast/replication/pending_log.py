"""Records that were applied but are not durable yet, and everything that waits for their durability.

While an append is under way the next records gather; the next batch takes them all, up to a limit in bytes: group
commit. A batch, once cut, is resent byte for byte until its fate is known. Pure: the writer asks for the next batch
and reports when one is durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from holdfast.instant import Instant
from holdfast.messages.shapes import Record
from holdfast.replication.batches import HEAD_BYTES, Position, encode_batch, encode_record

Released = Callable[[], None]


class PendingReply(ABC):
    """A reply that waits for its record, until it is called (sent) or refused."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: Instant) -> None:
        self.deadline = deadline

    @abstractmethod
    def __call__(self) -> None: ...

    @abstractmethod
    def refuse(self, why: str) -> None:
        """Give up: the deadline has passed, and the record may or may not become durable."""


class PendingLog:
    def __init__(self, position: Position) -> None:
        self.position = position
        """After the last batch that was cut."""
        self.written = position
        """After the last batch that is durable."""
        self.durable = position.index
        """Index of the last durable record."""
        self.index = position.index
        """Index of the last record."""
        self.bytes = 0
        """Bytes of the records that are not durable."""
        self.full = ""
        """The store's error while it has no room for the next batch; empty while it has."""
        self.torn = ""
        """The record that a defect kept from being applied completely: the state has been useless since then."""
        self._records: deque[bytes] = deque()
        self._waiting: deque[tuple[int, Released]] = deque()
        self._keys: dict[str, int] = {}
        self._keys_of: deque[tuple[int, Sequence[str]]] = deque()

    def add(self, record: Record, keys: Sequence[str]) -> int:
        """Add a record; return its index. `keys` are those whose objects it bound or unbound."""
        encoded = encode_record(record)
        self._records.append(encoded)
        self.bytes += len(encoded)
        self.index += 1
        if keys:
            self._keys_of.append((self.index, keys))
            self._keys.update(dict.fromkeys(keys, self.index))
        return self.index

    def needed_for(self, keys: Iterable[str]) -> int:
        """The index that must be durable before a reply about these keys may be sent."""
        undurable = self._keys
        if not undurable:
            return 0
        return max((undurable.get(key, 0) for key in keys), default=0)

    def when_durable(self, index: int, then: Released) -> None:
        """Call `then` once the record of that index is durable. Callbacks run in the order of registration."""
        if index <= self.durable:
            then()
        else:
            # A reply that waits for an earlier record than the one queued before it waits for both: no harm.
            self._waiting.append((index, then))

    def refuse_late(self, now: Instant) -> None:
        """Refuse overdue replies with the reason that the store is full: a timeout would not tell why."""
        kept: deque[tuple[int, Released]] = deque()
        for index, then in self._waiting:
            if isinstance(then, PendingReply) and now >= then.deadline:
                then.refuse(self.full)
            else:
                kept.append((index, then))
        self._waiting = kept

    @property
    def waiting(self) -> int:
        """Number of replies that wait for a record to be durable."""
        return len(self._waiting)

    @property
    def has_more(self) -> bool:
        """Are there records that are in no batch yet?"""
        return bool(self._records)

    def cut(self, most_bytes: int) -> tuple[bytes, Position] | None:
        """The next batch and the position after it; None if there is nothing to write."""
        if not self._records:
            return None
        taken: list[bytes] = []
        size = HEAD_BYTES
        while self._records and (not taken or size + len(self._records[0]) <= most_bytes):
            record = self._records.popleft()
            size += len(record)
            taken.append(record)
        batch, self.position = encode_batch(self.position, taken)
        return batch, self.position

    def is_durable(self, position: Position, batch: bytes) -> None:
        """Everything up to this position is durable: release the replies that waited for it."""
        self.written, self.durable = position, position.index
        self.bytes -= len(batch) - HEAD_BYTES
        while self._keys_of and self._keys_of[0][0] <= self.durable:
            index, keys = self._keys_of.popleft()
            for key in keys:
                if self._keys.get(key) == index:
                    del self._keys[key]
        while self._waiting and self._waiting[0][0] <= self.durable:
            self._waiting.popleft()[1]()
