"""The commands that a node takes from the primary: one table of handlers, by the name of the command.

A handler returns quickly, because the next keepalive waits for it. Short commands are carried out at once, in the
caller's thread; copies, files and growing are queued for a worker, those for the disk separate from those for memory,
so that a slow disk does not delay recovery. A command that is unknown or fails is reported to the primary, and affects
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from holdfast.errors import BadRequest, CommandRefused, HoldfastError, UnknownCommand
from holdfast.messages import commands as c
from holdfast.messages.of_nodes import MountSegment
from holdfast.messages.requests import Done
from holdfast.node.commands.copier import Copier
from holdfast.node.disk import files
from holdfast.node.disk.tier import DiskTier
from holdfast.node.memory.lent_memory import Lending
from holdfast.node.primary_requests import request
from holdfast.node.session.report import Report
from holdfast.operations.effects import Operation, Work

log = structlog.get_logger("holdfast.node")


class OrderQueue(Protocol):
    """Takes orders that take longer, and has them carried out one after the other."""

    def add(self, what: str, order: Operation[Any]) -> bool:
        """False: it is full, and the order was dropped. The primary plans it again."""


class Lane(NamedTuple):
    """A worker's queue, and what copies for it."""

    orders: OrderQueue
    copier: Copier


class DiskLane(NamedTuple):
    """The same for a disk. Comparing its files with a restored catalogue takes long, and has a worker of its own."""

    orders: OrderQueue
    copier: Copier
    verifications: OrderQueue
    disk: DiskTier


class Writers(Protocol):
    def refuse_client(self, client: int) -> None:
        """Accept no further bytes from this client."""

    def clear(self, order: c.Clear) -> None:
        """Refuse earlier proofs for a range, and wipe it."""


class Readers(Protocol):
    """Receives revocations of leases."""

    def revoke(self, ids: bytes | None) -> None:
        """These objects (packed ids) were removed or moved; None: more than can be named."""


class Commands:
    """All commands of one node, whose disk is that of its disk lane, if it has one."""

    def __init__(
        self,
        node: str,
        lending: Lending,
        report: Report,
        writers: Writers,
        readers: Readers,
        memory: Lane,
        disk: DiskLane | None = None,
        most_bytes: int = 0,
    ) -> None:
        """`most_bytes`: the most memory that it may be told to lend; 0 for no limit of its own."""
        self._most_bytes = most_bytes
        self.mode = "open"
        self._node = node
        self._lending = lending
        self._report = report
        self._writers = writers
        self._readers = readers
        self._memory = memory
        self._disk = disk
        self._handlers: dict[str, Callable[[Any], None]] = {
            c.RECOVER: self._copy,
            c.MIGRATE: self._copy,
            c.OFFLOAD: self._copy,
            c.BRING_BACK: self._copy,
            c.CLEAN: self._clean,
            c.CLEAR: self._writers.clear,
            "gc": self._collect,
            "revoke_lease": self._revoke_leases,
            "revoke_client": self._revoke_client,
            "maintenance": self._maintain,
            "volume_update": self._update_volume,
            "config_update": self._update_config,
        }
        assert self._handlers.keys() == c.BODIES.keys(), "every command that a primary may send has a handler"

    def perform(self, name: str, body: bytes) -> None:
        handler = self._handlers.get(name)
        if handler is None:
            log.warning("an unknown command was refused", command=name[:100])
            raise UnknownCommand(
                f"this node knows no command {name[:100]!r}; nothing was done. Is it of an older version?"
            )
        try:
            handler(c.decode_body(c.BODIES[name], body))
        except HoldfastError as error:
            log.warning("a command was refused", command=name, reason=str(error))
            raise
        except Exception as error:
            log.exception("a command failed", command=name)
            raise CommandRefused(f"{name} failed at the node ({error!r}); it may have been done in part") from error

    def mount_disk(self, boot: int, data_address: str, host: str) -> None:
        """Mount the disk. Called after each registration: a new primary compares the files again."""
        lane = self._disk
        if lane is not None:
            lane.orders.add("mount disk", files.mount(lane.disk, boot, data_address, host, self._verify_disk))

    def _verify_disk(self, verification: Operation[None]) -> None:
        assert self._disk is not None, "it is its mounting that asks for this"
        self._disk.verifications.add("verify disk", verification)

    def _copy(self, body: c.CopyObjects) -> None:
        lane: Lane | DiskLane | None = self._disk if body.to_disk else self._memory
        if lane is None:
            raise BadRequest("this node has no disk; nothing was copied")
        lane.orders.add("copy", lane.copier.carry_out(body))

    def _clean(self, body: c.Clean) -> None:
        self._report.ask_to_clean(body.grants)

    def _collect(self, body: c.CollectGarbage) -> None:
        if self._disk is not None:
            self._disk.orders.add("gc", files.collect(self._disk.disk, body))

    def _revoke_leases(self, body: c.RevokeLeases) -> None:
        # Readers keep the leases that they hold (I2); this tells them that the objects are old.
        log.debug("objects were removed or moved while leased", objects=len(body.ids) // 8, more=body.more)
        self._readers.revoke(None if body.more else body.ids)

    def _revoke_client(self, body: c.RevokeClient) -> None:
        for client in (body.client, *body.others):
            self._writers.refuse_client(client)

    def _maintain(self, body: c.Maintain) -> None:
        self.mode = body.mode
        log.info("the node's mode changed", mode=body.mode)

    def _update_config(self, body: c.UpdateConfig) -> None:
        # One pace for all lanes; it counts for copies under way as well.
        self._memory.copier.pace.bytes_per_second = body.copy_bytes_per_second
        if body.report_interval_ms:
            self._report.report_every(body.report_interval_ms)
        log.info("settings changed", **msgspec.structs.asdict(body))

    def _update_volume(self, body: c.UpdateVolume) -> None:
        if self._most_bytes and body.size_bytes > self._most_bytes:
            raise CommandRefused(
                f"{body.size_bytes:,} bytes are more than this node may lend, {self._most_bytes:,} (--max-size); "
                "nothing was changed, and --force does not help"
            )
        self._memory.orders.add("volume_update", self._resize(body))

    def _resize(self, body: c.UpdateVolume) -> Operation[None]:
        for number, limit in body.limits:
            yield Work(lambda number=number, limit=limit: self._lending.release(number, limit))  # type: ignore[misc]
            log.info("memory was given back", segment=number, from_byte=limit)
        if body.size_bytes:
            added = yield Work(lambda: self._lending.grow(body.size_bytes, body.force))
            if added is not None:
                boot, number, size = added
                yield from request(MountSegment(self._node, boot, number, size), Done)
                log.info("memory was added", segment=number, size_bytes=size)
