"""The tools around the simulator: seeds on several processes, stories, short scripts, tests written from them."""

from __future__ import annotations

import ast
import functools
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import process as futures_process
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.simulation.runs.commands import INTERRUPTED, main
from holdfast.simulation.runs.exhaustive import SHORT_SCRIPTS, exhausted, single_faults
from holdfast.simulation.runs.run import run, told
from holdfast.simulation.runs.seeds import play_seeds
from holdfast.simulation.runs.shrink import Shrinking, smaller_worlds
from holdfast.simulation.runs.story_files import test_file as written
from holdfast.simulation.scripts.draw import draw
from holdfast.simulation.scripts.script import Fault, Operation, Script, ScriptShape
from tests.simulation.planted import PLANTED
from tests.waiting import wait_until

BUG = PLANTED["free a replaced object under its lease"]


@functools.cache
def broken_by_the_bug() -> Script:
    """A seed that the planted bug, which whoever asks has planted, breaks a promise in."""
    for seed in range(BUG.seeds):
        script = draw(seed)
        found = run(script)
        if found.violation is not None and found.violation.promise in BUG.promises:
            return script
    raise AssertionError(f"{BUG.name} was not found in {BUG.seeds} seeds")


def test_several_processes_play_what_one_does() -> None:
    seeds = range(4)
    alone = {one.script.seed: one.trace for one in play_seeds(seeds, 1)}
    together = {one.script.seed: one.trace for one in play_seeds(seeds, 2)}
    assert alone == together
    assert sorted(alone) == list(seeds)


def test_a_failing_script_becomes_short_and_a_test() -> None:
    with BUG.plant():
        long = run(broken_by_the_bug())
        shrinking = Shrinking(long, most_runs=120)
        short = shrinking.shrink()
        story = told(short.script).story
    assert short.violation is not None
    assert long.violation is not None
    assert short.violation.promise == long.violation.promise
    assert len(short.script.operations) + len(short.script.faults) < 12
    assert any(str(short.violation) in line for line in story)
    assert any("upsert" in line for line in story)
    names: dict[str, object] = {}
    exec(compile(ast.parse(written(short, 1)), "written", "exec"), names)
    test = next(value for name, value in names.items() if name.startswith("test_"))
    assert callable(test)
    with BUG.plant(), pytest.raises(AssertionError, match=short.violation.promise):
        test()
    test()  # Without the bug it holds.


def test_a_world_without_a_process_has_nothing_of_its() -> None:
    operations = tuple(Operation(600 + i, i, "put", i + 1, ("k",), 100 + i, replicas=2) for i in range(3))
    faults = (Fault(700, "kill_client", 50, "client-1"), Fault(800, "cut", 50, "client-2", "node-1"))
    shape = ScriptShape(2, 2, 3, tenants=("red", "green", ""))
    found = list(smaller_worlds(Script(1, shape, operations, faults)))
    assert [one.shape.clients for one in found[:3]] == [2, 2, 2]
    assert [one.shape.tenants for one in found[:3]] == [("green", ""), ("red", ""), ("red", "green")]
    without_the_second = found[1]
    assert [one.client for one in without_the_second.operations] == [0, 1]
    assert [fault.one for fault in without_the_second.faults] == ["client-1"]
    without_a_node = found[3]
    assert {one.replicas for one in without_a_node.operations} == {1}
    assert len(without_a_node.faults) == 1


def test_faults_are_placed_behind_events_of_whom_they_befall() -> None:
    script = SHORT_SCRIPTS["put"]
    faults = single_faults(script)
    assert len(faults) > 100
    assert {fault.one for fault in faults} >= {"master-0", "master-1", "node-0", "client-0"}
    assert len(list(exhausted(script, every=50))) == -(-len(faults) // 50)
    two = next(exhausted(script, every=50, pairs=True))
    assert len(two.faults) == len(script.faults) + 2


@pytest.mark.parametrize("name", SHORT_SCRIPTS)
def test_a_short_script_holds_with_a_fault_at_some_moments(name: str) -> None:
    """`exhaust` takes all of them."""
    scripts = list(exhausted(SHORT_SCRIPTS[name], every=97))
    assert len(scripts) > 5
    for script in scripts:
        found = run(script)
        assert found.violation is None, f"{found.violation}: {script.faults}"


def test_a_fault_behind_an_event_strikes_there() -> None:
    script = SHORT_SCRIPTS["put"]
    fault = single_faults(script)[0]
    struck = told(msgspec.structs.replace(script, faults=(fault,)))
    assert any(fault.kind in text for _, text, _ in struck.lines)


def test_the_commands_say_what_they_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--seeds", "2", "--jobs", "1"]) == 0
    assert "2 seeds from 0 on: 0 broke a promise" in capsys.readouterr().err
    assert main(["shrink", "0", "--runs", "1"]) == 0
    assert "nothing to make shorter" in capsys.readouterr().err
    with BUG.plant():
        seed = broken_by_the_bug().seed
        assert main(["run", "--start", str(seed), "--seeds", "1", "--jobs", "1"]) == 1
        said = capsys.readouterr()
        assert f"replay {seed}" in said.err
        assert "client-" in said.out
        assert main(["replay", str(seed)]) == 1
        assert "trace" in capsys.readouterr().err
        target = tmp_path / "stories" / "test_found.py"
        assert main(["shrink", str(seed), "--runs", "3", "--write", str(target)]) == 1
    assert "assert found.violation is None" in target.read_text()


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_run_that_is_told_to_end_says_what_was_done_and_leaves_no_process(processes: int) -> None:
    """At whatever moment: while they start, or when all are there, with the one that keeps track of them."""
    command = [sys.executable, "-m", "holdfast.simulation", "run", "--seeds", "100000", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:

        def children() -> list[str]:
            return Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()

        try:
            wait_until(lambda: len(children()) >= processes, 60, "so many processes are there")
            started = children()
            running.send_signal(signal.SIGTERM)
            said, _ = running.communicate(timeout=120)
        finally:
            running.kill()
    assert running.returncode == INTERRUPTED
    assert "interrupted after" in said
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in started), what="they are gone")


def test_an_interrupt_while_the_processes_start_ends_them_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    start = futures_process._ExecutorManagerThread.start

    def interrupted(self: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        start(self)

    monkeypatch.setattr(futures_process._ExecutorManagerThread, "start", interrupted)
    # Whoever runs the tests in the background may have told them to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(iter(play_seeds([1, 2], 2)))
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_another_thread_receives_while_the_processes_start_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal of the process goes to any thread that does not block it, and its handler runs in the main thread: the
    pool knew nothing of a process that it had just started, and waited for ever for one that lacked its word to end."""
    start, other_may_end = SpawnProcess.start, threading.Event()
    other = threading.Thread(target=other_may_end.wait)
    started: list[int] = []
    received, told_when_received = socket.socketpair()
    told_when_received.setblocking(False)

    def interrupted(self: SpawnProcess) -> None:
        start(self)
        assert self.pid is not None
        started.append(self.pid)
        if len(started) == 2:
            signal.pthread_kill(other.ident or 0, signal.SIGINT)
            assert received.recv(1)  # Python's handler runs right after this.

    other.start()
    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    wakeup = signal.set_wakeup_fd(told_when_received.fileno())
    try:
        with pytest.raises(KeyboardInterrupt):
            next(iter(play_seeds([1, 2], 2)))
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGINT, before)
        other_may_end.set()
        other.join()
        received.close()
        told_when_received.close()
    assert len(started) == 2
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
