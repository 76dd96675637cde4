"""Logs of a process: events with fields, to stderr; as JSON where a program reads them.

Every line of a JSON log is one object with the process's `name` and `cluster`, whoever wrote it: our own modules, the
standard library's `logging` of other packages, warnings, and errors that nobody caught.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict

from holdfast.cli.processes.log_stream import LogStream
from holdfast.coordination.urls import redacted
from holdfast.escapes import printable, printable_lines
from holdfast.settings import LogFormat, LogLevel

QUIET = ("uvicorn.error", "asyncio")
"""Loggers that tell of each start and stop at INFO."""


def configure_logs(level: LogLevel, style: LogFormat, name: str = "", cluster: str = "") -> bool:
    """Log to stderr from now on. Whether that is JSON."""
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    least = logging.getLevelNamesMapping()[level.upper()]
    stream = LogStream(sys.stderr.fileno())
    atexit.register(stream.wait)

    def named(_: object, __: str, event: EventDict) -> EventDict:
        event["name"], event["cluster"] = name, cluster
        return {field: redacted(value) if isinstance(value, str) else value for field, value in event.items()}

    shared: list[Callable[..., Any]] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        named,
    ]
    shown: Callable[..., Any] = structlog.processors.JSONRenderer() if as_json else _render_for_people
    structlog.configure(
        processors=[*shared, shown],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(stream),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    _take_over_stdlib(stream, least, [structlog.stdlib.add_logger_name, *shared], shown)
    _log_what_nobody_caught()
    if as_json:
        # The C library under gRPC writes lines of its own to stderr.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return as_json


_console = structlog.dev.ConsoleRenderer()


def _render_for_people(logger: Any, method: str, event: EventDict) -> str | bytes:
    """One entry, of which only the traceback takes further lines: no key or name can forge one."""
    safe = {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}
    if isinstance(trace := event.get("exception"), str):
        safe["exception"] = printable_lines(trace)
    return _console(logger, method, safe)


def _take_over_stdlib(
    stream: LogStream, least: int, before: list[Callable[..., Any]], shown: Callable[..., Any]
) -> None:
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, shown],
        keep_exc_info=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(least)
    for quiet in QUIET:
        logging.getLogger(quiet).setLevel(max(least, logging.WARNING))
    warnings.showwarning = _log_warning


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    logging.getLogger("py.warnings").warning("%s: %s (%s:%d)", category.__name__, message, filename, lineno)


def _log_what_nobody_caught() -> None:
    log = logging.getLogger("holdfast")

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("nobody caught this error: %r", error, exc_info=(kind, error, trace))

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            where = args.thread.name if args.thread is not None else "a thread"
            log.error("an error ended %s: %r", where, args.exc_value, exc_info=args.exc_value)

    def unraisable(args: Any) -> None:
        log.error("an error was passed over in %r: %r", args.object, args.exc_value, exc_info=args.exc_value)

    sys.excepthook = uncaught
    threading.excepthook = in_thread
    sys.unraisablehook = unraisable
