"""A whole node against a master that only knows nodes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import MemoryVoid, NameTaken, NotAuthorized, NotLeader, Refused, UnknownSegment
from holdfast.ids import GrantId, SegmentName
from holdfast.messages.commands import CLEAN, Clean, TicketTerms, UpdateConfig, encode_body
from holdfast.messages.of_nodes import Registered, RegisterNode, ReportUsage, ReportWriters
from holdfast.messages.of_sessions import CloseSession, KeepAlive, KeptAlive, Opened, OpenSession, SessionCommand
from holdfast.messages.requests import Hello
from holdfast.messages.shapes import Message
from holdfast.node.node import Node, NodePlan
from holdfast.node.session.life import NodeLife
from holdfast.node.session.report import Report
from holdfast.operations.effects import Call, Effect, Pause, Work
from holdfast.session.followers import no_commands
from holdfast.transport.data_tcp import DataConnection, GrantedRange
from holdfast.transport.host import this_host
from holdfast.wire.mac import range_mac
from tests.node.rig import SECRET, FakeMaster, soon
from tests.tickets import TicketedLink, wanted
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
        connection.read_into(wanted(SECRET, SegmentName("n1", boot, 0), 0, memoryview(bytearray(8))), soon())
    except UnknownSegment:
        return False
    finally:
        connection.close()
    return True


def test_how_often_it_reports_is_changed_while_it_waits(master: FakeMaster, tmp_path: Path) -> None:
    """The rig's master asks for a report a minute."""
    with running(master.address, tmp_path):
        wait_until(lambda: len(master.asked(ReportUsage)) == 1, what="the first report")
        master.command("config_update", encode_body(UpdateConfig(1_000, 50)))
        wait_until(lambda: len(master.asked(ReportUsage)) > 3, what="reports come often")
        before = len(master.asked(ReportUsage))
        master.command("config_update", encode_body(UpdateConfig(1_000)))
        wait_until(lambda: len(master.asked(ReportUsage)) > before + 2, what="0 leaves it as it is")


def test_figures_that_the_master_did_not_take_are_told_again_long_before_the_next_are_due(
    master: FakeMaster, tmp_path: Path
) -> None:
    """The rig's master asks for a report per minute; the first answer is lost and the second is a refusal."""

    def take_the_third(request: Message) -> Message:
        if isinstance(request, ReportUsage):
            count = len(master.asked(ReportUsage))
            if count == 0:
                master.cut()
            if count == 1:
                raise Refused("not now")
        return master.usual_answer(request)

    master.answer = take_the_third
    with running(master.address, tmp_path):
        wait_until(lambda: len(master.asked(ReportUsage)) == 3, what="the report is made until it is taken")
        assert len(master.registrations()) == 1, "it was not made again because of another registration"


def test_a_registration_that_overtakes_an_idle_report_is_followed_by_figures(tmp_path: Path) -> None:
    """The thread that reports may look, see nobody to report to, and look away just as the memory is being mounted."""
    passes: list[Effect] = []

    class Lender(Node):
        def trust(self, key: bytes, terms: TicketTerms | None) -> None:
            super().trust(key, terms)
            # The answer has come, and the memory counts as mounted in a moment: now the other thread has its turn.
            passes.append(tell.send(None))

    node = Lender(NodePlan("127.0.0.1:1", "n1", SIZE, socket_dir=tmp_path))
    try:
        life = NodeLife(node.card, node, Report(lambda: None), no_commands, lambda: None)
        tell, belong = life.tell(), life.belong()
        passes.append(next(tell))
        effect = next(belong)
        while not (isinstance(effect, Call) and isinstance(effect.message, KeepAlive)):
            effect = belong.send(effect.run() if isinstance(effect, Work) else answered(effect))
        assert len(passes) == 2
        after = tell.send(None)
        while isinstance(after, Pause):
            assert after.until() or after.seconds == 0, f"the figures would come in {after.seconds} s"
            after = tell.send(None)
        assert isinstance(after, Call)
        assert isinstance(after.message, ReportUsage)
    finally:
        node.stop()


def answered(effect: Effect) -> Message:
    assert isinstance(effect, Call)
    if isinstance(effect.message, OpenSession):
        return Opened(effect.message.session, 7, 1, 0, 2_000, 60_000)
    assert isinstance(effect.message, RegisterNode)
    return Registered(7, 1, SECRET, 60_000)


