"""Bytes that wait for peers: bounded for all together, and the slowest gives way first (I17)."""

from __future__ import annotations

from holdfast.master.traffic.backlog import HURRY_MS, INCOMING_BYTES, OUTGOING_BYTES, SMALL_BYTES, UNREAD_MS, Backlog

MIB = 1 << 20


class Peer:
    def __init__(self, waiting: int = 0) -> None:
        self.waiting = waiting
        self.goes_on = False

    def waiting_bytes(self) -> int:
        return self.waiting

    def go_on_receiving(self) -> None:
        self.goes_on = True


def test_slow_frames_are_let_alone_while_there_is_room() -> None:
    backlog: Backlog[Peer] = Backlog()
    assert backlog.hold(Peer(), 8 * MIB, 0)
    assert backlog.ended(10**9) == []


def test_over_the_bound_a_frame_waits_and_the_oldest_gives_way() -> None:
    backlog: Backlog[Peer] = Backlog()
    peers = [Peer() for _ in range(4)]
    taken = [backlog.hold(peer, 8 * MIB, now) for now, peer in enumerate(peers)]
    assert taken == [True, True, True, False]
    assert backlog.ended(HURRY_MS) == [], "an honest peer may need as long"
    assert backlog.ended(HURRY_MS + 1) == peers[:1]
    assert backlog.incoming == INCOMING_BYTES
    assert peers[3].goes_on


def test_whoever_waited_for_room_is_not_blamed_for_that_time() -> None:
    backlog: Backlog[Peer] = Backlog()
    peers = [Peer() for _ in range(4)]
    for peer in peers:
        backlog.hold(peer, 8 * MIB, 0)
    assert backlog.ended(HURRY_MS + 1) == peers[:1]
    backlog.hold(peers[0], 8 * MIB, HURRY_MS + 2)
    assert backlog.ended(HURRY_MS + 3) == peers[1:2], "the fourth has only begun"


def test_a_small_frame_does_not_wait_for_others() -> None:
    backlog: Backlog[Peer] = Backlog()
    backlog.hold(Peer(), INCOMING_BYTES, 0)
    assert backlog.hold(Peer(), SMALL_BYTES, 0)


def test_a_frame_that_came_whole_and_a_connection_that_ended_hold_nothing() -> None:
    backlog: Backlog[Peer] = Backlog()
    whole, lost = Peer(), Peer(5)
    backlog.hold(whole, 4 * MIB, 0)
    backlog.hold(whole, 6 * MIB, 1)
    backlog.hold(whole, 0, 2)
    backlog.hold(lost, 4 * MIB, 3)
    backlog.wait_for_reader(lost, 3)
    backlog.forget(lost)
    backlog.is_read(lost)
    assert (backlog.incoming, backlog.outgoing) == (0, 0)
    assert backlog.ended(10**9) == []


def test_a_peer_that_reads_nothing_for_long_is_ended_and_a_slow_one_is_not() -> None:
    backlog: Backlog[Peer] = Backlog()
    dead, slow = Peer(1_000), Peer(1_000)
    for peer in (dead, slow):
        backlog.wait_for_reader(peer, 0)
    slow.waiting = 999
    assert backlog.ended(UNREAD_MS) == []
    assert backlog.ended(UNREAD_MS + 1) == [dead]
    assert backlog.outgoing == 999


def test_over_the_bound_unread_replies_of_the_longest_waiting_peers_go_and_nobody_gets_more() -> None:
    backlog: Backlog[Peer] = Backlog()
    peers = [Peer(8 * MIB) for _ in range(6)]
    for now, peer in enumerate(peers):
        backlog.wait_for_reader(peer, now)
    assert backlog.outgoing > OUTGOING_BYTES
    assert not backlog.may_reply()
    assert backlog.ended(HURRY_MS) == []
    assert backlog.ended(HURRY_MS + 10) == peers[:2]
    assert backlog.may_reply()
