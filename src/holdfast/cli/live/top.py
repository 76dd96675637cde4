"""`top`: the dashboard in a terminal.

A thread asks the primary once a second, and the main thread draws and reads keys, so that a master that does not
answer holds up no key. Not on a terminal, and with `--once`, it prints one page and ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from holdfast.cli.exit_codes import OK
from holdfast.cli.live.events import EventStream
from holdfast.cli.live.page import Choice, ClusterSeen, Page, drawn
from holdfast.cli.live.terminal import Ended, Terminal, is_terminal
from holdfast.cli.live.watched_primary import WatchedPrimary
from holdfast.cli.options import takes
from holdfast.cli.output import Output, plain
from holdfast.dashboard import figures
from holdfast.dashboard.figures import Samples
from holdfast.environment.client_settings import BadSetting, ClientSettings
from holdfast.errors import HoldfastError, NotAllowed, Refused
from holdfast.instant import now_ms

SHOWN_EVENTS = 200
MOST_SECONDS = 60.0
LEAST_SECONDS = 0.1


@takes(ClientSettings)
def top(
    settings: ClientSettings,
    out: Output,
    once: Annotated[bool, typer.Option("--once", help="Print one page and end.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="Seconds from one look to the next.")
    ] = 1.0,
) -> int:
    """Watch the cluster: who leads, nodes, hit rate, requests, latency, events. Keys: ? shows them."""
    if not LEAST_SECONDS <= every <= MOST_SECONDS:
        raise BadSetting(f"--every takes {LEAST_SECONDS:g} to {MOST_SECONDS:g} seconds")
    with WatchedPrimary(settings) as link:
        watch = Watch(link)
        if once or out.as_json or not is_terminal(sys.stdout):
            return _print_once(watch, out, every)
        try:
            watch.look()
        except Refused:
            raise  # A wrong token stays wrong.
        except HoldfastError as error:
            watch.failed(error)
        return _watch(watch, every)


class Watch:
    """What was seen so far. `look` is for one thread; any other may take `seen`."""

    def __init__(self, link: WatchedPrimary) -> None:
        self._link = link
        self._samples = Samples()
        self._events = EventStream(link)
        self._failing_since: int | None = None
        self.seen = ClusterSeen()
        self.defect: Exception | None = None

    def look(self) -> None:
        """Ask, and remember the answer; `HoldfastError` if there is none."""
        now = self._link.overview()
        self._samples = self._samples.with_next(now)
        events, note = self.seen.events, ""
        try:
            events = tuple([*events, *self._events.next()][-SHOWN_EVENTS:])
        except NotAllowed:
            note = "Events are for operators."
        self._failing_since = None
        self.seen = ClusterSeen(self._samples, events, note)

    def failed(self, error: HoldfastError) -> None:
        now = now_ms()
        self._failing_since = self._failing_since or now
        self.seen = replace(self.seen, trouble=str(error), trouble_ms=now - self._failing_since)


def _print_once(watch: Watch, out: Output, every: float) -> int:
    watch.look()
    threading.Event().wait(every)  # Rates need two looks.
    watch.look()
    seen = watch.seen
    assert seen.samples is not None
    if out.as_json:
        out.data(shown_as_json(seen))
        return OK
    for line in drawn(seen, Choice(), Page()):
        out.line(line)
    return OK


def shown_as_json(seen: ClusterSeen) -> dict[str, Any]:
    assert seen.samples is not None
    now, before = seen.samples.now, seen.samples.before
    verbs = {one.verb: one for one in figures.verbs(now, before)}
    return {
        "overview": now,
        "rates": seen.samples.last_rates,
        "verbs": {
            name: {"per_second": one.per_second, "median_seconds": one.median_seconds, "tail_seconds": one.tail_seconds}
            for name, one in verbs.items()
        },
        "loss": figures.loss(now),
        "events": [plain(event) for event in seen.events],
    }


def _watch(watch: Watch, every: float) -> int:
    ends = threading.Event()
    with Terminal() as terminal:
        thread = threading.Thread(target=_look_again, args=(watch, every, ends, terminal.wake), name="top", daemon=True)
        thread.start()
        try:
            _draw_and_obey(watch, terminal)
        except KeyboardInterrupt:
            return OK
        except Ended as ended:
            return ended.exit_code
        finally:
            ends.set()
    return OK


def _look_again(watch: Watch, every: float, ends: threading.Event, wake: Callable[[], None]) -> None:
    while not ends.wait(every):
        try:
            watch.look()
        except HoldfastError as error:
            watch.failed(error)
        except Exception as error:  # noqa: BLE001 - a defect ends the program, in the thread that draws.
            watch.defect = error
            ends.set()
        wake()


def _draw_and_obey(watch: Watch, terminal: Terminal) -> None:
    """Until `q`."""
    look, frozen = Choice(), watch.seen
    while watch.defect is None:
        if not look.paused:
            frozen = watch.seen
        columns, lines = terminal.size()
        terminal.show(drawn(frozen, look, Page(columns, lines, colour=True)))
        key = terminal.wait(1.0)
        if key == "q" and not look.helps:
            return
        if key:
            look = look.pressed(key)
    raise watch.defect
