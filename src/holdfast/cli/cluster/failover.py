"""`failover`: the primary hands over to a standby, while a client measures the effect on others.

The old primary makes durable what it has begun and resigns; a standby that has caught up takes over at once, because a
resignation is proof. Without such a standby nothing is done: the cluster would be without a primary.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import connection
from holdfast.cli.cluster.masters import LOOK_SECONDS, MasterSeen, ask_one, await_primary, given_addresses, survey
from holdfast.cli.options import takes
from holdfast.cli.output import Output
from holdfast.errors import HoldfastError, TryAgain
from holdfast.instant import now_seconds
from holdfast.messages.of_masters import HandOver
from holdfast.messages.requests import Done, Status
from holdfast.settings import ClientSettings

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

PROBE_EVERY_S = 0.002


class NoStandby(TryAgain):
    """No other master could take over; nothing was done."""

    code = "no_standby"


@takes(ClientSettings)
def failover(
    settings: ClientSettings,
    out: Output,
    force: Annotated[
        bool, typer.Option("--force", help="Hand over even if no standby is known to be able to take over.")
    ] = False,
) -> None:
    """Have the primary hand over to a standby. No request fails; --timeout is how long to wait for the new one."""
    deadline = now_seconds() + settings.timeout
    with connection.open_cache(settings) as cache:
        old = cache.status()
        addresses = [*given_addresses(settings.address), old.leader, *old.masters]
        seen = survey(addresses, settings.token, min(settings.timeout, LOOK_SECONDS))
        if not force:
            check_standby(seen, old)
        with probing(cache) as probe:
            ask_one(old.leader, settings.token, HandOver(), Done, deadline)
            new = await_new_primary(addresses, old, settings.token, deadline)
            probe.await_answer(deadline)
    outage_ms = round(probe.longest_s * 1000, 1)
    if out.as_json:
        facts = {"old": {"name": old.name, "epoch": old.epoch, "address": old.leader}}
        facts["new"] = {"name": new.name, "epoch": new.epoch, "address": new.leader}
        out.data({**facts, "outage_ms": outage_ms, "failed_probes": probe.failed})
        return
    out.line(
        f"{old.name} (epoch {old.epoch}, {old.leader}) handed over to {new.name} (epoch {new.epoch}, {new.leader})"
    )
    out.line(
        f"a client that asked all the while waited at most {outage_ms:g} ms; {probe.failed} of its requests failed"
    )


def check_standby(seen: list[MasterSeen], primary: Status) -> None:
    others = [one for one in seen if one.status is None or one.status.name != primary.name]
    if any(one.promotable for one in others):
        return
    if not others:
        raise NoStandby(
            f"{primary.name} is the only master that is known; nothing was done. Name the others too, like "
            "--address host1:7070,host2:7070, or insist with --force"
        )
    reasons = "; ".join(
        f"{one.status.name}: {one.status.promotable_reason}"
        if one.status is not None
        else f"{one.address}: {one.fault}"
        for one in others
    )
    raise NoStandby(f"no standby can take over from {primary.name}; nothing was done ({reasons})")


def await_new_primary(addresses: list[str], old: Status, token: str, deadline: float) -> Status:
    known = list(addresses)

    def look_now() -> list[MasterSeen]:
        seen = survey(known, token, LOOK_SECONDS)
        # The old primary, a standby now, names the new one, wherever that is.
        known.extend(one.status.leader for one in seen if one.status is not None and one.status.leader)
        known[:] = dict.fromkeys(known)
        return seen

    found = await_primary(look_now, lambda status: status.epoch > old.epoch, deadline, threading.Event())
    if found is None:
        raise TryAgain(
            f"{old.name} was asked to hand over, but nobody has taken over in time; it may still happen. "
            "See holdfast status"
        )
    if found.name == old.name:
        raise TryAgain(f"{old.name} handed over and was elected again, in epoch {found.epoch}: no other one was ready")
    return found


@dataclass(slots=True)
class Probe:
    """Asks for a key that nobody has, over and over, and keeps the longest time between two answers."""

    cache: Cache
    longest_s: float = 0.0
    failed: int = 0
    answers: int = 0
    _key: str = field(default_factory=lambda: f"failover-probe/{secrets.token_hex(8)}")
    _stop: threading.Event = field(default_factory=threading.Event)
    _answered: threading.Condition = field(default_factory=threading.Condition)

    def run(self) -> None:
        last = now_seconds()
        while not self._stop.wait(PROBE_EVERY_S):
            try:
                self.cache.exists(self._key)
            except HoldfastError:
                # It is part of what is measured; the next one may be answered.
                self.failed += 1
                continue
            now = now_seconds()
            with self._answered:
                self.longest_s, last = max(self.longest_s, now - last), now
                self.answers += 1
                self._answered.notify_all()

    def await_answer(self, deadline: float) -> None:
        """Wait for two more replies: the first may have been under way already."""
        with self._answered:
            enough = self.answers + 2
            self._answered.wait_for(lambda: self.answers >= enough, max(0.0, deadline - now_seconds()))

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def probing(cache: Cache) -> Iterator[Probe]:
    probe = Probe(cache)
    thread = threading.Thread(target=probe.run, name="failover-probe", daemon=True)
    thread.start()
    try:
        probe.await_answer(now_seconds() + LOOK_SECONDS)
        yield probe
    finally:
        probe.stop()
        thread.join(cache.timeout + 1)
