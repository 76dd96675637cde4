"""`events`: what happened in the cluster, as all masters noted it; `--follow` goes on, also through a failover."""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from typing import Annotated, Any, NoReturn

from holdfast.cli.declared import Flag
from holdfast.cli.exit_codes import OK
from holdfast.cli.live.watched_primary import WatchedPrimary
from holdfast.cli.output import Output, plain
from holdfast.environment.client_settings import BadSetting, ClientSettings
from holdfast.errors import HoldfastError, Refused
from holdfast.instant import calendar_seconds
from holdfast.messages.of_masters import EventInfo

MOST_EVENTS = 1_000
FOLLOW_SECONDS = 0.5


def events(
    settings: ClientSettings,
    out: Output,
    follow: Annotated[bool, Flag("Go on with what happens from now on.", ("--follow", "-f"))] = False,
    limit: Annotated[int, Flag("The most earlier events to show; 100.", ("--limit", "-n"), "N", least=0)] = 100,
) -> int:
    """Show what happened: failovers, drains, settings, snapshots, evictions, nodes that came and went."""
    if limit > MOST_EVENTS:
        raise BadSetting(f"--limit takes at most {MOST_EVENTS:,}: masters remember no more")
    with WatchedPrimary(settings) as link:
        stream = EventStream(link)
        earlier = stream.next()
        shown = earlier[len(earlier) - min(limit, len(earlier)) :]
        if not follow:
            _print(out, shown, nothing_happened=not earlier)
            return OK
        for event in shown:
            _print_line(out, event)
        try:
            _follow(stream, out)
        except KeyboardInterrupt:
            return OK


class EventStream:
    """Each event once, the oldest first, of whichever master answers.

    Numbers are one process's own, so an event is known by its master and its date, of which no two are the same.
    """

    def __init__(self, link: WatchedPrimary) -> None:
        self._link = link
        self._known: dict[tuple[str, int], None] = {}

    def next(self) -> list[EventInfo]:
        """Those that are new since the last call; `HoldfastError` if nobody answers."""
        new = [event for event in self._link.events() if (event.master, event.date_ms) not in self._known]
        self._known |= dict.fromkeys((event.master, event.date_ms) for event in new)
        for oldest in list(self._known)[: max(0, len(self._known) - 2 * MOST_EVENTS)]:
            del self._known[oldest]
        return sorted(new, key=lambda event: event.date_ms)


def wait_or_broken_pipe(seconds: float) -> None:
    """Wait; BrokenPipeError as soon as nobody reads stdout any more, which otherwise only the next event would show."""
    poll = select.poll()
    with contextlib.suppress(ValueError, OSError):  # Where stdout is no file, as in tests, nobody can leave.
        poll.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in poll.poll(seconds * 1000)):
        raise BrokenPipeError


def _follow(stream: EventStream, out: Output) -> NoReturn:
    """Until Ctrl-C. A master that does not answer is told of once, and asked again."""
    told = False
    while True:
        wait_or_broken_pipe(FOLLOW_SECONDS)
        try:
            found = stream.next()
        except Refused:
            raise
        except HoldfastError as error:
            if not told:
                out.note(f"{error}; trying again")
            told = True
        else:
            if told:
                out.note("a master answers again")
            told = False
            for event in found:
                _print_line(out, event)


def _print(out: Output, found: list[EventInfo], nothing_happened: bool) -> None:
    if out.as_json:
        out.data({"events": [_as_json(event) for event in found]})
    elif nothing_happened:
        out.note("nothing has happened yet that the masters remember")
    else:
        for event in found:
            _print_line(out, event)


def _print_line(out: Output, event: EventInfo) -> None:
    if out.as_json:
        sys.stdout.write(json.dumps(_as_json(event)) + "\n")
    else:
        when, master, kind, about = row_of_event(event)
        out.line(f"{when}  {master}  {kind}  {about}")
    sys.stdout.flush()


def _as_json(event: EventInfo) -> dict[str, Any]:
    facts: dict[str, Any] = plain(event)
    del facts["number"]  # It means nothing at the next master.
    return facts | {"age_ms": max(0, int(calendar_seconds() * 1000) - event.date_ms)}


def row_of_event(event: EventInfo) -> tuple[str, str, str, str]:
    about = ": ".join(part for part in (event.subject, event.text) if part)
    return local_time(event.date_ms), event.master, event.kind.replace("_", " "), about


def local_time(date_ms: int) -> str:
    """A date by the calendar, as people here write it; of today only the time."""
    then = time.localtime(date_ms / 1000)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", then)
