"""A node's disk and the log: mount the disk, compare its files, report trouble. Generators, like all of a node's logic;
their messages go to the master.

A file is kept only if the log holds that object at that place of this disk (I7): all others are deleted. And a replica
is kept only if its file is there: one that is missing or has another size is reported (I18). Both are compared at each
mount, and whenever the primary asks for an audit. Under a restored history every file is read whole as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

import structlog

from holdfast.errors import BadRequest, MemoryVoid, TryAgain, Uncertain, UnknownNode
from holdfast.ids import MAX_BATCH, ObjectId
from holdfast.instant import now_seconds
from holdfast.messages.commands import CollectGarbage
from holdfast.messages.of_nodes import (
    DiskMounted,
    FileList,
    FilesForgotten,
    ListFiles,
    MountDisk,
    ReportDisk,
    ReportFiles,
    ReportFilesVerified,
)
from holdfast.messages.requests import Done
from holdfast.messages.rows import FileRow, ListedFileRow
from holdfast.messages.shapes import Message
from holdfast.node.disk.store import HEADER
from holdfast.node.disk.tier import DiskTier, LoggedFile, Verification
from holdfast.node.primary_requests import request
from holdfast.operations.effects import LeaveMaster, Operation, Sleep, Work

T = TypeVar("T", bound=Message)

A_REPORT = MAX_BATCH // 2
FULL_SECONDS = 0.5
"""The pause before looking for more lost files while those found before are still being reported."""
BYTES_PER_SECOND = 128 << 20
"""The rate at which files are compared with a restored catalogue: 100 GiB take 13 minutes. Until then every reader
compares what it reads itself, so it is not urgent; a disk that reads 500 MB per second has 70% of its time for them."""
STEP_BYTES = 16 << 20
OVERTAKEN_SECONDS = 10.0
"""How long a primary that was overtaken may go on answering, and more."""
AGAIN_SECONDS = 0.2
Verify: TypeAlias = Callable[[Operation[None]], object]
"""Has an operation run beside the other work for the disk, which it may outlast by hours."""
Again: TypeAlias = Callable[[], object]
"""Has the disk mounted once more, after the other work for it."""

log = structlog.get_logger("holdfast.node")


def mount(disk: DiskTier, boot: int, data_address: str, host: str, verify: Verify, again: Again) -> Operation[None]:
    """Offer the disk; one of another history, or one that was given up, is emptied first. Have `verify` compare its
    files if the history was restored."""
    store = disk.store
    if disk.trouble is not None and not disk.trouble.readable:
        yield from say_trouble(disk)
        return
    for _ in range(2):
        offer = MountDisk(disk.node, boot, store.disk, store.log_id, disk.size_bytes, data_address, host)
        try:
            mounted = yield from _offered(offer)
        except MemoryVoid as error:
            log.warning("the disk is emptied", disk=f"{store.disk:016x}", reason=str(error))
            yield Work(store.empty)
            continue
        if store.log_id not in mounted.continues:
            # Ids keep growing in a restored history, so files of both can share the disk under the older name.
            store.belongs_to(mounted.log_id)
        log.info("the disk is mounted", disk=f"{store.disk:016x}", files=len(store.stored()))
        if disk.trouble is not None:
            yield from say_trouble(disk)
        yield from audit(disk)
        if mounted.unverified_in:
            verification = disk.begin_verification(mounted.log_id, mounted.unverified_in)
            if verification is not None:
                verify(verify_files(disk, verification, again))
        return


def _offered(offer: MountDisk) -> Operation[DiskMounted]:
    """The primary's answer. One that was overtaken does not know a node that has registered at the next: ask again."""
    until = now_seconds() + OVERTAKEN_SECONDS
    while True:
        try:
            return (yield from request(offer, DiskMounted))
        except UnknownNode:
            if now_seconds() >= until:
                raise  # The node has another boot by now; with that one it mounts its disk again.
        yield LeaveMaster()
        yield Sleep(AGAIN_SECONDS)


def audit(disk: DiskTier) -> Operation[None]:
    """Compare the files with the log, and the log with the files."""
    yield from forget_unknown(disk, disk.files())
    yield from report_missing(disk)


