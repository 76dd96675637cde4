"""No absolute clock value crosses a process (I16): all bytes that leave one are searched for instants of any clock.

The clocks of the world begin in a range where nothing else is: as milliseconds, their upper four bytes are `MARK`; as
seconds, the upper bytes of the float are. So a search for a few bytes in each frame, batch, published value and
snapshot finds an instant wherever it is, and costs next to nothing. A find must also be a moment that some process's
clock has shown or soon will, so that chance is not mistaken for an instant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from holdfast.coordination.memory import Cluster
from holdfast.simulation.checks.log_checks import Report
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.world.disks import Disk

MARK = 0x065D
FAR_SECONDS = (MARK << 32) // 1000 + 1
"""The clocks begin here, or up to `SPREAD_SECONDS` later."""
SPREAD_SECONDS = 10**6
SOON_MS = 60_000
"""Deadlines are instants too, up to this much later than now."""
_BIG = MARK.to_bytes(4, "big")
_LITTLE = MARK.to_bytes(4, "little")
_FLOAT = b"\xcb" + struct.pack(">d", FAR_SECONDS)[:2]
"""As msgpack writes a float. Columns of floats are not searched, because there are none."""


def may_hold_an_instant(data: bytes) -> bool:
    """A quick test, because it runs on everything that is sent."""
    return _LITTLE in data or _BIG in data or _FLOAT in data


def instants_in(data: bytes) -> Iterator[int]:
    """Milliseconds that may be an instant of a clock of the world."""
    if _BIG in data:
        yield from (int.from_bytes(data[at : at + 8], "big") for at in _places(data, _BIG))
    if _LITTLE in data:
        yield from (int.from_bytes(data[at - 4 : at + 4], "little") for at in _places(data, _LITTLE) if at >= 4)
    if _FLOAT in data:
        for at in _places(data, _FLOAT):
            if at + 9 <= len(data):
                yield int(struct.unpack_from(">d", data, at + 1)[0] * 1000)


def _places(data: bytes, pattern: bytes) -> Iterator[int]:
    at = data.find(pattern)
    while at >= 0:
        yield at
        at = data.find(pattern, at + 1)


@dataclass(slots=True)
class ClockChecks:
    clocks: list[ProcessLoop]
    """The clocks of every process that ever lived."""
    report: Report
    _published: int = 0
    _kept: set[tuple[str, str]] = field(default_factory=set)

    def left(self, data: bytes, who: str, what: str) -> None:
        """Check bytes that leave a process, or stay behind when it dies."""
        for found in instants_in(data):
            for process in self.clocks:
                if process.began_ms <= found <= process.now_ns() // 1_000_000 + SOON_MS:
                    self.report(
                        "I16", f"{what} of {who} holds {found} ms, an instant of the clock of {process.name}", who
                    )

    def store_changed(self, cluster: Cluster) -> None:
        """Check the values published in the store, and its leader."""
        if cluster.publishings > self._published:
            for name, number in cluster.published_at.items():
                if number > self._published:
                    self.left(cluster.published[name][0], name, "what is published")
            self._published = cluster.publishings
        self.left(msgspec.msgpack.encode(cluster.record), "store", "the leader's entry")

    def look(self, name: str, disk: Disk) -> None:
        for file, content in disk.files.items():
            if (name, file) not in self._kept:
                self._kept.add((name, file))
                self.left(content, name, f"the file {file}")
