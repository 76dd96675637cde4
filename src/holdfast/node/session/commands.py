"""A node's command handlers: one callable per command, by name.

A handler must return quickly, because the next keepalive waits for it: long work goes to another thread. A command that
is unknown or fails is reported to the primary, and affects nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from holdfast.errors import CommandRefused, HoldfastError, UnknownCommand

log = structlog.get_logger("holdfast.node")


class Commands:
    def __init__(self) -> None:
        self._known: dict[str, Callable[[bytes], None]] = {}

    def on(self, name: str, do: Callable[[bytes], None]) -> None:
        assert name not in self._known, f"{name} is done by somebody else already"
        self._known[name] = do

    def perform(self, name: str, body: bytes) -> None:
        do = self._known.get(name)
        if do is None:
            log.warning("an unknown command was refused", command=name[:100])
            raise UnknownCommand(
                f"this node knows no command {name[:100]!r}; nothing was done. Is it of an older version?"
            )
        try:
            do(body)
        except HoldfastError as error:
            log.warning("a command was refused", command=name, reason=str(error))
            raise
        except Exception as error:
            log.exception("a command failed", command=name)
            raise CommandRefused(f"{name} failed at the node ({error!r}); it may have been done in part") from error
