"""Every error, sorted by what the caller does next.

`Refused`: nothing changed and asking again will not help. `TryAgain`: nothing changed, the same request may
succeed later or elsewhere. `Uncertain`: it may have happened. The `code` travels on the wire, so that an error
raised in a master is raised again, with its type, in the client.
"""

from __future__ import annotations

import struct
from typing import ClassVar

import msgspec

MALFORMED: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    MemoryError,
    struct.error,
    msgspec.DecodeError,
)
"""Raised by Python, NumPy and msgspec while altered bytes are decoded or acted on: text that is no UTF-8, deep nesting,
numbers that fit no column, rows that name what is not there. Whoever decodes turns them into an error of its own."""


class HoldfastError(Exception):
    """Anything that holdfast reports. Its text says what happened, what was not changed and what to do."""

    code: ClassVar[str] = "error"
    hint: str = ""
    """Where to ask instead, if that is known."""
    retry_after_ms: int = 0
    """How long to wait before asking again, if that is known."""


class Refused(HoldfastError):
    """Nothing changed, and asking again will not help."""

    code = "refused"


class TryAgain(HoldfastError):
    """Nothing changed; the same request may succeed later or elsewhere."""

    code = "try_again"


class Uncertain(HoldfastError):
    """It may have happened. Only an idempotent request may be sent again."""

    code = "uncertain"


class ObjectNotFound(Refused, KeyError):
    """No object is stored under this key."""

    code = "object_not_found"

    def __str__(self) -> str:
        # KeyError would print the repr of the text.
        return Exception.__str__(self)


class ObjectLeased(Refused):
    """The object is being read under a lease; it can be removed when the lease has ended, or with force."""

    code = "object_leased"


class BadKey(Refused, ValueError):
    """A key is a non-empty UTF-8 string of at most 1,024 bytes."""

    code = "bad_key"


class BadValue(Refused, ValueError):
    """The value, a size or another argument cannot be used."""

    code = "bad_value"


class TenantFull(Refused):
    """The tenant's limit is reached, and too little of its own may be evicted now: the rest is leased or pinned."""

    code = "tenant_full"


class OverCommitted(Refused, ValueError):
    """More memory would be guaranteed to tenants than there is."""

    code = "over_committed"


class WouldEvict(Refused):
    """To empty the node, objects would have to be evicted: the other nodes have no room for them."""

    code = "would_evict"


class TooLarge(Refused, ValueError):
    """No segment of the cluster could ever hold an object of this size."""

    code = "too_large"


class BadPattern(Refused, ValueError):
    """The regular expression is not valid RE2 syntax."""

    code = "bad_pattern"


class BufferTooSmall(Refused, ValueError):
    """The object does not fit into the caller's buffer; nothing was copied."""

    code = "buffer_too_small"


class BadRequest(Refused):
    """The frame or message is malformed, unknown, or breaks a limit."""

    code = "bad_request"


class WrongVersion(Refused):
    """The two sides have no protocol version in common; the text says which of them is to be upgraded first."""

    code = "wrong_version"


class LogHeldBack(Refused):
    """A master of the release before could not read the record that this needs: upgrade that master first."""

    code = "log_held_back"


class NotAuthorized(Refused):
    """The token is missing or wrong."""

    code = "not_authorized"


class NotAllowed(Refused):
    """The caller is known, and its role does not include this."""

    code = "not_allowed"


class ClientRevoked(NotAllowed):
    """The operator has revoked this client: no master takes requests from it any more. Open a new one, if you may."""

    code = "client_revoked"


class NameTaken(Refused):
    """A live node already uses this name."""

    code = "name_taken"


class MemoryVoid(Refused):
    """The master does not know this memory: mount new memory under a new boot id."""

    code = "memory_void"


class UnknownSegment(Refused):
    """The node does not lend this segment (any more)."""

    code = "unknown_segment"


class ReplicaLost(UnknownSegment):
    """The node cannot give these bytes: the replica's file is gone or spoiled, or its disk cannot be read.

    The node tells the master so itself. Another replica may be good; without one the key is a miss soon."""

    code = "replica_lost"


