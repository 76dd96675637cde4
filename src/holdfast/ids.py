"""Names for numbers, and the limits that both sides of the wire check.

An object id packs (epoch, counter) into 64 bits and is never given out twice in a log. A segment is named
`(node, boot id, number)` towards its node, and by a small handle, unique in a log, towards the master.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

ObjectId: TypeAlias = int
SegmentHandle: TypeAlias = int
Epoch: TypeAlias = int

COUNTER_BITS = 40
COUNTER_MASK = (1 << COUNTER_BITS) - 1

MAX_KEY_BYTES = 1024
MAX_BATCH = 32_768
"""The most ids in one record, and items of one list or column in a request."""
MAX_KEYS = 8_192
"""The most keys in one request: located or committed in one step, they take some 10 ms of everybody's time (ADR 51).
Clients of every version send at most 7,500."""
MAX_REPLICAS = 16
MAX_OBJECT_BYTES = 1 << 46
SLOWEST_BYTES_PER_SECOND = 10_000_000
"""A transfer between two machines that is slower than this is given up. The side that waits for the outcome of another
side's transfer allows for the same speed."""

MOST_TICKET_RANGES = 64
"""Ranges that one ticket vouches for: 1 KiB of them, so that a MAC costs little for each, and a reader who wants one of
them sends little more than it must."""

RESERVED = "\x01"
"""Inside a master, a key that begins with it is a tenant's (`namespace_of`). No client may send one."""
FIRST_FREE = "\x02"
"""The first string that is greater than all reserved keys: one comparison tells most keys from them."""
NAMESPACE_CHARACTERS = 3
_FIRST_DIGIT, _DIGITS = 2, 126
MAX_TENANTS = _DIGITS * _DIGITS - 1

COPIES = 0
"""The client number of grants for copies, which the primary makes and no client has."""

SMALL_ALIGN = 64
LARGE_ALIGN = 4096
LARGE_FROM = 64 << 10


class SegmentName(NamedTuple):
    """The name of a segment in data requests; a node refuses any segment but its own."""

    node: str
    boot: int
    number: int

    def __str__(self) -> str:
        return f"{self.node}/{self.boot:016x}/{self.number}"


class GrantId(NamedTuple):
    """The client names its grants itself, so asking for one again is harmless."""

    client: int
    serial: int


class ProcessName(NamedTuple):
    """A process, named uniquely for all time: the kernel may give its pid to another process later."""

    pid: int
    started: int
    """Clock ticks from the boot of its machine to its start."""
    machine: str
    """Boot and namespaces in which pid and start time are meaningful. Empty: nobody can tell whether it lives."""


def object_id(epoch: Epoch, counter: int) -> ObjectId:
    return epoch << COUNTER_BITS | counter


def extent_of(size_bytes: int) -> int:
    """The memory that an object of this size takes: whole pages when large, whole cache lines when small."""
    align = LARGE_ALIGN if size_bytes >= LARGE_FROM else SMALL_ALIGN
    return -(-size_bytes // align) * align


def namespace_of(tenant: int) -> str:
    """The prefix of a tenant's keys inside masters: none for the default tenant, else three ASCII characters. Always
    three: no prefix begins with another."""
    if not tenant:
        return ""
    high, low = divmod(tenant, _DIGITS)
    return RESERVED + chr(_FIRST_DIGIT + high) + chr(_FIRST_DIGIT + low)


class KeysOf(list[str]):
    """Keys inside a master that all have the prefix of one tenant (not the default one), and have from one character to
    `MAX_KEY_BYTES` with it. Whoever makes such a list has checked that, and nobody changes it: who gets one need not
    look at each key again. A part or a copy of it is a plain list, of which nothing is known."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: str, keys: Iterable[str]) -> None:
        super().__init__(keys)
        self.prefix = prefix


def is_reserved(key: str) -> bool:
    """Inside a master: is it a tenant's? From a client: is it a key that nobody may send?"""
    return RESERVED <= key < FIRST_FREE


def are_of(prefix: str, keys: Sequence[str]) -> bool:
    """Have all of these keys, of which there is one, this prefix? If the first and the last in order have it, so have
    those between."""
    if type(keys) is KeysOf:
        return keys.prefix == prefix
    return min(keys).startswith(prefix) and max(keys).startswith(prefix)


def tenant_of(key: str) -> int:
    """The tenant of a key inside a master."""
    if key >= FIRST_FREE or key < RESERVED:
        return 0
    return _number_of(key[:NAMESPACE_CHARACTERS])


@lru_cache(4096)
def _number_of(prefix: str) -> int:
    """The tenant of this prefix: of one of `MAX_TENANTS`, because no client can send a reserved key."""
    return (ord(prefix[1]) - _FIRST_DIGIT) * _DIGITS + ord(prefix[2]) - _FIRST_DIGIT
