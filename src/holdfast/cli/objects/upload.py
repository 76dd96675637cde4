"""From a file or a stream into the cache, with as little memory as each allows.

1. A length that is known and large: the memory is reserved first, so that an object that no node can hold, or whose key
   is taken, is refused before a byte is read; then it is filled piece by piece.
2. A short one is read whole, and put in one call.
3. A stream does not say how long it is: it is gathered in a buffer that grows in place. From `LONG_FROM` on its length
   is compared with the largest node, and reading ends where that is passed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypedDict

from holdfast.cli.output import human_bytes
from holdfast.errors import NotAllowed, Refused, TooLarge, UnknownNode
from holdfast.escapes import printable

if TYPE_CHECKING:
    from holdfast.client.cache import Cache, Reservation

LONG_FROM = 64 << 20
"""Objects at least this long are moved in pieces, and get a progress bar."""
PIECE_BYTES = 8 << 20


class PutFlags(TypedDict):
    replicas: int
    soft_pin: bool
    hard_pin: bool
    upsert: bool
    prefer: str | None
    durability: str | None


class PutOutcome(NamedTuple):
    """False if the key was there already, and keeps its object."""

    stored: bool
    size_bytes: int


def store(cache: Cache, key: str, name: str, flags: PutFlags) -> PutOutcome:
    """Put a file, or stdin for `-`."""
    with opened(name) as stream:
        size_bytes = length_of(stream)
        if size_bytes is not None and size_bytes >= LONG_FROM:
            with moving(f"put {key}", size_bytes):
                return by_pieces(cache, key, stream, size_bytes, flags)
        content = read_whole(cache, stream)
    with moving(f"put {key}", len(content)):
        return PutOutcome(cache.put(key, content, **flags), len(content))


@contextlib.contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


def length_of(stream: BinaryIO) -> int | None:
    """The bytes that are left, of a file; None of a pipe, a terminal, a device, or what only looks like a file."""
    try:
        found = os.fstat(stream.fileno())
        return found.st_size - stream.tell() if stat.S_ISREG(found.st_mode) and found.st_size else None
    except OSError:
        return None  # Some streams have neither descriptor nor place.


def by_pieces(cache: Cache, key: str, stream: BinaryIO, size_bytes: int, flags: PutFlags) -> PutOutcome:
    reservation = cache.reserve(key, size_bytes, **flags)
    if reservation is None:
        return PutOutcome(False, size_bytes)
    with reservation:
        fill(reservation, stream, size_bytes)
        return PutOutcome(reservation.commit(), size_bytes)


def fill(reservation: Reservation, stream: BinaryIO, size_bytes: int) -> None:
    written = 0
    while written < size_bytes:
        piece = stream.read(min(PIECE_BYTES, size_bytes - written))
        if not piece:
            raise Refused(
                f"the file became shorter while it was read: {written:,} of {size_bytes:,} bytes; nothing was stored"
            )
        reservation.write(written, piece)
        written += len(piece)


def read_whole(cache: Cache, stream: BinaryIO) -> bytes | bytearray:
    """Read and not mapped: a mapped file that somebody truncates ends the process."""
    piece = stream.read(PIECE_BYTES)
    if len(piece) < PIECE_BYTES:
        return piece
    content = bytearray(piece)
    most: int | None = None
    while piece := stream.read(PIECE_BYTES):
        content += piece
        if most is None and len(content) >= LONG_FROM:
            most = largest_node(cache)
        if most is not None and len(content) > most:
            raise TooLarge(
                f"the input is longer than {human_bytes(most)}, the most that a node of this cluster holds; the rest "
                "was not read, and nothing was stored. Add a node that lends more, or store it in parts"
            )
    return content


def largest_node(cache: Cache) -> int:
    """The memory of the largest node, which no object can exceed."""
    try:
        return max((node.capacity_bytes for node in cache.nodes().nodes), default=0)
    except NotAllowed:
        return sys.maxsize  # A writer may not list nodes: the master refuses what is too large, after it was read.


def check_node(cache: Cache, name: str) -> None:
    """UnknownNode if the cluster has no such node: a preference that nobody can meet is a mistake in the name."""
    try:
        names = [node.name for node in cache.nodes().nodes]
    except NotAllowed:
        return
    if name not in names:
        known = f"the nodes are {', '.join(sorted(names))}" if names else "there is no node yet"
        raise UnknownNode(f"no node is named {name!r}; nothing was sent: {known}")


@contextlib.contextmanager
def moving(what: str, size_bytes: int) -> Iterator[None]:
    """Show that something is going on, where a person waits long enough to wonder."""
    if size_bytes < LONG_FROM or not sys.stderr.isatty():
        yield
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield  # The server extra is not installed.
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(f"{printable(what)} ({human_bytes(size_bytes)})", total=None)
        yield
