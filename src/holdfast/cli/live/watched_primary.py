"""The primary of a cluster, asked again and again, whoever it is at the moment.

1. `ask` sends its request over the connection that it has, and keeps it for the next one.
2. When the master behind it dies, stops to answer or leads no longer, the connection is closed, and the next `ask`
   looks for the primary: at every address that was given, that coordination names, or that a master has named since.
3. While nobody leads, any master that answers is asked: a standby knows how the others stand. If none does, `ask`
   raises, and may be called again at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from holdfast.cli import connection
from holdfast.environment.client_settings import ClientSettings
from holdfast.errors import BadRequest, HoldfastError, NotAllowed, NotAuthorized, Refused, TryAgain
from holdfast.instant import now_seconds
from holdfast.messages.of_masters import EventInfo, EventList, GetOverview, ListEvents, Overview
from holdfast.messages.shapes import Message
from holdfast.operations.masters import Masters
from holdfast.wire.codec import expect

if TYPE_CHECKING:
    from holdfast.transport.channel import Channel

Reply = TypeVar("Reply", bound=Message)
ANSWER_SECONDS = 2.0
"""A master that lives answers in milliseconds; one that was stopped, never."""
MOST_AT_ONCE = 16
MOST_KNOWN = 64
EVENTS_AT_ONCE = 1_000
OLD_MASTER = (
    "the masters are of release 0.2.0 or older, which cannot be asked for this; nothing was changed. Upgrade them, or "
    "use `holdfast status` and the dashboard"
)


class WatchedPrimary:
    """For one thread. `close` it, or use it with `with`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._token = settings.token
        connection.use_certificates(settings)
        self._masters = Masters(settings.address)
        self._named: list[str] = []
        """Addresses of masters that masters have named."""
        self._channel: Channel | None = None
        self.address = ""
        """Of the master that answered last."""
        self._last_event = 0
        """Its number at this master; another one numbers anew."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def overview(self) -> dict[str, Any]:
        """Of the primary; of another master while nobody leads. `TryAgain` if none answers."""
        if self._channel is None:
            return self._found()
        facts = self._ask_facts(self._channel)
        if facts["role"] != "primary":
            return self._found()
        return facts

    def events(self) -> list[EventInfo]:
        """Those since the last call; of another master than the last time all that it remembers."""
        if self._channel is None:
            self._found()
        assert self._channel is not None
        found = self._ask(self._channel, ListEvents(self._last_event, EVENTS_AT_ONCE), EventList).events
        self._last_event = found[-1].number if found else self._last_event
        return found

    def _ask(self, channel: Channel, request: Message, answer: type[Reply]) -> Reply:
        try:
            return expect(channel.call(request, now_seconds() + ANSWER_SECONDS), answer)
        except NotAllowed:
            raise
        except HoldfastError as error:
            self.close()
            if isinstance(error, BadRequest):
                raise Refused(OLD_MASTER) from error
            raise

    def _ask_facts(self, channel: Channel) -> dict[str, Any]:
        facts: dict[str, Any] = msgspec.json.decode(self._ask(channel, GetOverview(), Overview).facts)
        named = [facts["leader"], *(one["address"] for one in facts["masters"])]
        self._named = list(dict.fromkeys(one for one in named if one)) or self._named
        return facts

    def _found(self) -> dict[str, Any]:
        """Look for the primary, and keep the connection to it, or to another master if nobody leads."""
        self.close()
        addresses = self._candidates()
        with ThreadPoolExecutor(min(len(addresses), MOST_AT_ONCE)) as threads:
            opened = list(threads.map(self._opened, addresses))
        pairs = zip(addresses, opened, strict=True)
        channels = {address: one for address, one in pairs if not isinstance(one, HoldfastError)}
        answers: dict[str, dict[str, Any]] = {}
        failures = [one for one in opened if isinstance(one, HoldfastError)]
        for address, channel in channels.items():
            try:
                answers[address] = self._ask_facts(channel)
            except HoldfastError as error:
                failures.append(error)
        best = max(answers, key=lambda one: (answers[one]["role"] == "primary", answers[one]["epoch"]), default=None)
        for address, channel in channels.items():
            if address != best:
                channel.close()
        if best is None:
            raise _worst(failures)
        self._channel, self.address = channels[best], best
        self._last_event = 0
        return answers[best]

    def _candidates(self) -> list[str]:
        try:
            given: Iterable[str] = self._masters.candidates(ANSWER_SECONDS)
        except TryAgain:
            if not self._named:
                raise
            given = ()  # Coordination names no primary; masters that are known may say more.
        return list(dict.fromkeys([*given, *self._named]))[:MOST_KNOWN]

    def _opened(self, address: str) -> Channel | HoldfastError:
        try:
            return connection.open_channel(address, self._token, now_seconds() + ANSWER_SECONDS)
        except HoldfastError as error:
            return error


def _worst(failures: list[HoldfastError]) -> HoldfastError:
    """The failure to tell of: one that will not pass by itself before others."""
    lasting = next((one for one in failures if isinstance(one, Refused | NotAuthorized)), None)
    return lasting or TryAgain(f"no master answers: {failures[0]}" if failures else "no master answers")
