"""A whole node against a master that only knows nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import MemoryVoid, NameTaken, NotAuthorized, NotLeader, Refused, UnknownNode, UnknownSegment
from holdfast.ids import GrantId, SegmentName
from holdfast.messages.of_nodes import Beat, Beaten, Leave, RegisterNode
from holdfast.messages.requests import Hello
from holdfast.messages.shapes import Message
from holdfast.node.node import Node, NodePlan
from holdfast.transport.attach import NodeLink
from holdfast.transport.data_tcp import DataConnection
from holdfast.transport.host import this_host
from holdfast.wire.mac import range_mac
from node.rig import SECRET, FakeMaster, soon
from tests.waiting import wait_until

SIZE = 1 << 20
GRANT = GrantId(3, 4)


@contextmanager
def running(address: str, directory: Path, **more: object) -> Iterator[Node]:
    node = Node(NodePlan(address, "n1", SIZE, socket_dir=directory, **more))  # type: ignore[arg-type]
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    with FakeMaster() as master:
        yield master


def can_read(node: Node, boot: int) -> bool:
    connection = DataConnection.open(node.card.data_address, soon())
    try:
        connection.read_into(SegmentName("n1", boot, 0), 0, memoryview(bytearray(8)), soon())
    except UnknownSegment:
        return False
    finally:
        connection.close()
    return True


def test_a_node_registers_its_memory_and_beats_and_says_goodbye(master: FakeMaster, tmp_path: Path) -> None:
    with running(master.address, tmp_path, segments=2, token="t") as node:
        [registration] = master.wait_for_registrations(1)
        assert registration.name == "n1"
        assert registration.boot == node.boot
        assert registration.log_id == 0
        assert registration.host == this_host()
        assert registration.data_address == node.card.data_address
        assert registration.socket_path == node.card.socket_path
        assert registration.sizes == [SIZE // 2] * 2
        wait_until(lambda: len(master.beats()) >= 3)
        assert {beat.boot for beat in master.beats()} == {node.boot}
        assert not master.of_kind(Leave)
        boot = node.boot
    [hello] = master.of_kind(Hello)
    assert isinstance(hello, Hello)
    assert hello.token == "t"
    assert master.of_kind(Leave) == [Leave("n1", boot)]
    assert list(tmp_path.iterdir()) == []


def test_bytes_are_taken_with_the_secret_that_the_master_gave(master: FakeMaster, tmp_path: Path) -> None:
    with running(master.address, tmp_path) as node:
        wait_until(master.beats)
        segment = SegmentName("n1", node.boot, 0)
        connection = DataConnection.open(node.card.data_address, soon())
        mac = range_mac(SECRET, segment, GRANT, 0, 4096)
        connection.write(segment, GRANT, 0, 4096, mac, 0, memoryview(b"granted"), soon())
        target = bytearray(7)
        connection.read_into(segment, 0, memoryview(target), soon())
        connection.close()
        assert target == b"granted"


def test_a_dead_writer_is_said_at_once_and_not_only_at_the_next_beat(master: FakeMaster, tmp_path: Path) -> None:
    """I11."""
    master.beat_ms = 3_600_000
    with running(master.address, tmp_path) as node:
        wait_until(master.beats)
        link = NodeLink.open(node.card.socket_path, soon())
        link.attach(SegmentName("n1", node.boot, 0), True, soon())
        link.close()
        wait_until(lambda: any(beat.gone_writers == [link.writer] for beat in master.beats()))


def test_a_dead_writer_is_said_again_until_the_answer_comes(master: FakeMaster, tmp_path: Path) -> None:
    """I11: a lost answer loses nothing."""
    dropped: list[Message] = []

    def lose_the_first_news(request: Message) -> Message:
        if isinstance(request, Beat) and request.gone_writers and not dropped:
            dropped.append(request)
            master.cut_connections()
        return master.usual_answer(request)

    master.answer = lose_the_first_news
    with running(master.address, tmp_path) as node:
        wait_until(master.beats)
        link = NodeLink.open(node.card.socket_path, soon())
        link.attach(SegmentName("n1", node.boot, 0), True, soon())
        link.close()
        wait_until(lambda: sum(beat.gone_writers == [link.writer] for beat in master.beats()) >= 2)
        assert len(master.wait_for_registrations(2)) == 2
        count = len(master.beats())
        wait_until(lambda: len(master.beats()) > count + 2)
        assert master.beats()[-1].gone_writers == []


def test_grants_that_the_master_wants_clean_are_refused_and_confirmed(master: FakeMaster, tmp_path: Path) -> None:
    """I2, I11."""
    with running(master.address, tmp_path) as node:
        wait_until(master.beats)
        segment = SegmentName("n1", node.boot, 0)
        master.to_clean = [GRANT]
        wait_until(lambda: any(beat.cleaned == [GRANT] for beat in master.beats()))
        connection = DataConnection.open(node.card.data_address, soon())
        with pytest.raises(Refused):
            mac = range_mac(SECRET, segment, GRANT, 0, 4096)
            connection.write(segment, GRANT, 0, 4096, mac, 0, memoryview(b"late"), soon())
        count = len(master.beats())
        wait_until(lambda: len(master.beats()) > count + 2)
        assert master.beats()[-1].cleaned == []


def test_a_command_of_an_older_epoch_is_not_obeyed(master: FakeMaster, tmp_path: Path) -> None:
    """I3."""
    master.epoch = 5

    def deposed(request: Message) -> Message:
        return Beaten(4, [GRANT]) if isinstance(request, Beat) else master.usual_answer(request)

    with running(master.address, tmp_path):
        wait_until(master.beats)
        master.answer = deposed
        master.wait_for_registrations(3)
        assert not any(beat.cleaned for beat in master.beats())


def test_a_node_that_the_master_forgot_registers_again_with_the_same_memory(master: FakeMaster, tmp_path: Path) -> None:
    with running(master.address, tmp_path) as node:
        wait_until(master.beats)
        boot = node.boot
        master.known.clear()
        again = master.wait_for_registrations(2)[1]
        assert (again.boot, again.log_id) == (boot, master.log_id)
        assert can_read(node, boot)


def test_memory_that_the_master_calls_void_is_replaced_under_a_new_boot_id(master: FakeMaster, tmp_path: Path) -> None:
    """I14."""
    with running(master.address, tmp_path) as node:
        wait_until(master.beats)
        old = node.boot
        link = NodeLink.open(node.card.socket_path, soon())
        mapping = link.attach(SegmentName("n1", old, 0), True, soon())
        number = link.writer

        def voided(request: Message) -> Message:
            if isinstance(request, Beat | RegisterNode) and request.boot == old:
                raise MemoryVoid("not in the log") if isinstance(request, RegisterNode) else UnknownNode("who?")
            return master.usual_answer(request)

        master.answer = voided
        last = wait_until(lambda: [one for one in master.registrations() if one.boot != old])[-1]
        assert last.log_id == 0
        wait_until(lambda: any(beat.boot == last.boot for beat in master.beats()))
        assert node.boot == last.boot
        assert number not in last.live_writers
        assert not can_read(node, old)
        assert can_read(node, last.boot)
        mapping.map[:3] = b"old"
        link.close()


def test_a_master_with_another_history_never_sees_the_old_memory(master: FakeMaster, tmp_path: Path) -> None:
    """I14: it would believe that nobody holds ranges in it."""
    with running(master.address, tmp_path) as node:
        wait_until(master.beats)
        old = node.boot
        port = master.port
        master.stop()
        assert can_read(node, old)
        with FakeMaster(log_id=8, port=port) as second:
            [registration] = second.wait_for_registrations(1)
            assert registration.boot != old
            assert registration.log_id == 0
            wait_until(second.beats)
            assert not can_read(node, old)


def test_memory_whose_registration_was_never_answered_is_not_offered_to_another_history(
    master: FakeMaster, tmp_path: Path
) -> None:
    """I14: the first master may have granted it to somebody all the same."""

    def lose_registrations(request: Message) -> Message:
        if isinstance(request, RegisterNode):
            master.cut_connections()
        return master.usual_answer(request)

    master.answer = lose_registrations
    with running(master.address, tmp_path):
        boot = master.wait_for_registrations(1)[0].boot
        port = master.port
        master.stop()
        with FakeMaster(log_id=8, port=port) as second:
            assert second.wait_for_registrations(1)[0].boot != boot


def test_the_node_serves_on_while_the_master_is_away_and_comes_back_to_it(master: FakeMaster, tmp_path: Path) -> None:
    with running(master.address, tmp_path) as node:
        wait_until(master.beats)
        boot = node.boot
        link = NodeLink.open(node.card.socket_path, soon())
        link.attach(SegmentName("n1", boot, 0), True, soon())
        master.stop()
        assert can_read(node, boot)
        with FakeMaster(log_id=master.log_id, port=master.port, epoch=2) as second:
            [registration] = second.wait_for_registrations(1)
            assert (registration.boot, registration.log_id) == (boot, master.log_id)
            assert link.writer in registration.live_writers
            wait_until(second.beats)
        assert node.failure is None
        link.close()


def test_a_node_that_starts_before_its_master_waits_for_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with running(f"127.0.0.1:{port}", tmp_path) as node, FakeMaster(port=port) as master:
        master.wait_for_registrations(1)
        assert node.failure is None


def test_a_standby_is_passed_over_for_the_next_master(master: FakeMaster, tmp_path: Path) -> None:
    def standby(request: Message) -> Message:
        raise NotLeader("ask the other one")

    with FakeMaster() as other:
        other.answer = standby
        with running(f"{other.address},{master.address}", tmp_path):
            master.wait_for_registrations(1)


@pytest.mark.parametrize("error", [NameTaken("n1 lives elsewhere"), NotAuthorized("the token is wrong")])
def test_a_node_that_cannot_ever_belong_says_why_and_gives_up(
    master: FakeMaster, tmp_path: Path, error: Refused
) -> None:
    def refuse(request: Message) -> Message:
        if isinstance(request, RegisterNode):
            raise error
        return master.usual_answer(request)

    master.answer = refuse
    with running(master.address, tmp_path) as node:
        failure = wait_until(lambda: node.failure)
        assert type(failure) is type(error)
        assert str(failure) == str(error)


def test_a_long_socket_path_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(Refused) as raised:
        Node(NodePlan("127.0.0.1:1", "n" * 60, SIZE, socket_dir=tmp_path / ("d" * 60)))
    assert raised.value.code == "bad_value"


def test_a_port_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=str(port)):
            Node(NodePlan("127.0.0.1:1", "n1", SIZE, listen=f"127.0.0.1:{port}", socket_dir=tmp_path))


def test_the_socket_of_a_killed_node_is_removed_and_a_live_ones_is_not(master: FakeMaster, tmp_path: Path) -> None:
    dead = tmp_path / "n1.999999999.sock"
    live = tmp_path / "n1.999999998.sock"
    with socket.socket(socket.AF_UNIX) as left, socket.socket(socket.AF_UNIX) as listener:
        left.bind(str(dead))
        listener.bind(str(live))
        listener.listen(1)
        left.close()
        with running(master.address, tmp_path):
            master.wait_for_registrations(1)
            assert not dead.exists()
            assert live.exists()


def test_a_node_on_all_addresses_tells_the_one_that_leads_to_the_master(master: FakeMaster, tmp_path: Path) -> None:
    with running(master.address, tmp_path, listen="0.0.0.0:0") as node:
        assert node.card.data_address.startswith("127.0.0.1:")
    with running(master.address, tmp_path, listen="0.0.0.0:0", advertise="cache.example:7071") as node:
        assert node.card.data_address == "cache.example:7071"
