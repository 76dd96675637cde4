"""Renewals as values in coordination: packed, numbered, each applied once, and expiring after a minute.

The primary gathers the renewals and writes one value for all of them (several if it would be too large). A value holds
durations only (I16), and for how long its writer had been writing: the value of a writer that arrived fastest tells a
standby when the writer began, on the standby's own clock, and so how old each other value is, however late it was read.

A value names its history. Epochs and object ids begin again with a new history, and coordination may still hold values
of the older one: a primary that has not seen yet that the store was replaced writes its last renewals into the new one.
Pure: `RenewalSender` decides what to write and when, `RenewalReceiver` applies what was read; the master's shell does
the writing and reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from holdfast.core.rules import Rules
from holdfast.core.state.packed_numbers import pack_column, pack_sorted_ids, unpack_column, unpack_sorted_ids
from holdfast.core.state.renewals import Renewed, apply_renewed, put_back, take_renewed
from holdfast.core.state.state import State
from holdfast.errors import MALFORMED, Refused
from holdfast.instant import Instant

PREFIX = "renewals/"
KEPT_MS = 60_000
READ_ALL_MS = 30_000
COALESCE_MS = 10
SPACING_MS = 500
"""Least time between two writes: a stream of urgent renewals shares two writes per second."""
NUMBERS_KEPT = 2 * KEPT_MS // 100
"""Values that a receiver knows again: all that can be read at the shortest interval of settings, and as many more for
those that came in parts."""
ROW_BYTES = 32
"""The most bytes per row, with every column at its widest."""
HEAD_BYTES = 256
EPOCHS_KEPT = 2
LONGEST_MS = 1 << 40


class BadRenewals(Refused):
    """A value under the renewals' prefix is invalid: it is skipped."""

    code = "bad_renewals"


