"""Failures as a script sees them: one line, an exit code, JSON where it was asked for, never a traceback."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.app import VERBS
from holdfast.cli.main import main
from holdfast.errors import (
    BadKey,
    ChecksumMismatch,
    DeadlineExceeded,
    HoldfastError,
    NoRoom,
    NotAuthorized,
    ObjectNotFound,
    Unreachable,
)
from holdfast.settings import ClientSettings
from tests.cli.conftest import Run
from tests.cli.fake_cache import FakeCache


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotAuthorized("no"), 1),
        (BadKey("no"), 1),
        (Unreachable("no"), 3),
        (NoRoom("no"), 3),
        (ChecksumMismatch("no"), 3),
        (DeadlineExceeded("no"), 3),
        (ObjectNotFound("no"), 4),
        (OSError("no"), 1),
        (ValueError("no"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_says_what_to_do_next(run: Run, cache: FakeCache, error: BaseException, code: int) -> None:
    """I10: every request ends, and says how."""
    cache.failure = error
    result = run("status")
    assert result.code == code
    assert result.err.startswith("holdfast: ")
    assert result.err.count("\n") == 1
    assert result.out == b""
    assert cache.closed == 1
    told = run("status", "--json")
    assert told.code == code
    assert told.err == ""  # It is told once.
    if isinstance(error, HoldfastError):
        assert told.data == {"error": {"code": error.code, "text": "no"}}


def test_a_text_of_several_lines_becomes_one(run: Run, cache: FakeCache) -> None:
    cache.failure = Unreachable("first\nsecond")
    assert run("status").err == "holdfast: first second\n"


def test_debugging_shows_the_traceback(run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    cache.failure = ValueError("a defect")
    with pytest.raises(ValueError, match="a defect"):
        run("status")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("put",),
        ("get", "k", "--nonsense"),
        ("status", "--timeout", "soon"),
        ("put", "k", "f", "--replicas", "0"),
        ("node", "--size", "large"),
        ("master", "--listen", "7070"),
        ("up", "--masters", "6"),
        ("status", "--config", "absent.toml"),
    ],
)
def test_wrong_usage_is_exit_code_2_in_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert result.err.startswith("holdfast: ")
    assert result.err.count("\n") == 1


def test_a_wrong_verb_with_json_says_so_in_json(run: Run) -> None:
    assert run("nonsense", "--json").data["error"]["code"] == "usage"


def test_a_key_called_json_is_a_key(run: Run, cache: FakeCache) -> None:
    cache.failure = Unreachable("no")
    assert run("exists", "--", "--json").out == b""


def test_the_version_and_every_verb_s_help_are_printed(run: Run) -> None:
    assert run("--version").text.startswith("holdfast 0.")
    for verb in sorted(VERBS):
        result = run(verb, "--help")
        assert result.code == 0, verb
        assert f"Example: holdfast {verb}" in result.text, verb
    assert run().code == 2


def test_a_verb_imports_no_other() -> None:
    """A master or a node should be up soon; what the other verbs need would take it longer than its own part does."""
    code = """if True:
        import sys
        from holdfast.cli.main import main
        main(["node", "--size", "much"])
        print(*sorted(name for name in sys.modules if name.startswith("holdfast.cli.")))
    """
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "much" in ran.stderr
    assert "holdfast.cli.processes.run" in ran.stdout.split()
    assert not {"demo", "lab", "bench", "keys", "transfer"} & {name.split(".")[-1] for name in ran.stdout.split()}


def test_the_connection_comes_from_flags_environment_and_file(
    run: Run, asked: list[ClientSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text("[client]\ntimeout = 7.0\n")
    monkeypatch.setenv("HOLDFAST_ADDRESS", "there:1")
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    run("status", "--token", "hush")
    assert asked[0] == ClientSettings(address="there:1", token="hush", timeout=7.0)
    run("status", "--address", "elsewhere:2")
    assert asked[1].address == "elsewhere:2"


def test_a_missing_extra_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, *more: Any) -> Any:
        return None if name == "typer" else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert main(["doctor"]) == 3
    assert capsys.readouterr().err == (
        "holdfast: the command line needs the server extra: pip install 'holdfast[server]'\n"
    )


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    code = (
        "import sys; from holdfast.cli import connection; from tests.cli.fake_cache import FakeCache\n"
        "connection.open_cache = lambda _: FakeCache({f'key/{n}': b'1' for n in range(200_000)})\n"
        "from holdfast.cli.main import main; sys.exit(main(['ls']))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"key/0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_help_into_a_closed_pipe_ends_quietly() -> None:
    code = "import sys; from holdfast.cli.main import main; sys.exit(main(['--help']))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-c", code]
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, timeout=60)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("words", "told"),
    [(("status",), ""), (("ls",), ""), (("touch", "a"), "; what was not acknowledged may be undone")],
)
def test_ctrl_c_says_no_more_than_that_where_nothing_can_be_left(
    run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for verb in ("status", "keys", "use_many"):
        monkeypatch.setattr(cache, verb, interrupted)
    result = run(*words)
    assert (result.code, result.err) == (130, f"holdfast: interrupted{told}\n")


@pytest.mark.parametrize(
    ("words", "redirected", "told"),
    [
        ("ls --json", ">/dev/full", "stdout: No space left on device"),
        ("ls", ">/dev/full", "stdout: No space left on device"),
        ("get nothing --json", ">/dev/full", "no object is stored under 'nothing'"),
        ("ls", ">&-", "stdin or stdout: Bad file descriptor"),
        ("put a", "<&-", "stdin or stdout: Bad file descriptor"),
    ],
)
def test_a_stream_that_takes_or_gives_nothing_is_one_line(words: str, redirected: str, told: str) -> None:
    code = (
        "import sys; from holdfast.cli import connection; from tests.cli.fake_cache import FakeCache\n"
        "connection.open_cache = lambda *_, **__: FakeCache({'k': b'1'})\n"
        f"from holdfast.cli.main import main; sys.exit(main({words.split()!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shell = ["sh", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, code]
    ended = subprocess.run(shell, capture_output=True, text=True, env=environment, timeout=60)
    assert (ended.returncode, ended.stderr) == (4 if "nothing" in words else 1, f"holdfast: {told}\n")


def test_no_server_answers_is_exit_code_3() -> None:
    """The real client against a port where nobody listens."""
    pytest.importorskip("holdfast.client.cache")
    assert main(["status", "--address", "127.0.0.1:1", "--timeout", "2"]) == 3
