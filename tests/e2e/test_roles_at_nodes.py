"""Every role at the two sockets of a real node, with all that the master gives it, as the table `ROLES` says (I20)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from holdfast.errors import NotAllowed, NotAuthorized
from holdfast.ids import GrantId
from holdfast.instant import now_seconds
from holdfast.messages.hello import fresh_hello
from holdfast.messages.of_nodes import AttachSegment, HearRevocations, ReadBack, ReadRanges, WriteRange
from holdfast.messages.requests import Granted, GrantRanges, ListSegments, Locate, Located, SegmentList
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import AttachTicket, MappingRight, Message, SegmentPlace
from holdfast.transport import attach
from holdfast.transport.attach import NodeLink
from holdfast.transport.channel import Channel
from holdfast.transport.data_tcp import NO_TICKET
from holdfast.transport.shared_memory import Mapping
from holdfast.wire.codec import expect
from tests.access_tables import ROLES
from tests.e2e.rig import Rig
from tests.failover.guarded import Keyring
from tests.node.memory.test_proofs import SIZE, asked

OBJECT = os.urandom(SIZE)


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    made = Keyring(tmp_path_factory.mktemp("keys"))
    for role in ("reader", "writer", "operator", "node", "master"):
        made.add(role, role)
    made.add("red", "writer", tenant="red")
    return made


@pytest.fixture(scope="module")
def rig(keyring: Keyring) -> Iterator[Rig]:
    with Rig("32MiB", nodes=0, identities=keyring.file) as rig:
        rig.add_node("n", "--token-file", str(keyring.path("node")))
        with rig.connect(token_file=keyring.path("writer")) as cache:
            assert cache.put("object", OBJECT)
        yield rig


class Caller:
    """What the master gives to somebody with this token; empty hands where it gives nothing."""

    def __init__(self, rig: Rig, token: str, place: SegmentPlace, wanted: bytes) -> None:
        self.place, self.wanted = place, wanted
        self.ticket = NO_TICKET
        self.mapping: AttachTicket | None = None
        self.grant, self.range, self.mac = GrantId(5, 1), (0, SIZE), b"a guess of mine."
        try:
            self._channel = Channel.open(rig.address, fresh_hello(token), now_seconds() + 60)
        except NotAuthorized:
            return
        try:
            self._ask_for_all()
        finally:
            self._channel.close()

    def _ask(self, message: Message, kind: type[Message]) -> Message | None:
        try:
            return expect(self._channel.call(message, now_seconds() + 60), kind)
        except NotAllowed:
            return None

    def _ask_for_all(self) -> None:
        listed = self._ask(ListSegments(MappingRight.WRITE), SegmentList)
        if isinstance(listed, SegmentList):
            [self.place] = listed.segments
            self.mapping = self.place.attach
        located = self._ask(Locate(["object"], tickets=True), Located)
        if isinstance(located, Located) and located.tickets:
            [self.ticket] = located.tickets
        grant = GrantId(self._channel.welcome.client, 1)
        granted = self._ask(GrantRanges(grant, struct.pack("<Q", SIZE)), Granted)
        if isinstance(granted, Granted):
            [where] = granted.ranges
            self.grant, self.range, self.mac = grant, (where.offset, granted.length), where.mac

    def requests(self) -> dict[str, Message]:
        """A request for each row of the table."""
        name, piece = self.place.name, (0, SIZE)
        return {
            "data: read an object": ReadRanges(name, self.ticket, self.wanted),
            "data: write to a grant": WriteRange(name, self.grant, *self.range, self.mac, *piece),
            "data: read a grant back": ReadBack(name, self.grant, *self.range, self.mac, *piece),
            "attach: map for reading": AttachSegment(name, False, 0, self.mapping),
            "attach: map for writing": AttachSegment(name, True, 0, self.mapping),
            "attach: hear of revoked leases": HearRevocations(name, self.mapping),
        }


@pytest.fixture(scope="module")
def known(rig: Rig, keyring: Keyring) -> tuple[SegmentPlace, bytes]:
    """Where the object lies, which is no secret."""
    channel = Channel.open(rig.address, fresh_hello(keyring.tokens["reader"]), now_seconds() + 60)
    try:
        [place] = expect(channel.call(ListSegments(), now_seconds() + 60), SegmentList).segments
        [ticket] = expect(channel.call(Locate(["object"], tickets=True), now_seconds() + 60), Located).tickets
    finally:
        channel.close()
    assert TicketRow.count(ticket.ranges) == 1
    return place, ticket.ranges


@pytest.mark.parametrize("who", next(iter(ROLES.values())))
def test_a_role_can_do_at_a_node_what_the_table_says(
    rig: Rig, keyring: Keyring, known: tuple[SegmentPlace, bytes], who: str
) -> None:
    caller = Caller(rig, keyring.tokens.get(who, "a guess"), *known)
    assert set(caller.requests()) == set(ROLES)
    for row, message in caller.requests().items():
        answer, passed = asked(known[0].data_address, known[0].socket_path, message)
        if ROLES[row][who] == "yes":
            assert answer == "served", row
        else:
            assert answer in ("ticket_refused", "grant_refused"), row
            assert passed == 0
    with rig.connect(token_file=keyring.path("reader")) as cache:
        assert cache.get("object") == OBJECT


def test_a_reader_s_map_cannot_be_written(
    rig: Rig, keyring: Keyring, known: tuple[SegmentPlace, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor is open for reading only: the kernel refuses, whatever the client's code does."""
    caller = Caller(rig, keyring.tokens["reader"], *known)
    link = NodeLink.open(caller.place.socket_path, now_seconds() + 60)
    try:
        assert link.attach(AttachSegment(caller.place.name, ticket=caller.mapping), now_seconds() + 60).view.readonly
        monkeypatch.setattr(attach, "Mapping", lambda descriptor, size, _: Mapping(descriptor, size, True))
        with pytest.raises(PermissionError):
            link.attach(AttachSegment(caller.place.name, ticket=caller.mapping), now_seconds() + 60)
    finally:
        link.close()