def report_missing(disk: DiskTier) -> Operation[int]:
    """Report the files that the log holds and the disk does not. Returns their number."""
    count = cursor = 0
    while True:
        page = yield from request(ListFiles(disk.node, disk.store.disk, cursor), FileList)
        logged = _files_in(page)
        for start in range(0, len(logged), A_REPORT):
            while disk.lost.is_full:
                yield Sleep(FULL_SECONDS)
            some = logged[start : start + A_REPORT]
            count += yield Work(lambda some=some: disk.find_missing(some))  # type: ignore[misc]
        cursor = page.cursor
        if not cursor:
            return count


def _files_in(page: FileList) -> list[LoggedFile]:
    return ListedFileRow.unpack_whole(page.rows)


def verify_files(disk: DiskTier, verification: Verification, mount_again: Again) -> Operation[None]:
    """Compare every file that a restored log holds with its checksum, report the lost ones, and then that all were
    compared. It ends early if another primary has mounted the disk: that one's list of files is read from the start.

    The disk is mounted over another connection than this one. So a primary that was overtaken may have mounted it after
    the node had registered at the next, or may be told here instead of the next. The report is refused then, and
    no registration follows that would mount the disk: it is mounted again for that."""
    cursor = count = 0
    try:
        while disk.wants(verification):
            asked = ListFiles(disk.node, verification.disk, cursor)
            page = yield from _ask(disk, verification, asked, FileList)
            logged = _files_in(page)
            count += len(logged)
            while logged and disk.wants(verification):
                logged = yield from _compare_some(disk, logged)
            cursor = page.cursor
            if not cursor:
                break
        while disk.lost.has_news and disk.wants(verification):
            yield Sleep(FULL_SECONDS)
        if disk.wants(verification):
            yield from _ask(disk, verification, ReportFilesVerified(disk.node, *verification), Done)
            log.info("all files of the disk were compared with the restored catalogue", files=count)
    except BadRequest as error:
        yield LeaveMaster()
        yield Sleep(FULL_SECONDS)  # Time for a new primary's own mounting, or for the end of one that was overtaken.
        if disk.wants(verification):
            log.info("the disk is mounted again", disk=f"{verification.disk:016x}", reason=str(error))
            disk.end_verification(verification)  # The same primary may mount it again, and then needs another one.
            mount_again()
    finally:
        disk.end_verification(verification)


def _ask(disk: DiskTier, verification: Verification, message: Message, kind: type[T]) -> Operation[T]:
    """The reply to this message, however long there is no master; unless another verification takes over."""
    while True:
        try:
            return (yield from request(message, kind))
        except (TryAgain, Uncertain):
            if not disk.wants(verification):
                raise
        yield Sleep(FULL_SECONDS)


def _compare_some(disk: DiskTier, logged: list[LoggedFile]) -> Operation[list[LoggedFile]]:
    """Compare the first of these files, at a bounded rate. Returns those that are left."""
    while disk.lost.is_full:
        yield Sleep(FULL_SECONDS)
    count = size = 0
    while count < len(logged) and size < STEP_BYTES:
        size += HEADER.size + logged[count][2]
        count += 1
    again = yield Work(lambda: disk.compare(logged[:count]))
    yield Sleep(FULL_SECONDS if again else size / BYTES_PER_SECOND)
    return [*logged[count:], *again]


def forget_unknown(disk: DiskTier, files: list[tuple[ObjectId, int]]) -> Operation[int]:
    """Delete those of these files that the log does not hold. Returns their number."""
    count = 0
    for start in range(0, len(files), A_REPORT):
        rows = FileRow.pack_rows(files[start : start + A_REPORT])
        answer = yield from request(ReportFiles(disk.node, disk.store.disk, rows), FilesForgotten)
        unknown = FileRow.unpack_whole(answer.rows)
        count += yield Work(lambda unknown=unknown: forget(disk, unknown))  # type: ignore[misc]
    if count:
        log.info("files that the log does not hold were deleted", files=count)
    return count


def forget(disk: DiskTier, files: Iterable[tuple[ObjectId, int]]) -> int:
    return sum(disk.store.forget(oid, offset) for oid, offset in files)


def collect(disk: DiskTier, order: CollectGarbage) -> Operation[None]:
    if order.disk != disk.store.disk:
        return
    rows = FileRow.unpack_whole(order.rows)
    yield Work(lambda: forget(disk, rows))
    if order.audit:
        yield from audit(disk)


def say_trouble(disk: DiskTier) -> Operation[None]:
    trouble = disk.trouble
    if trouble is not None:
        try:
            yield from request(ReportDisk(disk.node, disk.store.disk, str(trouble), trouble.readable), Done)
        except UnknownNode:
            pass  # The disk is not mounted yet; mounting it reports the trouble.
