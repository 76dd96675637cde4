"""What the shell is offered: verbs, flags, keys and nodes; and silence where nobody answers."""

from __future__ import annotations

import pytest

from holdfast.cli.completion import ANSWER_SECONDS, MOST_OFFERED
from holdfast.cli.main import main
from holdfast.environment.client_settings import ClientSettings
from holdfast.errors import Unreachable
from tests.cli.conftest import Run
from tests.cli.fake_cache import FakeCache


class Shell:
    """Bash, as the script of `holdfast --show-completion` asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[bytes]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def offers(self, line: str) -> list[str]:
        self._monkeypatch.setenv("_HOLDFAST_COMPLETE", "complete_bash")
        self._monkeypatch.setenv("COMP_WORDS", line)
        self._monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit) as ended:
            main([])
        assert ended.value.code in (0, None)
        told = self._capsys.readouterr()
        assert told.err == b""
        return sorted(told.out.decode().split())


@pytest.fixture
def shell(run: Run, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Shell:
    """`run` has put a dict in the place of the cluster."""
    return Shell(monkeypatch, capsysbinary)


@pytest.mark.parametrize("verb", ["get", "exists", "rm", "stat", "touch", "pin", "unpin", "explain", "ls"])
def test_keys_are_offered(shell: Shell, cache: FakeCache, verb: str) -> None:
    cache.stored = {"model/1": b"1", "model/2": b"2", "other": b"3", "model/\x1b[2J": b"4"}
    assert shell.offers(f"holdfast {verb} mod") == ["model/1", "model/2"]


def test_keys_are_looked_for_page_by_page_and_not_without_end(shell: Shell, cache: FakeCache) -> None:
    cache.stored = {f"k{number:04}": b"1" for number in range(1_000)}
    assert len(shell.offers("holdfast get k")) == MOST_OFFERED
    cache.stored = {f"k{number:04}": b"1" for number in range(35)}
    assert len(shell.offers("holdfast get ")) == 35


@pytest.mark.parametrize("line", ["put k f --prefer ", "drain ", "drain node", "nodes cordon no"])
def test_nodes_are_offered(shell: Shell, line: str) -> None:
    assert shell.offers(f"holdfast {line}") == ["node-1"]
    assert shell.offers(f"holdfast {line}x" if line[-1] == " " else f"holdfast {line}-x") == []


def test_the_cluster_is_asked_that_was_typed_and_not_for_long(shell: Shell, asked: list[ClientSettings]) -> None:
    shell.offers("holdfast get --address there:1 k")
    assert asked == [ClientSettings(address="there:1", timeout=ANSWER_SECONDS)]


def test_nothing_is_said_where_nobody_answers(shell: Shell, cache: FakeCache) -> None:
    cache.failure = Unreachable("no")
    assert shell.offers("holdfast get k") == []
    assert shell.offers("holdfast drain ") == []


def test_verbs_and_flags_are_offered_as_before(shell: Shell) -> None:
    assert shell.offers("holdfast sta") == ["stat", "status"]
    assert "--soft-pin" in shell.offers("holdfast put k --soft")
