"""Children that are started, watched, started again and ended. They are small scripts here."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from holdfast.cli.processes.fleet import FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_AFTER_S, Child, Fleet, how
from holdfast.errors import Refused, TryAgain
from tests.cli.waiting_child import ScriptChild
from tests.waiting import wait_until

SERVES = 'import signal, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(\'{"name": "it"}\'); signal.pause()'
DIES = "import sys; sys.exit(5)"
SILENT = "import signal; signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVES


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def stop() -> Event:
    return Event()


@pytest.fixture
def fleet(stop: Event, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr("holdfast.cli.processes.fleet.STOP_WITHIN_S", 2.0)
    fleet = Fleet(stop, said.append)
    yield fleet
    fleet.end()


def child(tmp_path: Path, code: str, name: str = "it") -> Child:
    return ScriptChild(name, [code], tmp_path / f"{name}.json")


def test_a_child_is_launched_when_it_says_that_it_serves(fleet: Fleet, tmp_path: Path) -> None:
    one, two = child(tmp_path, SERVES, "one"), child(tmp_path, SERVES, "two")
    assert fleet.launch(one, two) == [{"name": "it"}, {"name": "it"}]
    assert fleet.end() == []
    assert (one.ended(), two.ended()) == (-signal.SIGTERM, -signal.SIGTERM)


def test_a_child_that_dies_early_is_not_tried_again(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="it ended with code 5 before it served"):
        fleet.launch(child(tmp_path, DIES))


def test_a_child_that_never_serves_ends_the_launch_at_its_deadline(fleet: Fleet, tmp_path: Path) -> None:
    """I10."""
    with pytest.raises(TryAgain, match="did not serve in time"):
        fleet.launch(child(tmp_path, SILENT), within_s=0.3)


def test_a_launch_ends_when_it_is_told_to_stop(fleet: Fleet, tmp_path: Path, stop: Event) -> None:
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        fleet.launch(child(tmp_path, SILENT))


def test_a_ready_file_of_an_earlier_life_does_not_count(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "it.json").write_text('{"name": "old"}')
    with pytest.raises(Refused):
        fleet.launch(child(tmp_path, DIES))


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"'])
def test_a_ready_file_that_is_not_whole_does_not_count(tmp_path: Path, content: str) -> None:
    one = child(tmp_path, SERVES)
    one.ready_file.write_text(content)
    assert one.ready() is None


def test_a_child_that_dies_is_started_again_after_a_pause(fleet: Fleet, tmp_path: Path, said: list[str]) -> None:
    one = child(tmp_path, SERVES)
    fleet.launch(one)
    first = one.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: one.ended() is not None, what="the child's death")
    fleet.look_after(one, now=one.started_at + 1)
    fleet.look_after(one, now=one.started_at + 1 + FIRST_PAUSE_S / 2)
    assert one.pid == first
    fleet.look_after(one, now=one.started_at + 1 + FIRST_PAUSE_S)
    assert one.pid != first
    assert one.ended() is None
    assert said == ["it ended by SIGKILL; it is started again in 0.5 s", f"it was started again (process {one.pid})"]


def test_the_pause_doubles_to_a_limit_and_a_steady_child_is_trusted_again(tmp_path: Path) -> None:
    one = child(tmp_path, SERVES)
    pauses = [one.next_pause(now=1.0) for _ in range(7)]
    assert pauses == [0.5, 1, 2, 4, 8, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert one.next_pause(now=STEADY_AFTER_S) == FIRST_PAUSE_S


def test_a_child_that_will_not_end_is_killed_and_named(fleet: Fleet, tmp_path: Path) -> None:
    fleet.launch(child(tmp_path, SERVES, "meek"), child(tmp_path, STUBBORN, "stubborn"))
    assert fleet.end() == ["stubborn"]


def test_the_last_launched_end_first(fleet: Fleet, tmp_path: Path) -> None:
    log = tmp_path / "log"
    writes = f"import signal, sys; signal.signal(15, lambda *_: (open({str(log)!r}, 'a').write(NAME), sys.exit())); "
    for name in ("master", "node"):
        fleet.launch(child(tmp_path, f"NAME = '{name} '; {writes}{SERVES}", name))
    fleet.end()
    assert log.read_text() == "node master "


def test_exit_codes_are_said_in_words() -> None:
    assert how(0) == "with code 0"
    assert how(-9) == "by SIGKILL"
    assert how(-200) == "by signal 200"


def test_a_child_runs_our_own_module(tmp_path: Path) -> None:
    one = Child("node-1", ["node", "--name", "node-1"], tmp_path / "r")
    assert one.command() == [
        sys.executable, "-m", "holdfast", "node", "--name", "node-1", "--ready-file", str(tmp_path / "r"),
    ]  # fmt: skip
