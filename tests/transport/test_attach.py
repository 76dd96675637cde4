"""A client's link to a node of the same machine: descriptors, writer numbers and the writer's end."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import BadRequest, BadValue, DeadlineExceeded, UnknownSegment, Unreachable
from holdfast.messages.of_nodes import Attached
from holdfast.transport.shared_memory import Mapping, copy_in
from holdfast.wire.codec import encode, frame
from tests.node.rig import SIZE, Served, open_files, soon
from tests.tickets import TicketedLink
from tests.waiting import wait_until


def test_what_one_client_writes_another_reads_in_the_same_memory(served: Served) -> None:
    with served.link() as writing, served.link() as reading:
        target = writing.map(served.name(1), True, soon())
        source = reading.map(served.name(1), False, soon())
        assert (target.size_bytes, target.writable) == (SIZE, True)
        assert (source.size_bytes, source.writable) == (SIZE, False)
        copy_in(target, 4096, memoryview(b"shared"), False)
        assert bytes(source.view[4096:4102]) == b"shared"
        assert served.bytes_at(4096, 6, number=1) == b"shared"
        source.close()


def test_a_reader_is_handed_memory_that_it_cannot_map_for_writing(served: Served) -> None:
    with served.link() as link:
        mapping = link.map(served.name(), False, soon())
        with pytest.raises(BadValue):
            copy_in(mapping, 0, memoryview(b"x"), False)
        mapping.close()
    with served.lending.lock:
        read_only = served.lending.segment(served.name()).read_descriptor
    with pytest.raises(PermissionError):
        Mapping(read_only, SIZE, writable=True)


def test_a_writer_has_one_number_and_no_two_have_the_same(served: Served) -> None:
    with served.link() as first, served.link() as second, served.link() as reader:
        first.map(served.name(0), True, soon())
        number = first.writer
        first.map(served.name(1), True, soon())
        second.map(served.name(0), True, soon())
        reader.map(served.name(0), False, soon()).close()
        assert number >= 1
        assert first.writer == number
        assert second.writer not in (0, number)
        assert reader.writer == 0
    wait_until(lambda: sorted(served.gone_writers()) == sorted([number, second.writer]))


def test_another_boots_segment_is_refused_and_the_link_stays_good(served: Served) -> None:
    """I14: memory of an earlier boot is void."""
    name = served.name()
    with served.link() as link:
        for wrong in (name._replace(boot=name.boot ^ 2), name._replace(number=2), name._replace(node="n2")):
            with pytest.raises(UnknownSegment):
                link.map(wrong, True, soon())
        assert link.writer == 0
        link.map(name, True, soon())
        assert link.writer >= 1


def test_nobody_at_the_path_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        TicketedLink.open(str(tmp_path / "nobody.sock"), soon())


def test_attaching_after_the_node_stopped_is_unreachable(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        link = TicketedLink.open(served.path, soon())
        mapping = link.map(served.name(), True, soon())
        name = served.name()
    for _ in range(2):
        with pytest.raises(Unreachable):
            link.map(name, True, soon())
    copy_in(mapping, 0, memoryview(b"the map itself outlives the node"), False)
    link.close()


@contextmanager
def odd_node(path: Path, says: bytes) -> Iterator[str]:
    """Takes one connection, says one thing, and never reads."""
    taken: list[socket.socket] = []

    def take() -> None:
        connected, _ = listener.accept()
        taken.append(connected)
        connected.sendall(says)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.settimeout(20)
        listener.bind(str(path))
        listener.listen(1)
        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield str(path)
        finally:
            thread.join(20)
            for connected in taken:
                connected.close()


def test_a_node_that_never_answers_costs_the_deadline_and_no_more(served: Served, tmp_path: Path) -> None:
    """I10: every request ends."""
    with odd_node(tmp_path / "silent.sock", b"") as path:
        link = TicketedLink.open(path, soon())
        with pytest.raises(DeadlineExceeded):
            link.map(served.name(), False, soon(0.05))
        with pytest.raises(Unreachable):
            link.map(served.name(), False, soon())
        link.close()


@pytest.mark.parametrize(
    "says",
    [b"\xff" * 64, frame(0, 0, b"\xc1"), frame(0, 0, encode(Attached(1, SIZE)))],
    ids=["giant frame", "no message", "no descriptor"],
)
def test_an_answer_that_makes_no_sense_maps_nothing(served: Served, tmp_path: Path, says: bytes) -> None:
    before = open_files()
    with odd_node(tmp_path / "odd.sock", says) as path:
        link = TicketedLink.open(path, soon())
        with pytest.raises(BadRequest):
            link.map(served.name(), True, soon())
        link.close()
    assert open_files() == before


def test_a_writer_whose_copy_still_runs_is_not_gone_when_its_link_is_closed(served: Served) -> None:
    """I2, I11: the end of the connection says that no thread can write any more, so it waits for the last view."""
    link = TicketedLink.open(served.path, soon())
    mapping = link.map(served.name(), True, soon())
    number = link.writer
    copying = mapping.view[:8]
    link.close()
    with served.link() as other:
        # Any exchange shows that the node has looked at its sockets since.
        other.map(served.name(), False, soon()).close()
    assert served.gone_writers() == []
    copying[:] = b"12345678"
    copying.release()
    del copying, mapping
    gc.collect()
    wait_until(lambda: served.gone_writers() == [number])


def test_closing_a_map_before_its_link_lets_the_link_end(served: Served) -> None:
    link = TicketedLink.open(served.path, soon())
    link.map(served.name(), True, soon()).close()
    mapping = link.map(served.name(), True, soon())
    mapping.close()
    assert served.gone_writers() == []
    link.close()
    link.close()
    wait_until(lambda: served.gone_writers() == [link.writer])


def test_a_forked_child_does_not_keep_its_parents_writer_alive(served: Served) -> None:
    """I11: only the process that maps the memory holds the connection."""
    link = TicketedLink.open(served.path, soon())
    link.map(served.name(), True, soon())
    waiting, telling = os.pipe()
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(telling)
        try:
            link.map(served.name(), True, soon())
        except Unreachable:
            os.write(say, b"r")
        os.read(waiting, 1)
        os._exit(0)
    try:
        os.close(waiting)
        assert os.read(said, 1) == b"r"
        link.close()
        wait_until(lambda: served.gone_writers() == [link.writer])
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.close(telling)
        os.waitpid(child, 0)
        os.close(said)
        os.close(say)


WRITER = """
import sys, time
from holdfast.ids import SegmentName
from holdfast.instant import now_seconds
from tests.tickets import TicketedLink
link = TicketedLink.open(sys.argv[1], now_seconds() + 20)
mapping = link.map(SegmentName("n1", int(sys.argv[2]), 0), True, now_seconds() + 20)
print(link.writer, flush=True)
while True:
    mapping.map[0:64] = b"w" * 64
