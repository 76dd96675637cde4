"""Slowly reads every file on the node's disk, so that a damaged one is found even if no client reads it (I18).

One thread goes through all files, over and over, at a bounded rate. Damage is reported as if a reader had found it.
"""

from __future__ import annotations

import threading

import structlog

from holdfast.errors import HoldfastError
from holdfast.node.disk.store import HEADER
from holdfast.node.disk.tier import DiskTier
from holdfast.supervisor import Supervisor

BYTES_PER_SECOND = 8 << 20
"""One TiB takes 36 hours; a disk that reads 500 MB per second has 98% of its time for others."""
BETWEEN_PASSES_SECONDS = 10.0
STOP_SECONDS = 5.0

log = structlog.get_logger("holdfast.node")


class Scrub:
    """Runs from `start` until `stop`."""

    def __init__(self, disk: DiskTier, supervisor: Supervisor, bytes_per_second: int = BYTES_PER_SECOND) -> None:
        self._disk = disk
        self._bytes_per_second = bytes_per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=supervisor.keep_thread, args=("scrub", self._run, self._stopping.wait), name="scrub", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.wait(BETWEEN_PASSES_SECONDS):
            self._check_all()

    def _check_all(self) -> None:
        for stored in self._disk.store.stored():
            trouble = self._disk.trouble
            if trouble is not None and not trouble.readable:
                return
            try:
                self._disk.check(stored.offset)
            except HoldfastError as error:
                # It is reported already, or the file was deleted meanwhile.
                log.debug("a file did not pass the scrub", offset=stored.offset, reason=str(error))
            if self._stopping.wait((HEADER.size + stored.size_bytes) / self._bytes_per_second):
                return
