"""How every master stands, asked of each one itself: what `status`, `failover`, `up` and `demo` know about roles.

A standby answers too. One that does not answer is a finding and not an error, because the masters that do are
exactly what one wants to see then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeVar

from holdfast.cli import connection
from holdfast.cli.output import plain
from holdfast.errors import BadValue, HoldfastError
from holdfast.instant import now_seconds
from holdfast.messages.requests import GetStatus, Status
from holdfast.messages.shapes import Message
from holdfast.transport.addresses import master_addresses
from holdfast.wire.codec import expect

LOOK_SECONDS = 3.0
LOOK_AGAIN_SECONDS = 0.02
MOST_AT_ONCE = 16
HEADINGS = ("MASTER", "ADDRESS", "ROLE", "EPOCH", "APPLIED", "LAG", "DIGEST EQUAL", "PROMOTABLE")
RIGHT = ("EPOCH", "APPLIED", "LAG")

Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True, slots=True)
class MasterSeen:
    """One master, as it answered or did not."""

    address: str
    status: Status | None
    fault: str = ""

    @property
    def role(self) -> str:
        return self.status.role if self.status is not None else "unreachable"

    @property
    def promotable(self) -> bool:
        return self.status is not None and self.status.role == "standby" and self.status.promotable


def ask_one(address: str, token: str, request: Message, answer: type[Reply], deadline: float) -> Reply:
    """One question to the master at this address, whatever its role."""
    with closing(connection.open_channel(address, token, deadline)) as channel:
        return expect(channel.call(request, deadline), answer)


def look(address: str, token: str, seconds: float = LOOK_SECONDS) -> MasterSeen:
    try:
        return MasterSeen(address, ask_one(address, token, GetStatus(), Status, now_seconds() + seconds))
    except HoldfastError as error:
        return MasterSeen(address, None, str(error))


def survey(addresses: Iterable[str], token: str, seconds: float = LOOK_SECONDS) -> list[MasterSeen]:
    """All of them at once, each address once, in the order given."""
    wanted = list(dict.fromkeys(addresses))
    if not wanted:
        return []
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(wanted), MOST_AT_ONCE)) as threads:
        return list(threads.map(lambda address: look(address, token, seconds), wanted))


def given_addresses(address: str) -> list[str]:
    """The masters that an address names itself; none where coordination names them."""
    if "://" in address:
        return []
    try:
        return master_addresses(address)
    except BadValue:
        # Connecting with it reports what is wrong with it.
        return []


def primary_of(seen: Sequence[MasterSeen]) -> Status | None:
    """The primary of the latest epoch: one that was stopped for a while may not know yet that it is none."""
    leading = [one.status for one in seen if one.status is not None and one.status.role == "primary"]
    return max(leading, key=lambda status: status.epoch, default=None)


def facts_of(seen: MasterSeen, primary: Status | None) -> dict[str, Any]:
    """For scripts. Lag and digest are compared with the primary's, the digest only where both hold the same records."""
    facts: dict[str, Any] = {"address": seen.address, "reachable": seen.status is not None, "fault": seen.fault}
    if seen.status is None:
        return facts
    lag: int | None = None
    equal: bool | None = None
    if primary is not None:
        lag = max(0, primary.applied_index - seen.status.applied_index)
        if primary.applied_index == seen.status.applied_index:
            equal = primary.digest == seen.status.digest
    return {**plain(seen.status), **facts, "lag": lag, "digest_equal": equal}


def row_of(seen: MasterSeen, primary: Status | None) -> tuple[object, ...]:
    """For people, under `HEADINGS`."""
    status = seen.status
    if status is None:
        return ("?", seen.address, "unreachable", "-", "-", "-", "-", f"no: {seen.fault}")
    facts = facts_of(seen, primary)
    lag = "-" if facts["lag"] is None else f"{facts['lag']:,}"
    equal = {True: "yes", False: "no", None: "-"}[facts["digest_equal"]]
    promotable = f"{'yes' if status.promotable else 'no'}: {status.promotable_reason}"
    return (
        status.name,
        seen.address,
        status.role,
        status.epoch,
        f"{status.applied_index:,}",
        lag,
        equal,
        promotable,
    )


def await_primary(
    look_now: Callable[[], list[MasterSeen]], wanted: Callable[[Status], bool], until: float, stop: Event
) -> Status | None:
    """The first primary that is wanted, or None when the time is up. `stop` ends the wait as Ctrl-C does."""
    while True:
        found = primary_of(look_now())
        if found is not None and wanted(found):
            return found
        if now_seconds() > until:
            return None
        if stop.wait(LOOK_AGAIN_SECONDS):
            raise KeyboardInterrupt
