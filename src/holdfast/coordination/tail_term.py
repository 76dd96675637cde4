"""A term on a backend that keeps the tail of its log in an entry of its own: etcd and ZooKeeper.

The transaction that writes a batch compares the tail that this term expects, and moves it. Several appends may be under
way, each expecting the tail that the one before it leaves. If the tail is another one, or a reply was lost, the log
itself decides whether the batch was written.
"""

from __future__ import annotations

from abc import abstractmethod

from holdfast.coordination.codec import Stored, Tail
from holdfast.coordination.interface import Deposed
from holdfast.coordination.terms import Tenure, TermSeat, append_unknown, check_size, out_of_order
from holdfast.errors import ReplyLost


class TailTenure(Tenure):
    """`fence` is the backend's version of the entry that makes this term the last one."""

    def __init__(self, seat: TermSeat, fence: int, tail: Tail, max_batch_bytes: int) -> None:
        super().__init__(seat)
        self._fence = fence
        self._tail = tail
        self._max_batch_bytes = max_batch_bytes
        self._in_doubt = 0
        """The last batch whose reply was lost; 0 if there is none."""

    async def _append(self, index: int, batch: bytes) -> None:
        check_size(batch, self._max_batch_bytes)
        # A full etcd refuses every transaction, even for a batch it has written: so read first.
        if index <= self._in_doubt and await self._is_written(index, batch):
            return
        for _ in range(2):
            if index == self._tail.number + 1 and await self._write_next(batch):
                return
            # The tail is not the expected one, or this batch was sent before: the log decides.
            if await self._is_written(index, batch):
                return
            if index != self._tail.number + 1:
                raise out_of_order(index, self._tail.number)
        raise append_unknown(index, "the tail of the log moved while it was appended")

    async def _write_next(self, batch: bytes) -> bool:
        before, self._tail = self._tail, self._tail.with_batch(batch)
        after = self._tail
        try:
            return await self._put(batch, before, after)
        except ReplyLost as error:
            self._in_doubt = max(after.number, self._in_doubt)
            raise append_unknown(after.number, error) from error

    def _is_of_this_term(self, index: int, batch: bytes, stored: Stored | None, leads: bool) -> bool:
        """Is this very batch in the log, which has `stored` at its place? `Deposed` if not, and no longer can be."""
        if stored is not None and (stored.epoch, stored.batch) == (self.epoch, batch):
            return True
        if not leads:
            raise Deposed(f"epoch {self.epoch} leads no more; batch {index} was not written")
        return False

    @abstractmethod
    async def _put(self, batch: bytes, before: Tail, after: Tail) -> bool:
        """Write the batch and move the tail, in one transaction that compares both the fence and the tail. False if
        either is another one: nothing was written."""