"""


def test_a_writer_that_is_killed_is_reported_gone(served: Served) -> None:
    """I11: the kernel leaves the memory before it closes the files, so nothing is written after the report."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITER, served.path, str(served.memory.boot)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        try:
            assert writer.stdout is not None
            number = int(writer.stdout.readline())
            wait_until(lambda: served.bytes_at(0, 64) == b"w" * 64)
            assert served.gone_writers() == []
        finally:
            writer.send_signal(signal.SIGKILL)
        # Reported without waiting for anything but the socket's end; the process may not even be reaped.
        wait_until(lambda: served.gone_writers() == [number])
        served.memory.segments[0].mapping.map[0:64] = bytes(64)
        writer.wait(20)
    assert served.bytes_at(0, 64) == bytes(64)


def test_the_end_of_a_nodes_process_is_seen_at_the_life_line_as_soon_as_it_is_dead(tmp_path: Path) -> None:
    """And not while it only stands still, nor by an answer that comes late."""
    path = str(tmp_path / "node.sock")
    code = (
        "import socket, sys\n"
        f"s = socket.socket(socket.AF_UNIX); s.bind({path!r}); s.listen()\n"
        "print('listens', flush=True)\n"
        "c, _ = s.accept(); c.sendall(b'late'); print('sent', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline() == "listens\n"
            link = TicketedLink.open(path, soon())
            assert node.stdout.readline() == "sent\n"
            assert not link.ended()
            node.send_signal(signal.SIGSTOP)
            assert not link.ended()
        finally:
            node.kill()
            node.wait(20)
        assert link.ended()
        link.close()
        assert link.ended(), "closed at this end"
