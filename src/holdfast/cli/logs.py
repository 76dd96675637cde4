"""How the processes log: events with fields, to stderr; as JSON where a program reads them."""

from __future__ import annotations

import logging
import sys

import structlog

from holdfast.settings import LogFormat, LogLevel


def configure_logs(level: LogLevel, style: LogFormat) -> None:
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
