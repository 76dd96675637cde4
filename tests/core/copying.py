"""Nodes that obey at once: what the primary of a `World` tells them is done in no time, or kept for the test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.core.catalogue.catalogue import DISK
from holdfast.core.primary.decision import Command
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from tests.core.world import World


@dataclass
class Told:
    node: str
    name: str
    body: c.Body
    confirm: bool


@dataclass
class Nodes:
    """Nodes that are told of every command at once."""

    world: World
    told: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._send = self.world.engine._commands.send
        self.world.engine._commands.send = self.hear  # type: ignore[method-assign]

    def hear(self, commands: Sequence[Command], now: int) -> None:
        """Commands to clean go the ordinary way, with keepalives: the world hears of them."""
        self._send([one for one in commands if one.name == c.CLEAN], now)
        self.told += [
            Told(one.node, one.name, c.decode_body(c.BODIES[one.name], one.body), one.confirm)
            for one in commands
            if one.name != c.CLEAN
        ]

    def take(self, name: str = "") -> list[Told]:
        """Commands of this name, or all, that were not obeyed yet."""
        found = [one for one in self.told if name in ("", one.name)]
        self.told = [one for one in self.told if one not in found]
        return found

    def obey(self, name: str = "") -> int:
        """Carry out every copy that was ordered; how many replicas came of it."""
        return sum(self.copy(one) for one in self.take(name) if isinstance(one.body, c.CopyObjects))

    def copy(self, told: Told, wrong: tuple[int, ...] = ()) -> int:
        """`wrong`: ids whose bytes turn out not to match their checksum."""
        assert isinstance(told.body, c.CopyObjects)
        rows, failed = b"", b""
        for oid, offset, _, checksum, index, source_offset in struct.iter_unpack("<6Q", told.body.rows):
            source = told.body.sources[index].handle
            if oid in wrong:
                failed += struct.pack("<Q", oid)
            else:
                rows += struct.pack("<5Q", oid, offset, source, source_offset, checksum)
        request = n.AddReplicas(told.node, told.body.grant, rows, failed)
        return self.world.ask(q.Done, request).count

    def bring_back(self, key: str, ms: int = 500) -> int:
        """The key is read twice, and what is therefore ordered is done; how many replicas came of it."""
        for _ in range(2):
            self.world.locate(key)
            self.world.pass_time(ms)
        return self.obey("bring_back")

    def mount_disk(self, node: str, boot: int, disk: int, size: int = 1 << 20, log_id: int = 0) -> int:
        request = n.MountDisk(node, boot, disk, log_id, size, f"{node}:1", "host")
        return self.world.ask(n.DiskMounted, request).handle


def kinds(world: World, key: str) -> list[tuple[str, str]]:
    """(kind, node) of each replica."""
    found = world.ask(q.Stats, q.Stat([key])).stats[0]
    return [(replica.kind, replica.node) for replica in found.replicas] if found is not None else []


def files(world: World, disk: int) -> list[tuple[int, int]]:
    """(id, offset) of what the log holds on this disk."""
    catalogue = world.state.catalogue
    handle = next(s.handle for s in world.state.disks() if s.name.boot == disk)
    return [
        (catalogue.id_at[slot], place.offset)
        for slot in catalogue.on_segment(handle)
        for place in catalogue.replicas(slot)
        if place.segment == handle and place.kind == DISK
    ]
