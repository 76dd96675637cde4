"""How verbs declare their arguments without importing a library for it.

A verb is a function; its parameters are annotated with an `Operand` or a `Flag`. Both ways of reading a command line
take these declarations: `quick`, and typer, for which `options` translates them, and which makes the help.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from holdfast.errors import Refused


class Operand(NamedTuple):
    """An argument that is known by its place."""

    metavar: str
    help: str
    completes: Literal["", "keys", "nodes"] = ""
    """What the shell offers: a function of `completion`."""


class Flag(NamedTuple):
    """An argument that is known by its name."""

    help: str
    names: tuple[str, ...] = ()
    """Without any: --parameter-name."""
    metavar: str | None = None
    least: int | None = None
    """The smallest number that it takes."""
    shows_default: bool = False
    completes: Literal["", "keys", "nodes"] = ""

    def spellings(self, parameter: str) -> tuple[str, ...]:
        return self.names or ("--" + parameter.replace("_", "-"),)


class Misuse(Refused):
    """The arguments do not go together; nothing was sent."""

    code = "usage"
