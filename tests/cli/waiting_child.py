"""A child of a fleet that is a line of Python; its first argument is the ready file."""

from __future__ import annotations

import sys

from holdfast.cli.processes.fleet import Child


class ScriptChild(Child):
    __slots__ = ()

    def command(self) -> list[str]:
        return [sys.executable, "-c", *self.arguments, str(self.ready_file)]
