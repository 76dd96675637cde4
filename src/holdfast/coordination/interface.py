"""The coordination interface that a master needs: a term of leadership, one log, and a little soft state.

The log can be written only through a `Term`. Once a later term exists, a backend refuses a term's batch in the very
transaction that would write it (I3). Batches are numbered from 1 without a gap (I13); the last one always stays,
however far the log is trimmed, so that its end can be compared. An event of a backend's watch is only a reason to read
again: no promise depends on it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Literal, NamedTuple, Protocol, TypeAlias

from holdfast.errors import Refused, ReplyLost, TryAgain
from holdfast.ids import ProcessName
from holdfast.supervisor import Supervisor

Proof: TypeAlias = Literal["first", "resigned", "flock", "gone", "expired", "silence", "guess"]
"""How the end of the previous term is known: there was none; it resigned; the lock that its process held is free; a
process on its machine sees that it has ended; the store's lease on its leadership has run out; it was silent until
its leadership must have run out by its own clock; or it was deposed without knowing."""

Batches: TypeAlias = list[tuple[int, bytes]]

MIB = 1 << 20


class Landmark(NamedTuple):
    """A batch by which a log is recognised: numbers are the same in every history, bytes are not."""

    number: int
    is_it: Callable[[bytes], bool]


class Deposed(Refused):
    """A later term exists, or this one has ended: nothing was written."""

    code = "deposed"


class Compacted(Refused):
    """The next batch has been trimmed away: start from a snapshot, then follow from `first_index` or later."""

    code = "compacted"

    def __init__(self, first_index: int) -> None:
        super().__init__(f"the log now begins at batch {first_index}; load a snapshot and follow from there")
        self.first_index = first_index


class LogBehind(Refused):
    """The log ends before a batch that the follower already holds: it has lost its tail."""

    code = "log_behind"

    def __init__(self, last_index: int, after_index: int) -> None:
        super().__init__(
            f"the log ends at batch {last_index}, but batch {after_index} was there once: coordination has lost "
            "its tail (restored from a backup?); nothing was changed"
        )
        self.last_index = last_index


class CoordinationLost(TryAgain):
    """Coordination does not answer, or cannot store anything now. Nothing was written."""

    code = "coordination_lost"


class StoreFull(CoordinationLost):
    """There is no room in the store. Nothing was written."""

    code = "store_full"


class StoreFullInDoubt(ReplyLost):
    """There is no room in the store; the write that filled it may have been made."""

    code = "store_full_in_doubt"


def full_store(error: BaseException | None) -> str:
    """The text of this error if it means that the store is full; otherwise empty."""
    while error is not None:
        if isinstance(error, StoreFull | StoreFullInDoubt):
            return str(error)
        error = error.__cause__
    return ""


class Leader(NamedTuple):
    epoch: int
    address: str


class Term(Protocol):
    """Proof of leadership, kept alive by its backend until it ends."""

    @property
    def epoch(self) -> int: ...

    @property
    def proof(self) -> Proof: ...

    @property
    def previous_address(self) -> str: ...

    @property
    def suspects(self) -> list[ProcessName]:
        """After a guess: processes that led earlier and may still be answering. Once all of them are known to be gone,
        call `end_doubt`. Also empty if not all of them have a name: then only time ends the doubt."""
        ...

    @property
    def valid_until(self) -> float:
        """Until when, in seconds of `now_seconds()`, this process may answer as primary (I12)."""
        ...

    async def append(self, index: int, batch: bytes) -> None:
        """Append a batch; durable on return. `Deposed`, or `CoordinationLost`: nothing was written. `ReplyLost`: it may
        have been; then retry with the same index and bytes: finding them in the log is success."""
        ...

    def append_at_once(self, index: int, batch: bytes) -> bool:
        """Like `append`, but in the caller's own thread, if that is fast. False if nothing was done."""
        ...

    async def ended(self) -> str:
        """Wait until the term is over, and return the reason; `valid_until` is then in the past."""
        ...

    async def resign(self) -> None: ...

    def end_doubt(self) -> None:
        """No earlier term can be answering any longer: the next term need not doubt it."""
        ...


class Coordination(Protocol):
    supervisor: Supervisor
    """Supervises the backend's background tasks: renewals of a term, watches."""
    max_batch_bytes: int
    appends_in_flight: int
    """Appends may be pipelined this deep. They are written in order: one that overtakes its predecessor is refused as
    out of order, and must be retried when the predecessor is written."""
    epoch_floor: int
    """Terms won through this object have larger epochs than this."""

    async def campaign(self, address: str, replacing: int | None = None) -> Term:
        """Wait until a term is won. With `replacing`, depose that very term at once, if it still leads."""
        ...

    async def leader(self) -> Leader | None: ...

    def watch_leader(self) -> AsyncGenerator[Leader | None, None]:
        """Yield the present leader at once, then each change; it survives outages and never misses the latest."""
        ...

    def follow(self, after_index: int) -> AsyncGenerator[Batches, None]:
        """Yield the batches after that index, in order, each once, without end. `Compacted`, `LogBehind`."""
        ...

    async def last_index(self) -> int: ...

    async def trim(self, through_index: int, landmark: Landmark | None = None) -> bool:
        """Delete batches through that index, in bounded steps; the last batch stays.

        Before each step the landmark must be in the log: a store may be emptied at any moment, and the log that another
        history began there is not to be trimmed (I19). Returns whether it was.
        """
        ...

    async def publish(self, name: str, value: bytes, ttl_ms: int | None) -> None: ...

    async def read(self, name: str) -> bytes | None: ...

    async def list(self, prefix: str) -> dict[str, bytes]: ...

    def watch(self, prefix: str) -> AsyncGenerator[dict[str, bytes], None]:
        """Yield the values under the prefix at once, then new and changed ones. It survives outages, may yield a value
        twice, and does not report removals."""
        ...

    async def unpublish(self, name: str) -> None: ...

    async def log_bytes(self) -> int:
        """Bytes of the batches in the log now."""
        ...

    async def close(self) -> None: ...