def test_a_node_registers_its_memory_keeps_its_session_and_says_goodbye(master: FakeMaster, tmp_path: Path) -> None:
    with running(master.address, tmp_path, segments=2, token="t") as node:
        [registration] = master.wait_for_registrations(1)
        assert registration.boot == node.boot
        assert registration.log_id == 0
        assert registration.host == this_host()
        assert registration.data_address == node.card.data_address
        assert registration.socket_path == node.card.socket_path
        assert registration.sizes == [SIZE // 2] * 2
        wait_until(lambda: len(master.keepalives()) >= 3)
        [opened] = master.asked(OpenSession)
        assert opened.name == "n1"
        assert {one.session for one in master.keepalives()} == {opened.session} == {registration.session}
        assert not master.asked(CloseSession)
    [hello] = master.asked(Hello)
    assert hello.token == "t"
    assert master.asked(CloseSession) == [CloseSession(opened.session)]
    assert list(tmp_path.iterdir()) == []


def test_bytes_are_taken_with_the_secret_that_the_master_gave(master: FakeMaster, tmp_path: Path) -> None:
    with running(master.address, tmp_path) as node:
        wait_until(master.keepalives)
        segment = SegmentName("n1", node.boot, 0)
        connection = DataConnection.open(node.card.data_address, soon())
        mac = range_mac(SECRET, segment, GRANT, 0, 4096)
        connection.write(GrantedRange(segment, GRANT, 0, 4096, mac), 0, memoryview(b"granted"), soon())
        target = bytearray(7)
        connection.read_into(wanted(SECRET, segment, 0, memoryview(target)), soon())
        connection.close()
        assert target == b"granted"


def test_a_dead_writer_is_said_at_once_while_a_keepalive_is_held(master: FakeMaster, tmp_path: Path) -> None:
    """I11."""
    master.lease_ms = 3_600_000
    held = threading.Event()

    def hold(request: Message) -> Message:
        if isinstance(request, KeepAlive):
            held.wait(20)
        return master.usual_answer(request)

    master.answer = hold
    with running(master.address, tmp_path) as node:
        master.wait_for_registrations(1)
        wait_until(lambda: node._tickets.key, what="the node has taken note of the answer")
        link = TicketedLink.open(node.card.socket_path, soon())
        link.map(SegmentName("n1", node.boot, 0), True, soon())
        link.close()
        try:
            wait_until(lambda: any(one.gone_writers == [link.writer] for one in master.reports()))
        finally:
            held.set()


def test_a_dead_writer_is_said_again_until_the_answer_comes(master: FakeMaster, tmp_path: Path) -> None:
    """I11: a lost answer loses nothing."""
    dropped: list[Message] = []

    def lose_the_first_news(request: Message) -> Message:
        if isinstance(request, ReportWriters) and request.gone_writers and not dropped:
            dropped.append(request)
            master.cut()
        return master.usual_answer(request)

    master.answer = lose_the_first_news
    with running(master.address, tmp_path) as node:
        wait_until(master.keepalives)
        link = TicketedLink.open(node.card.socket_path, soon())
        link.map(SegmentName("n1", node.boot, 0), True, soon())
        link.close()
        wait_until(lambda: sum(one.gone_writers == [link.writer] for one in master.reports()) == 2)
        count = len(master.keepalives())
        wait_until(lambda: len(master.keepalives()) > count + 2)
        assert len(master.reports()) == 2
        assert len(master.registrations()) == 1, "the session went on, over another connection"


def test_grants_that_the_master_wants_clean_are_refused_and_confirmed(master: FakeMaster, tmp_path: Path) -> None:
    """I2, I11."""
    with running(master.address, tmp_path) as node:
        wait_until(master.keepalives)
        segment = SegmentName("n1", node.boot, 0)
        master.command(CLEAN, encode_body(Clean([GRANT])))
        wait_until(lambda: any(one.cleaned == [GRANT] for one in master.reports()))
        connection = DataConnection.open(node.card.data_address, soon())
        with pytest.raises(Refused):
            mac = range_mac(SECRET, segment, GRANT, 0, 4096)
            connection.write(GrantedRange(segment, GRANT, 0, 4096, mac), 0, memoryview(b"late"), soon())
        count = len(master.keepalives())
        wait_until(lambda: len(master.keepalives()) > count + 2)
        assert len(master.reports()) == 1, "a command takes effect once (I6)"


def test_an_unknown_command_is_reported_back_and_harms_nothing(master: FakeMaster, tmp_path: Path) -> None:
    with running(master.address, tmp_path) as node:
        wait_until(master.keepalives)
        master.command("dance", b"")
        master.command(CLEAN, b"no body")
        master.command(CLEAN, encode_body(Clean([GRANT])))
        wait_until(lambda: any(one.cleaned == [GRANT] for one in master.reports()))
        told = wait_until(lambda: [one for one in master.keepalives() if one.refused])[0]
        assert [number for number, _ in told.refused] == [1, 2]
        assert "knows no command 'dance'" in told.refused[0][1]
        assert node.failure is None


def test_a_command_of_an_older_epoch_is_not_obeyed(master: FakeMaster, tmp_path: Path) -> None:
    """I3."""
    master.epoch = 5
    clean = SessionCommand(1, CLEAN, encode_body(Clean([GRANT])))

    def deposed(request: Message) -> Message:
        if isinstance(request, KeepAlive):
            return KeptAlive(4, 1, 0, master.lease_ms, master.jeopardy_ms, 0, [clean])
        return master.usual_answer(request)

    with running(master.address, tmp_path):
        wait_until(master.keepalives)
        master.answer = deposed
        count = len(master.asked(Hello))
        wait_until(lambda: len(master.asked(Hello)) > count + 1, what="it looks for another master, twice")
        assert not master.reports()


def test_a_session_that_the_master_calls_over_is_opened_anew_with_the_same_memory(
    master: FakeMaster, tmp_path: Path
) -> None:
    with running(master.address, tmp_path) as node:
        wait_until(master.keepalives)
        boot = node.boot
        master.sessions.clear()
        first, again = master.wait_for_registrations(2)[:2]
        assert (again.boot, again.log_id) == (boot, master.log_id)
        assert again.session != first.session
        assert can_read(node, boot)


def test_a_new_master_is_told_how_much_of_the_log_the_node_has_heard_of(master: FakeMaster, tmp_path: Path) -> None:
    """So that one whose log lost its tail voids the memory; new memory has heard of nothing."""
    master.epoch, master.log_index = 3, 41
    with running(master.address, tmp_path):
        wait_until(lambda: len(master.keepalives()) > 2)
        master.epoch, master.log_index = 4, 30
        first, second = master.wait_for_registrations(2)[:2]
        assert (first.heard_epoch, first.heard_index) == (0, 0)
        assert (second.heard_epoch, second.heard_index) == (3, 41)

        def voided(request: Message) -> Message:
            if isinstance(request, RegisterNode) and request.boot == first.boot:
                raise MemoryVoid("the log lost its tail")
            return master.usual_answer(request)

        master.answer = voided
        master.epoch = 5
        fresh = wait_until(lambda: [one for one in master.mounted if one.boot != first.boot])[0]
        assert (fresh.heard_epoch, fresh.heard_index) == (0, 0)


def test_memory_that_the_master_calls_void_is_replaced_under_a_new_boot_id(master: FakeMaster, tmp_path: Path) -> None:
    """I14."""
    with running(master.address, tmp_path) as node:
        wait_until(master.keepalives)
        old = node.boot
        link = TicketedLink.open(node.card.socket_path, soon())
        mapping = link.map(SegmentName("n1", old, 0), True, soon())
        number = link.writer

        def voided(request: Message) -> Message:
            if isinstance(request, RegisterNode) and request.boot == old:
                raise MemoryVoid("not in the log")
            return master.usual_answer(request)

        master.answer = voided
        master.sessions.clear()
        last = wait_until(lambda: [one for one in master.registrations() if one.boot != old])[-1]
        assert last.log_id == 0
        wait_until(lambda: any(one.session == last.session for one in master.keepalives()))
        assert node.boot == last.boot
        assert number not in last.live_writers
        assert not can_read(node, old)
        assert can_read(node, last.boot)
        mapping.map[:3] = b"old"
        link.close()


def test_a_master_with_another_history_never_sees_the_old_memory(master: FakeMaster, tmp_path: Path) -> None:
    """I14: it would believe that nobody holds ranges in it."""
    with running(master.address, tmp_path) as node:
        wait_until(master.keepalives)
        old = node.boot
        port = master.port
        master.stop()
        assert can_read(node, old)
        with FakeMaster(log_id=8, port=port) as second:
            [registration] = wait_until(lambda: second.mounted)
            assert registration.boot != old
            assert registration.log_id == 0
            wait_until(second.keepalives)
            assert not can_read(node, old)


def test_memory_whose_registration_was_never_answered_is_not_offered_to_another_history(
    master: FakeMaster, tmp_path: Path
) -> None:
    """I14: the first master may have granted it to somebody all the same."""

    def lose_registrations(request: Message) -> Message:
        if isinstance(request, RegisterNode):
            master.cut()
        return master.usual_answer(request)

    master.answer = lose_registrations
    with running(master.address, tmp_path):
        boot = master.wait_for_registrations(1)[0].boot
        port = master.port
        master.stop()
        with FakeMaster(log_id=8, port=port) as second:
            assert wait_until(lambda: second.mounted)[0].boot != boot


def test_the_node_serves_on_while_the_master_is_away_and_comes_back_to_it(master: FakeMaster, tmp_path: Path) -> None:
    with running(master.address, tmp_path) as node:
        wait_until(master.keepalives)
        boot = node.boot
        link = TicketedLink.open(node.card.socket_path, soon())
        link.map(SegmentName("n1", boot, 0), True, soon())
        master.stop()
        assert can_read(node, boot)
        with FakeMaster(log_id=master.log_id, port=master.port, epoch=2) as second:
            second.sessions |= master.sessions
            [registration] = second.wait_for_registrations(1)
            assert not second.asked(OpenSession), "a failover costs no node its session"
            assert (registration.boot, registration.log_id) == (boot, master.log_id)
            assert link.writer in registration.live_writers
            wait_until(second.keepalives)
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
        if isinstance(request, OpenSession):
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
