"""Where the command line begins and every failure ends.

Whatever goes wrong becomes an exit code that a script can act on, and one line on stderr; with `--json` an object on
stdout instead. Nobody is shown a traceback unless HOLDFAST_DEBUG is set. This module imports nothing of the
server extra: verbs that only connect do without, and for the others it says that the extra is missing.
"""

from __future__ import annotations

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

NEEDED = ("typer", "rich", "pydantic_settings")


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    hide_secrets()
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
        return report("interrupted", "interrupted; what was not acknowledged may be undone", INTERRUPTED, as_json)
    except BrokenPipeError:
        # The reader of our output has closed it. Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Misuse as error:
        return report(error.code, f"{error} (see: holdfast {verb_of(arguments)}--help)", USAGE, as_json)
    except HoldfastError as error:
        return report(error.code, str(error) or type(error).__doc__ or error.code, exit_code_of(error), as_json, error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return report("os_error", f"{where}{error.strerror or error}", FAILED, as_json, error)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a defect is reported, not shown as a traceback.
        text = f"unexpected {type(error).__name__}: {error}. Set HOLDFAST_DEBUG=1 to see where"
        return report("unexpected", text, FAILED, as_json, error)


def _run_with_typer(arguments: list[str]) -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print("holdfast: the command line needs the server extra: pip install 'holdfast[server]'", file=sys.stderr)
        return LATER
    return run_with_typer(arguments)


def verb_of(arguments: list[str]) -> str:
    first = next((word for word in arguments if not word.startswith("-")), "")
    return f"{first} " if first in VERBS else ""


def report(code: str, text: str, exit_code: int, as_json: bool, error: BaseException | None = None) -> int:
    if error is not None and os.environ.get("HOLDFAST_DEBUG", "") not in {"", "0"}:
        raise error
    one_line = printable(redacted(" ".join(text.split())))
    if as_json:
        print(json.dumps({"error": {"code": code, "text": one_line}}), flush=True)
    else:
        print(f"holdfast: {one_line}", file=sys.stderr, flush=True)
    return exit_code