class TicketRefused(UnknownSegment):
    """The ticket is forged, or for another node, range or client; nothing was read or mapped. Ask the master again."""

    code = "ticket_refused"


class TicketExpired(TicketRefused):
    """The ticket is too old, or of a master that the node has never heard of. Ask the master for another one."""

    code = "ticket_expired"


class UnknownNode(Refused):
    """The node is not registered with this master: register again."""

    code = "unknown_node"


class SessionExpired(Refused):
    """The session is over, or never was: open a new one."""

    code = "session_expired"


class UnknownClient(Refused):
    """Nobody of this handle or name is connected or holds a grant; nothing was changed."""

    code = "unknown_client"


class UnknownCommand(Refused):
    """The follower knows no command of this name; it did nothing."""

    code = "unknown_command"


class CommandRefused(Refused):
    """The follower was told, and could not do it."""

    code = "command_refused"


class GrantRefused(Refused):
    """The grant is unknown, forged, or was ended: take another one."""

    code = "grant_refused"


class GrantTimedOut(TryAgain):
    """The grant had ended before the commit arrived; nothing was stored. Put again with a new grant."""

    code = "grant_timed_out"


class NodeAway(GrantTimedOut):
    """The node of the granted memory is dead or away; nothing was stored. Put again with a grant elsewhere."""

    code = "node_away"


class Busy(TryAgain):
    """Not now, but soon, and here: the same request to the same master."""

    code = "busy"


class NoRoom(Busy):
    """No memory could be freed before the deadline: everything is leased or pinned, or no node is there."""

    code = "no_room"


class LogSlow(Busy):
    """The log cannot keep up with the puts."""

    code = "log_slow"


class LogFull(Busy):
    """The store that holds the log is full and takes nothing. Nothing was changed; make room there."""

    code = "log_full"


class Settling(Busy):
    """The primary took over from one that may not know it yet; removals wait until it must."""

    code = "settling"


class CommandsWaiting(Busy):
    """The follower has not taken the commands that it was given; it is given no more until it has."""

    code = "commands_waiting"


class WindowFull(Busy):
    """This client already holds as much granted memory as one client may."""

    code = "window_full"


class TenantBusy(Busy):
    """The tenant's clients send more requests, or are more, than its quota allows. Ask again after `retry_after_ms`."""

    code = "tenant_busy"


class NotLeader(TryAgain):
    """This master is not the primary."""

    code = "not_leader"


class Unreachable(TryAgain):
    """Nobody answers at the address."""

    code = "unreachable"


class TooManyClients(TenantBusy, Unreachable):
    """As many clients of the tenant are connected as its quota allows. Connect again after `retry_after_ms`."""

    code = "too_many_clients"


class Stopping(TryAgain):
    """The process is shutting down."""

    code = "stopping"


class NodeLost(TryAgain):
    """No node that holds the object answers."""

    code = "node_lost"


class LeaseLost(TryAgain):
    """The object left its place while it was being read: the bytes seen may be wrong. Read again."""

    code = "lease_lost"


class ChecksumMismatch(TryAgain):
    """The bytes read are not the bytes that were put."""

    code = "checksum_mismatch"


class DeadlineExceeded(Uncertain, TimeoutError):
    """The call did not finish within its timeout."""

    code = "deadline_exceeded"


class ReplyLost(Uncertain):
    """The connection broke after the request was sent."""

    code = "reply_lost"


class LogFullInDoubt(ReplyLost):
    """The change was decided, and the store that holds the log is full: it counts once there is room, or never."""

    code = "log_full_in_doubt"


class PartlyStored(Uncertain):
    """Some objects of a batch were stored, and others were not. To put all of them again stores the rest."""

    code = "partly_stored"


class ClientClosed(Refused):
    """The client was closed."""

    code = "client_closed"


def _walk(kind: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [kind] + [deeper for child in kind.__subclasses__() for deeper in _walk(child)]


BY_CODE: dict[str, type[HoldfastError]] = {kind.code: kind for kind in _walk(HoldfastError)}


def from_code(code: str, text: str) -> HoldfastError:
    """The error that a peer reported; an unknown code of a newer peer stays a HoldfastError."""
    return BY_CODE.get(code, HoldfastError)(text)
