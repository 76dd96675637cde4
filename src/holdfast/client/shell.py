"""The parts that `Cache` and `AsyncCache` share: how they are made, and the methods that send nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

from holdfast.client.arguments import (
    checked_key,
    checked_keys,
    checked_text,
    checked_timeout,
    checked_tls,
    checked_value,
    iterated,
)
from holdfast.client.buffers import BytesLike, flat
from holdfast.client.bytes.nodes import NodeBytes
from holdfast.client.operations import reservations
from holdfast.client.operations.reservations import Reserved
from holdfast.client.operations.views import Block, ViewBlock
from holdfast.client.parameters import spelled_out
from holdfast.client.state.client import Core
from holdfast.errors import HoldfastError, ObjectNotFound, Refused
from holdfast.instant import now_seconds
from holdfast.operations.effects import Operation
from holdfast.operations.link import PrimaryLink
from holdfast.operations.masters import Masters

if TYPE_CHECKING:
    import ssl

Client = TypeVar("Client", bound="Shell")
S = TypeVar("S")

CONNECT_SECONDS = 5.0
RAISE: Any = object()
"""The default of `get` that is given if the caller gives none."""
NewCore: TypeAlias = "Callable[[str, bool, bool, ssl.SSLContext | None], Core]"
"""Makes a client's state of its token, `verify`, `shared_memory` and `tls`."""


def _plain_core(token: str, verify: bool, shared_memory: bool, tls: ssl.SSLContext | None) -> Core:
    return Core(now_seconds, token, verify, NodeBytes(shared_memory, tls))


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """The arguments of `holdfast.connect`, as given."""

    address: str
    timeout: float
    token: str = field(repr=False)
    tls: ssl.SSLContext | None
    verify: bool
    shared_memory: bool

    def new_state(self, new_core: NewCore | None) -> tuple[Core, Masters, float]:
        """A client that is not connected yet: its state, the masters to ask, and its timeout."""
        masters = Masters(checked_text(self.address, "the address"))
        timeout = checked_timeout(self.timeout)
        checked_tls(self.tls)
        make = new_core or _plain_core
        core = make(checked_text(self.token, "the token"), bool(self.verify), bool(self.shared_memory), self.tls)
        return core, masters, timeout


def _not_copied(self: object) -> NoReturn:
    raise TypeError(
        "a client is a connection, so neither it nor what it gave can be pickled or copied. Connect again in the other "
        "process; for another timeout in this one, use with_timeout"
    )


class Shell:
    """A connected client, in either form."""

    def __init__(self, core: Core, link: PrimaryLink[Any], timeout: float) -> None:
        self.timeout = timeout
        self._core = core
        self._link = link
        self._read_leased = core.read_leased

    def __repr__(self) -> str:
        if self._core.closed:
            now = "closed"
        else:
            now = f"connected to {self._link.address}" if self._link.is_connected else "not connected"
        return f"<holdfast.{type(self).__name__} of {self._link.searched}: {now}, timeout {self.timeout:g} s>"

    def __bool__(self) -> Literal[True]:
        """True also while nothing is stored: `if cache` asks whether there is a client, and sends nothing."""
        return True

    __reduce__ = _not_copied

    def _deadline(self, timeout: float | None) -> float:
        return now_seconds() + (self.timeout if timeout is None else checked_timeout(timeout))

    @spelled_out
    def register(self, buffer: BytesLike) -> None:
        """Announce memory that will be put from or read into. Shared memory and TCP need no registration, so this only
        checks that it is a buffer."""
        flat(buffer, "the buffer")

    @spelled_out
    def unregister(self, buffer: BytesLike) -> None:
        """Announce that the memory is no longer used. It is checked as by `register`."""
        flat(buffer, "the buffer")

    @spelled_out
    def leased_at_once(self, keys: Iterable[str]) -> list[bool]:
        """Which of these this client may read without asking a master, by a lease that is live now. Never waits."""
        return self._core.leases.are_live(checked_keys(keys), now_seconds())

    @spelled_out
    def exists_at_once(self, key: str) -> bool | None:
        """Is it stored, according to memory of this machine? None: only a master knows. Nothing is sent."""
        return self._core.in_key_table(checked_key(key))


class InPlace(Generic[Client, S]):
    """A `with` block in which objects are seen in place."""

    __slots__ = ("_block", "_cache", "_timeout")
    __reduce__ = _not_copied

    def __init__(self, cache: Client, block: Block[S], timeout: float | None) -> None:
        self._cache = cache
        self._block: Block[S] = block
        self._timeout = None if timeout is None else checked_timeout(timeout)


class OneInPlace(InPlace[Client, memoryview]):
    __slots__ = ()
    _block: ViewBlock

    @property
    def copied(self) -> bool:
        """Inside the block: is it a copy? So it is if the object is not in memory of this machine, or if the tenant has
        leased its share of memory: then nothing would keep the object in its place."""
        return self._block.copied

    @property
    def revoked(self) -> bool:
        """Inside the block: has a node of this machine reported that the object was removed or moved? Its bytes stay
        right until its lease ends, but they are old: a caller that can should end the block and read again."""
        return self._block.revoked


class ReservedObject(Generic[Client]):
    """Memory for one object, and the client that reserved it."""

    __slots__ = ("_cache", "_reserved")
    __reduce__ = _not_copied

    def __init__(self, cache: Client, reserved: Reserved) -> None:
        self._cache = cache
        self._reserved = reserved

    @property
    def key(self) -> str:
        return self._reserved.key

    @property
    def size(self) -> int:
        return self._reserved.size

    def _writes(self, start: int, buffer: BytesLike) -> Callable[[float], Operation[None]]:
        part = checked_value(buffer)
        return lambda deadline: reservations.write(self._cache._core, self._reserved, start, part, deadline)


def only_outcome(outcomes: list[bool | HoldfastError]) -> bool:
    """The outcome of a batch of one. Raises if it is an error."""
    (outcome,) = outcomes
    if isinstance(outcome, HoldfastError):
        raise outcome
    return outcome


def absent(key: str, default: Any) -> Any:
    """The result of a `get` of a key that is not stored."""
    if default is RAISE:
        raise ObjectNotFound(f"no object is stored under {key!r}")
    return default


def own_reservations(
    cache: Client, kind: type[ReservedObject[Client]], reserved: Iterable[ReservedObject[Client]]
) -> list[Reserved]:
    """The reservations of this client. Raises if one is of another client, or is none."""
    listed = iterated(reserved, "reservations", "changed")
    for each in listed:
        if not isinstance(each, kind):
            raise TypeError(f"a {kind.__name__} is wanted, not {type(each).__name__}; nothing was changed")
        if each._cache is not cache:
            raise Refused(f"{each.key!r} was reserved by another client; nothing was changed")
    return [each._reserved for each in listed]
