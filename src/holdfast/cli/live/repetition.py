"""A verb's output again and again: one page that is drawn over on a terminal, one answer after the other elsewhere."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from holdfast.cli.exit_codes import OK
from holdfast.cli.live.terminal import Ended, Terminal, is_terminal
from holdfast.cli.output import Output
from holdfast.environment.client_settings import BadSetting
from holdfast.errors import HoldfastError, Refused

LEAST_SECONDS = 0.1
MOST_SECONDS = 3_600.0
USUAL_SECONDS = 2.0


class _Drawn(io.StringIO):
    """Takes what a verb prints for a terminal."""

    def isatty(self) -> bool:
        return True


def seconds_of(text: str) -> float:
    """From one look to the next, as somebody has typed it; empty: the usual."""
    try:
        seconds = float(text or USUAL_SECONDS)
    except ValueError:
        seconds = 0.0
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise BadSetting(f"--watch takes {LEAST_SECONDS:g} to {MOST_SECONDS:,.0f} seconds, not {text!r}")
    return seconds


def repeat(show: Callable[[], object], out: Output, seconds: float) -> int:
    """Until Ctrl-C (on a terminal also `q`). A master that does not answer is told of and asked again; what asking
    again does not mend ends it."""
    try:
        if out.as_json or not is_terminal(sys.stdout):
            _print(show, out, seconds)
        with Terminal() as terminal:
            while True:
                terminal.show(_lines_of(show))
                if terminal.wait(seconds) == "q":
                    return OK
    except KeyboardInterrupt:
        return OK
    except Ended as ended:
        return ended.exit_code


def _print(show: Callable[[], object], out: Output, seconds: float) -> NoReturn:
    while True:
        try:
            show()
        except Refused:
            raise
        except HoldfastError as error:
            out.note(f"{error}; trying again")
        if not out.as_json:
            out.line("")
        sys.stdout.flush()
        threading.Event().wait(seconds)


def _lines_of(show: Callable[[], object]) -> list[str]:
    page = _Drawn()
    with contextlib.redirect_stdout(page), contextlib.redirect_stderr(page):
        try:
            show()
        except Refused:
            raise
        except HoldfastError as error:
            print(f"{error}; trying again", file=page)
    return page.getvalue().splitlines()
