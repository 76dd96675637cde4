"""No absolute clock value crosses a process (I16): whatever leaves one is searched for instants of anybody's clock.

The clocks of the world begin in a range where nothing else is: as milliseconds, their upper four bytes are `MARK`; as
seconds, the upper bytes of the float are. So a search for a few bytes in each frame, batch, published value and
snapshot finds an instant wherever it lies, and costs next to nothing. What is found must then be a moment of a
clock that somebody lives by, so that chance is not taken for one.
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
"""Where the clocks begin, or up to `SPREAD_SECONDS` later."""
SPREAD_SECONDS = 10**6
SOON_MS = 60_000
"""Deadlines are instants too: so much later than now."""
_BIG = MARK.to_bytes(4, "big")
_LITTLE = MARK.to_bytes(4, "little")
_FLOAT = b"\xcb" + struct.pack(">d", FAR_SECONDS)[:2]
"""As msgpack writes a float: what a column of floats holds is not looked for, because there is none."""


def may_hold_an_instant(data: bytes) -> bool:
    """Asked of everything that is sent, so quick."""
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
    """Of everybody who ever lived."""
    report: Report
    _published: int = 0
    _kept: set[tuple[str, str]] = field(default_factory=set)

    def left(self, data: bytes, who: str, what: str) -> None:
        """These bytes leave a process, or stay behind when it dies."""
        for found in instants_in(data):
            for process in self.clocks:
                if process.began_ms <= found <= process.now_ns() // 1_000_000 + SOON_MS:
                    self.report(
                        "I16", f"{what} of {who} holds {found} ms, an instant of the clock of {process.name}", who
                    )

    def store_changed(self, cluster: Cluster) -> None:
        """What is published there, and who leads."""
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