class RenewalValue(msgspec.Struct, array_like=True, frozen=True):
    epoch: int
    number: int
    written_ms: int
    """Time from the writer's beginning to this value."""
    ids: bytes
    lease_left_ms: bytes
    unused_ms: bytes
    soft_pinned: bytes
    """The soft-pinned objects, by their index in `ids`."""
    soft_pin_left_ms: bytes
    log_id: int = 0
    """The history that `epoch` and `ids` belong to; 0 from writers of release 0.2.0, which do not name it."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RenewalValue).decode


def encode_value(log_id: int, epoch: int, number: int, written_ms: int, renewed: Renewed) -> bytes:
    pinned = np.flatnonzero(renewed.soft_pin_left_ms)
    return _encode(
        RenewalValue(
            epoch=epoch,
            number=number,
            written_ms=written_ms,
            ids=pack_sorted_ids(renewed.ids),
            lease_left_ms=pack_column(renewed.lease_left_ms),
            unused_ms=pack_column(renewed.unused_ms),
            soft_pinned=pack_column(pinned),
            soft_pin_left_ms=pack_column(renewed.soft_pin_left_ms[pinned]),
            log_id=log_id,
        )
    )


def decode_value(value: bytes) -> tuple[RenewalValue, Renewed]:
    """Decode a value; BadRenewals unless it is valid, because anybody may write under the prefix."""
    try:
        found = _decode(value)
        ids = unpack_sorted_ids(found.ids)
        lease_left = unpack_column(found.lease_left_ms).astype(np.int64)
        unused = unpack_column(found.unused_ms).astype(np.int64)
        pinned = unpack_column(found.soft_pinned).astype(np.int64)
        pins_left = unpack_column(found.soft_pin_left_ms).astype(np.int64)
    except MALFORMED as error:
        raise BadRenewals(f"a value of renewals cannot be read ({error}); it is passed over") from None
    rows = len(ids)
    durations = (lease_left, unused, pins_left, np.array([found.written_ms]))
    if any(len(column) and not 0 <= column.min() <= column.max() <= LONGEST_MS for column in durations):
        raise BadRenewals("a value of renewals holds an impossible duration; it is passed over")
    if not rows == len(lease_left) == len(unused) or len(pinned) != len(pins_left):
        raise BadRenewals("the columns of a value of renewals differ in length; it is passed over")
    if ((pinned < 0) | (pinned >= rows)).any():
        raise BadRenewals("a value of renewals pins a row that it does not have; it is passed over")
    soft = np.zeros(rows, np.int64)
    soft[pinned] = pins_left
    return found, Renewed(ids, lease_left, unused, soft)


@dataclass(slots=True)
class RenewalSender:
    """Decides what renewals one primary writes in its term, and when."""

    state: State
    rules: Rules
    epoch: int
    began: Instant
    most_bytes: int
    written: int = 0
    """Number of values."""
    size_bytes: int = 0
    """Total size of the values."""
    renewals: int = 0
    delay_ms: float = 0.0
    """Recent average time from the use of an object until the standbys could read of it."""
    failed: int = 0
    _number: int = 0
    _last_write: Instant = 0
    _urgent_at: Instant | None = None

    def __post_init__(self) -> None:
        self._last_write = self.began - SPACING_MS

    def urge(self, now: Instant) -> bool:
        """Note the renewal of a lease that was about to end. True if it is the first, which makes the write sooner."""
        if self._urgent_at is not None:
            return False
        self._urgent_at = now
        return True

    def due_at(self) -> Instant:
        """When to write next: an urgent renewal is written at once, with others that come within a few milliseconds."""
        regular = self._last_write + self.rules.renewal_interval_ms
        if self._urgent_at is None:
            return regular
        return min(regular, max(self._urgent_at + COALESCE_MS, self._last_write + SPACING_MS))

    def take(self, now: Instant) -> list[tuple[str, bytes, Renewed]]:
        """Names and values to write now; pass those that could not be written to `lost`."""
        self._last_write, self._urgent_at = now, None
        renewed = take_renewed(self.state, now)
        log_id = self.state.log_id
        rows = max(1, (self.most_bytes - HEAD_BYTES) // ROW_BYTES)
        found = []
        for start in range(0, len(renewed), rows):
            part = renewed.part(start, start + rows)
            self._number += 1
            name = f"{PREFIX}{log_id:016x}-{self.epoch:012d}-{self._number:012d}"
            found.append((name, encode_value(log_id, self.epoch, self._number, now - self.began, part), part))
        return found

    def wrote(self, value: bytes, part: Renewed, took_ms: int) -> None:
        self.written += 1
        self.size_bytes += len(value)
        self.renewals += len(part)
        delay = float(part.unused_ms.mean()) + took_ms
        self.delay_ms = delay if self.written == 1 else 0.8 * self.delay_ms + 0.2 * delay

    def lost(self, part: Renewed) -> None:
        """Put these objects into the next value again, because this one may not have been written."""
        self.failed += 1
        put_back(self.state, part)


@dataclass(slots=True)
class Heard:
    """Knowledge of one writer from its values so far."""

    began: Instant
    """When the writer began, on our clock, by its fastest value."""
    numbers: set[int] = field(default_factory=set)


@dataclass(slots=True)
class RenewalReceiver:
    """A standby's side. Values may come late, twice, or out of order."""

    applied: int = 0
    """Number of values."""
    renewals: int = 0
    _log_id: int = 0
    """The history of the state that values were last applied to."""
    _writers: dict[int, Heard] = field(default_factory=dict)
    """By epoch of that history."""

    def forget(self) -> None:
        """Allow all values to be applied again, because the state that they were applied to is gone."""
        for heard in self._writers.values():
            heard.numbers.clear()

    def take(self, state: State, values: dict[str, bytes], now: Instant) -> list[BadRenewals]:
        """Apply the values of the state's history that are not applied yet; return the faults of invalid ones."""
        if state.log_id != self._log_id:
            self._log_id = state.log_id
            self._writers.clear()
        faults: list[BadRenewals] = []
        read: list[tuple[RenewalValue, Renewed]] = []
        for name, packed in sorted(values.items()):
            try:
                value, renewed = decode_value(packed)
            except BadRenewals as error:
                faults.append(BadRenewals(f"{name}: {error}"))
            else:
                if value.log_id in (0, state.log_id):
                    read.append((value, renewed))
        # Each value bounds when its writer began; take all bounds before any value is applied.
        for value, _ in read:
            began = now - value.written_ms
            heard = self._writers.setdefault(value.epoch, Heard(began))
            heard.began = min(heard.began, began)
        for value, renewed in read:
            heard = self._writers[value.epoch]
            if value.number not in heard.numbers:
                heard.numbers.add(value.number)
                stale_ms = now - value.written_ms - heard.began
                self.applied += 1
                self.renewals += apply_renewed(state, renewed, stale_ms, now)
        self._forget_old()
        return faults

    def _forget_old(self) -> None:
        """Forget values that have expired in coordination: they cannot be read again."""
        for epoch in sorted(self._writers)[:-EPOCHS_KEPT]:
            del self._writers[epoch]
        for heard in self._writers.values():
            if len(heard.numbers) > 2 * NUMBERS_KEPT:
                heard.numbers = set(sorted(heard.numbers)[-NUMBERS_KEPT:])
