"""Where the command line begins and every failure ends.

Whatever goes wrong becomes an exit code that a script can act on, and one line on stderr; with `--json` an object on
stdout instead. Nobody is shown a traceback unless HOLDFAST_DEBUG is set. This module imports nothing of the
server extra: verbs that only connect do without, and for the others it says that the extra is missing.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import sys
from collections.abc import Sequence

from holdfast.cli import quick
from holdfast.cli.app import COMPLETING, VERBS, run_with_typer
from holdfast.cli.command_line import hide_secrets
from holdfast.cli.declared import Misuse
from holdfast.cli.exit_codes import BROKEN_PIPE, FAILED, INTERRUPTED, LATER, OK, USAGE, Interrupted, exit_code_of
from holdfast.coordination.urls import redacted
from holdfast.environment.variables import unknown_told
from holdfast.errors import HoldfastError
from holdfast.escapes import printable

OF_STREAMS = {errno.ENOSPC: "stdout", errno.EBADF: "stdin or stdout"}
"""What an error of the system without a file's name is about."""
READING = frozenset({"config", "events", "exists", "explain", "get", "ls", "stat", "status", "top"})
"""Verbs that change nothing: after Ctrl-C nothing is left of them."""
NEEDED = ("typer", "rich", "pydantic_settings")


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    hide_secrets()
    open_what_is_closed()
    if any(redacted(word) != word for word in given):
        print(
            "holdfast: everybody on this machine can read the password in these arguments; put it into a file "
            "(password_file= in the URL) or into HOLDFAST_COORDINATION_PASSWORD",
            file=sys.stderr,
        )
    if COMPLETING not in os.environ and (misspelt := unknown_told()):
        print(f"holdfast: {printable(misspelt)}", file=sys.stderr)
    as_json = "--json" in given[: given.index("--")] if "--" in given else "--json" in given
    return run(given, as_json)


def run(arguments: list[str], as_json: bool) -> int:
    try:
        # Verbs that only connect are read without the libraries that the others need; these take longer to import.
        call = None if COMPLETING in os.environ else quick.read(arguments)
        code = call.run() if call is not None else _run_with_typer(arguments)
        sys.stdout.flush()
        return OK if code is None else code
    except Interrupted as ended:
        return report("interrupted", str(ended), INTERRUPTED, as_json)
    except KeyboardInterrupt:
        left = "" if verb_of(arguments).strip() in READING else "; what was not acknowledged may be undone"
        return report("interrupted", f"interrupted{left}", INTERRUPTED, as_json)
    except BrokenPipeError:
        # The reader of our output has closed it. Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Misuse as error:
        return report(error.code, f"{error} (see: holdfast {verb_of(arguments)}--help)", USAGE, as_json)
    except HoldfastError as error:
        return report(error.code, str(error) or type(error).__doc__ or error.code, exit_code_of(error), as_json, error)
    except OSError as error:
        drop_what_cannot_be_printed()
        what = error.filename if error.filename is not None else OF_STREAMS.get(error.errno or 0)
        where = f"{what}: " if what is not None else ""
        return report("os_error", f"{where}{error.strerror or error}", FAILED, as_json, error)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a defect is reported, not shown as a traceback.
        text = f"unexpected {type(error).__name__}: {error}. Set HOLDFAST_DEBUG=1 to see where"
        return report("unexpected", text, FAILED, as_json, error)


def _run_with_typer(arguments: list[str]) -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print("holdfast: the command line needs the server extra: pip install 'holdfast[server]'", file=sys.stderr)
        return LATER
    try:
        return run_with_typer(arguments)
    except SystemExit as ended:
        # The library that prints help and tables turns a closed pipe into an exit of its own.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise


def verb_of(arguments: list[str]) -> str:
    first = next((word for word in arguments if not word.startswith("-")), "")
    return f"{first} " if first in VERBS else ""


def report(code: str, text: str, exit_code: int, as_json: bool, error: BaseException | None = None) -> int:
    if error is not None and os.environ.get("HOLDFAST_DEBUG", "") not in {"", "0"}:
        raise error
    one_line = printable(redacted(" ".join(text.split())))
    if as_json and _printed(json.dumps({"error": {"code": code, "text": one_line}})):
        return exit_code
    print(f"holdfast: {one_line}", file=sys.stderr, flush=True)
    return exit_code


def _printed(text: str) -> bool:
    """False where stdout takes nothing."""
    try:
        print(text, flush=True)
    except OSError:
        drop_what_cannot_be_printed()
        return False
    return True


def drop_what_cannot_be_printed() -> None:
    """Python would try it again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_what_is_closed() -> None:
    """Where the caller closed stdin, stdout or stderr, open it so that its use fails with an error of the system.

    Otherwise the next file or socket would get its number, and output would go there. Errors have nowhere to go."""
    for number, (name, mode) in enumerate((("stdin", "w"), ("stdout", "r"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY if mode == "w" else os.O_RDONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115 - for the life of the process.
