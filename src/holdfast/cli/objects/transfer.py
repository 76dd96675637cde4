"""`put` and `get`: bytes between files or pipes and the cache.

A file written by `get -o` is there whole or not at all: the bytes go to a file beside it, whose room is reserved
first, and which takes the name when everything has arrived. A full disk is therefore found before the transfer.
"""

from __future__ import annotations

import base64
import codecs
import errno
import mmap
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from holdfast.cli import connection
from holdfast.cli.declared import Flag, Misuse, Operand
from holdfast.cli.exit_codes import Interrupted
from holdfast.cli.objects.upload import LONG_FROM, PutFlags, check_node, moving, store
from holdfast.cli.output import Output, human_bytes
from holdfast.entropy import fresh_bytes
from holdfast.environment.client_settings import ClientSettings
from holdfast.errors import BufferTooSmall, HoldfastError, Refused

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

LOOKED_AT = 64 << 10
TRIES = 3


def put(
    settings: ClientSettings,
    out: Output,
    key: Annotated[str, Operand("KEY", "Name of the object, at most 1,024 bytes.")],
    file: Annotated[str | None, Operand("[FILE]", "File to store; - or nothing is stdin.")] = None,
    replicas: Annotated[int, Flag("Copies, each on a node of its own.", least=1, shows_default=True)] = 1,
    soft_pin: Annotated[bool, Flag("Evict it last.", ("--soft-pin",))] = False,
    hard_pin: Annotated[bool, Flag("Never evict it.", ("--hard-pin",))] = False,
    upsert: Annotated[bool, Flag("Replace an object that has the key.", ("--upsert",))] = False,
    prefer: Annotated[str | None, Flag("Node to place it on, if it has room.", completes="nodes")] = None,
    durability: Annotated[
        str | None,
        Flag("Wait for the log (durable), for it or a standby (standby), or for nothing (memory).", metavar="WORD"),
    ] = None,
) -> None:
    """Store a file, or stdin, under a key. A key that is taken keeps its object, unless --upsert is given."""
    if file is None and sys.stdin.isatty():
        raise Misuse("Invalid value for FILE: name a file, or - to type the value here")
    if soft_pin and hard_pin:
        raise Misuse("--soft-pin and --hard-pin contradict each other; give one of them")
    if durability not in (None, "durable", "standby", "memory"):
        raise Misuse(f"Invalid value for --durability: {durability!r} is none of durable, standby, memory")
    flags = PutFlags(
        replicas=replicas, soft_pin=soft_pin, hard_pin=hard_pin, upsert=upsert, prefer=prefer, durability=durability
    )
    try:
        with connection.open_cache(settings, brief=True) as cache:
            if prefer is not None:
                check_node(cache, prefer)
            stored, size_bytes = store(cache, key, file or "-", flags)
    except KeyboardInterrupt:
        raise Interrupted(left_behind(settings, key)) from None
    if out.as_json:
        out.data({"key": key, "stored": stored, "size_bytes": size_bytes})
    elif stored:
        out.note(f"stored {key} ({human_bytes(size_bytes)})")
    else:
        out.note(f"{key} was there already and keeps its object; replace it with --upsert")


def get(
    settings: ClientSettings,
    out: Output,
    key: Annotated[str, Operand("KEY", "Name of the object.", "keys")],
    output: Annotated[str | None, Flag("File to write, or - for stdout.", ("--output", "-o"))] = None,
) -> None:
    """Print an object, or write it to a file. The file appears whole or not at all."""
    with connection.open_cache(settings, brief=True) as cache:
        if output in {None, "-"}:
            content = cache.get(key)
            if out.as_json:
                encoded = base64.b64encode(content).decode()
                out.data({"key": key, "size_bytes": len(content), "base64": encoded})
                return
            if output is None:
                refuse_binary_on_terminal(content)
            write_whole(sys.stdout.buffer, content)
            return
        target = Path(str(output))
        try:
            size_bytes = write_file(cache, key, target)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; {target} is as it was before") from None
    if out.as_json:
        out.data({"key": key, "size_bytes": size_bytes, "file": str(target)})
    else:
        out.note(f"wrote {target} ({human_bytes(size_bytes)})")


def left_behind(settings: ClientSettings, key: str) -> str:
    """What is true of the key after a put was interrupted."""
    try:
        with connection.open_cache(connection.afterwards(settings)) as cache:
            found = cache.stat_many([key])[0]
    except HoldfastError:
        return f"interrupted; whether {key} was stored is not known: holdfast stat {key} says it"
    if found is None:
        return f"interrupted; no object is stored under {key}"
    return f"interrupted; {key} holds an object of {human_bytes(found.size_bytes)}"


def write_file(cache: Cache, key: str, target: Path) -> int:
    """Write the object under the name, replacing what has it, and give its size."""
    if target.exists() and not target.is_file():
        # A pipe or a device cannot be replaced by a file of that name.
        content = cache.get(key)
        with target.open("wb") as sink:
            write_whole(sink, content)
        return len(content)
    real = Path(os.path.realpath(target))
    partial = real.with_name(f".{real.name[:200]}.{fresh_bytes(4).hex()}.partial")
    for tries_left in reversed(range(TRIES)):
        try:
            size_bytes = fill(cache, key, partial)
            partial.replace(real)
        except BufferTooSmall:
            # The object was replaced by a larger one since its size was asked for.
            if not tries_left:
                raise
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise Refused(
                    f"no room for {key} on the disk of {target} ({error.strerror}); no file was left"
                ) from error
            # The name of the partial file would tell the user nothing.
            raise OSError(error.errno, error.strerror, str(target)) from error
        else:
            return size_bytes
        finally:
            # Where it could not be made, on a read-only file system, taking it away would fail with its own error.
            if partial.exists():
                partial.unlink(missing_ok=True)
    raise AssertionError("unreachable: the last try returns or raises")


def fill(cache: Cache, key: str, partial: Path) -> int:
    """Copy the object into a new file whose room is reserved before the first byte moves."""
    size_bytes = cache.stat(key).size_bytes
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        mapped = mmap.mmap(descriptor, size_bytes)
        with moving(f"get {key}", size_bytes):
            copied = cache.get_into(key, mapped)
        mapped.flush()
        if copied < size_bytes:
            os.ftruncate(descriptor, copied)
        return copied
    finally:
        os.close(descriptor)


def write_whole(sink: BinaryIO, content: bytes) -> None:
    """Write in pieces, so that Ctrl-C and a closed pipe are noticed during a long write."""
    view = memoryview(content)
    sink.writelines(view[start : start + LONG_FROM] for start in range(0, len(view), LONG_FROM))
    sink.flush()


def refuse_binary_on_terminal(content: bytes) -> None:
    if sys.stdout.isatty() and is_binary(content[:LOOKED_AT]):
        raise Refused("the object is binary and stdout is a terminal; write it with -o FILE, or insist with -o -")


def is_binary(head: bytes) -> bool:
    if b"\0" in head or b"\x1b" in head:
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return True
    return False
