"""The handlers of a node's commands from the primary, by the name of the command.

Short commands run at once, in the caller's thread; copies, files and growing run in threads of their own, those for the
disk separate from those for memory, so that a slow disk does not delay recovery. An unknown name is refused, and has no
other effect.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from holdfast.effects import Operation, Work
from holdfast.errors import BadRequest
from holdfast.instant import now_seconds
from holdfast.messages import commands as c
from holdfast.messages.of_nodes import MountSegment
from holdfast.node.commands.copier import Copier
from holdfast.node.commands.pace import Pace
from holdfast.node.commands.peers import PeerBytes
from holdfast.node.commands.worker import Errands
from holdfast.node.disk import files
from holdfast.node.disk.scrub import Scrub
from holdfast.node.memory.data_server import DataServer
from holdfast.node.memory.lent_memory import Lending
from holdfast.node.session.commands import Commands
from holdfast.supervisor import Supervisor

log = structlog.get_logger("holdfast.node")


def _revoke_leases(readers: Readers, body: c.RevokeLeases) -> None:
    # Readers keep the leases that they hold (I2); this tells them that the objects are old.
    log.debug("objects were removed or moved while leased", objects=len(body.ids) // 8, more=body.more)
    readers.revoke(None if body.more else body.ids)


class Readers(Protocol):
    """Receives revocations of leases."""

    def revoke(self, ids: bytes | None) -> None:
        """These objects (packed ids) were removed or moved; None: more than can be named."""


class Orders:
    """Runs from `start` until `stop`. Handles all but `clean` (the reporting thread's) and `config_update` (the
    node's)."""

    def __init__(
        self,
        node: str,
        address: str,
        token: str,
        lending: Lending,
        data: DataServer,
        readers: Readers,
        commands: Commands,
        supervisor: Supervisor,
    ) -> None:
        self.mode = "open"
        self._node = node
        self._lending = lending
        self._disk = lending.disk
        self._pace = Pace()
        self._peers = [PeerBytes(lending), PeerBytes(lending)]
        self._copiers = [Copier(node, one, data, self._disk, self._pace, now_seconds) for one in self._peers]
        self._memory_errands = Errands("copies", address, token, supervisor)
        self._disk_errands = Errands("disk", address, token, supervisor)
        self._verifications = Errands("disk verification", address, token, supervisor)
        for name in (c.RECOVER, c.MIGRATE, c.OFFLOAD, c.BRING_BACK):
            commands.on(name, lambda body: self._copy(c.decode_body(c.CopyObjects, body)))
        commands.on("gc", lambda body: self._collect(c.decode_body(c.CollectGarbage, body)))
        commands.on("revoke_lease", lambda body: _revoke_leases(readers, c.decode_body(c.RevokeLeases, body)))
        commands.on("revoke_client", lambda body: data.refuse_client(c.decode_body(c.RevokeClient, body).client))
        commands.on("maintenance", lambda body: self._maintain(c.decode_body(c.Maintain, body)))
        commands.on("volume_update", lambda body: self._update_volume(c.decode_body(c.UpdateVolume, body)))
        self._scrub = Scrub(self._disk, supervisor) if self._disk is not None else None
        if self._disk is not None:
            self._disk.on_trouble = self._say_trouble

    def start(self) -> None:
        self._memory_errands.start()
        self._disk_errands.start()
        if self._scrub is not None:
            self._verifications.start()
            self._scrub.start()

    def stop(self) -> None:
        self._memory_errands.stop()
        self._disk_errands.stop()
        self._verifications.stop()
        if self._scrub is not None:
            self._scrub.stop()
        for peers in self._peers:
            peers.close()

    def copy_at(self, bytes_per_second: int) -> None:
        """Set the copy rate, also for copies under way. 0: no limit."""
        self._pace.bytes_per_second = bytes_per_second

    @property
    def copied_bytes(self) -> int:
        return sum(copier.copied_bytes for copier in self._copiers)

    def mount_disk(self, boot: int, data_address: str, host: str) -> None:
        """Mount the disk. Called after each registration: a new primary compares the files again."""
        if self._disk is not None:
            self._disk_errands.add("mount disk", files.mount(self._disk, boot, data_address, host, self._verify_disk))

    def _verify_disk(self, verification: Operation[None]) -> None:
        self._verifications.add("verify disk", verification)

    def _say_trouble(self) -> None:
        assert self._disk is not None, "it is the disk that says so"
        self._disk_errands.add("disk trouble", files.say_trouble(self._disk))

    def _copy(self, body: c.CopyObjects) -> None:
        if body.to_disk and self._disk is None:
            raise BadRequest("this node has no disk; nothing was copied")
        errands = self._disk_errands if body.to_disk else self._memory_errands
        errands.add("copy", self._copiers[body.to_disk].carry_out(body))

    def _collect(self, body: c.CollectGarbage) -> None:
        if self._disk is not None:
            self._disk_errands.add("gc", files.collect(self._disk, body))

    def _maintain(self, body: c.Maintain) -> None:
        self.mode = body.mode
        log.info("the node's mode changed", mode=body.mode)

    def _update_volume(self, body: c.UpdateVolume) -> None:
        self._memory_errands.add("volume_update", self._resize(body))

    def _resize(self, body: c.UpdateVolume) -> Operation[None]:
        for number, limit in body.limits:
            yield Work(lambda number=number, limit=limit: self._lending.release(number, limit))  # type: ignore[misc]
            log.info("memory was given back", segment=number, from_byte=limit)
        if body.size_bytes:
            added = yield Work(lambda: self._lending.grow(body.size_bytes, body.force))
            if added is not None:
                boot, number, size = added
                yield MountSegment(self._node, boot, number, size)
                log.info("memory was added", segment=number, size_bytes=size)
