"""`holdfast node` as a process: ready file, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import NameTaken
from holdfast.messages.of_sessions import CloseSession, OpenSession
from holdfast.messages.shapes import Message
from tests.node.rig import FakeMaster
from tests.waiting import wait_until

PROGRAM = """
import sys
from pathlib import Path
from holdfast.node.process import serve
from holdfast.settings import NodeSettings
address, listen, size, ready = sys.argv[1:]
sys.exit(serve(NodeSettings(address=address, listen=listen, name="n1", size=size, ready_file=Path(ready))))
"""


@contextmanager
def node_process(
    address: str, ready: Path, listen: str = "127.0.0.1:0", size: str = "1MiB"
) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(ready.parent)}
    command = [sys.executable, "-c", PROGRAM, address, listen, size, str(ready)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(20)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_node_process_says_where_it_serves_and_ends_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    ready = tmp_path / "ready.json"
    with FakeMaster() as master, node_process(master.address, ready) as process:
        wait_until(ready.exists)
        content = json.loads(ready.read_text(encoding="utf-8"))
        [registration] = master.registrations()
        assert content == {
            "name": "n1",
            "data_address": registration.data_address,
            "socket_path": registration.socket_path,
            "pid": process.pid,
        }
        assert os.path.exists(registration.socket_path)
        process.send_signal(how)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "Traceback" not in said
        assert master.asked(CloseSession) == [CloseSession(registration.session)]
        assert list(tmp_path.iterdir()) == []


def test_a_name_in_use_ends_the_process_with_its_own_code_and_one_clear_line(tmp_path: Path) -> None:
    with FakeMaster() as master:

        def taken(request: Message) -> Message:
            if isinstance(request, OpenSession):
                raise NameTaken("a node named n1 lives already; choose another name")
            return master.usual_answer(request)

        master.answer = taken
        with node_process(master.address, tmp_path / "ready.json") as process:
            _, said = process.communicate(timeout=20)
            assert process.returncode == 4
            assert "a node named n1 lives already; choose another name" in said.splitlines()
            assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_node_without_a_master_stops_when_told(tmp_path: Path) -> None:
    """I10."""
    with node_process("127.0.0.1:1", tmp_path / "ready.json") as process:
        wait_until(lambda: list(tmp_path.glob("holdfast-*/*.sock")))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with FakeMaster() as master, node_process(master.address, tmp_path / "r.json", listen=master.address) as process:
        _, said = process.communicate(timeout=20)
        assert process.returncode == 1
        assert str(master.port) in said
        assert len(said.splitlines()) == 1
