"""Every request to a node's two sockets against every proof, as the table `PROOFS` says (I20, ADR 48).

Real sockets, without a master: its key is known here. After a refusal nothing has moved and no memory was passed.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from holdfast.ids import GrantId, SegmentName, object_id
from holdfast.instant import now_ms
from holdfast.messages.commands import TicketTerms
from holdfast.messages.of_nodes import AttachSegment, CheckFile, HearRevocations, ReadBack, ReadRanges, WriteRange
from holdfast.messages.requests import Failed
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import AttachTicket, Message, Ticket
from holdfast.wire.codec import HEAD_BYTES, PREAMBLE, decode_data_reply, encode, frame
from holdfast.wire.mac import attach_mac, range_mac, ticket_mac
from tests.access_tables import PROOFS
from tests.node.rig import Served, soon
from tests.other_user import as_other_user, needs_root
from tests.tickets import READER, SECRET

AT, SIZE = 4096, 64
NOW, BEFORE = object_id(1, 100), object_id(1, 99)
"""Generations of tickets: the present one, and one that has ended."""
TERMS = TicketTerms(NOW, 1_800_000, 3_600_000)
BYTES, NEW = b"b" * SIZE, b"n" * SIZE
KINDS = tuple(next(iter(PROOFS.values())))
UNIX = (AttachSegment, HearRevocations)
OTHER_USER = "right, other user"


@dataclass(frozen=True)
class Proof:
    """The one that the master would give, but for what is said here."""

    key: bytes = SECRET
    client: int = READER
    claimed: int = READER
    """The client that the request names."""
    segment: int = 0
    start: int = AT
    generation: int = NOW
    write: bool = True
    mac: bytes | None = None

    @property
    def grant(self) -> GrantId:
        return GrantId(self.client, 1)


ENDED, REVOKED = READER + 1, READER + 2
SHOWN = {
    "the right one": Proof(),
    "right, other connection": Proof(),
    "right, on other socket": Proof(),
    OTHER_USER: Proof(),
    "none": Proof(mac=b""),
    "forged": Proof(mac=os.urandom(16)),
    "another client's number": Proof(claimed=READER + 3),
    "by another node's key": Proof(key=b"the key of another node"),
    "for another segment": Proof(segment=1),
    "for another range": Proof(start=AT + SIZE),
    "expired, or grant ended": Proof(generation=BEFORE, client=ENDED, claimed=ENDED),
    "of a revoked client": Proof(client=REVOKED, claimed=REVOKED),
    "for reading": Proof(write=False),
    "of a grant": Proof(),
}


def request(served: Served, kind: str, row: str) -> Message:
    """A request of this kind, with the proof of this row."""
    proof, name = SHOWN[row], served.name()
    proved, ranges = served.name(proof.segment), TicketRow.pack(proof.start, SIZE)
    read = ticket_mac(proof.key, proved, proof.client, proof.generation, ranges)
    write = range_mac(proof.key, proved, proof.grant, proof.start, SIZE)
    attach = attach_mac(proof.key, proved, proof.client, proof.generation, proof.write)
    if row == "for reading":
        write = read
    if row == "of a grant":
        read = attach = write
    if proof.mac is not None:
        read = write = attach = proof.mac
    ticket = Ticket(0, proof.claimed, proof.generation, ranges, read)
    mapping = AttachTicket(proof.claimed, proof.generation, proof.write, attach) if row != "none" else None
    grant = GrantId(proof.claimed, 1)
    wanted: dict[str, Callable[[], Message]] = {
        "ReadRanges": lambda: ReadRanges(name, ticket, TicketRow.pack(AT, SIZE)),
        "CheckFile": lambda: CheckFile(name, AT, ticket if row != "none" else None),
        "WriteRange": lambda: WriteRange(name, grant, AT, SIZE, write, 0, SIZE),
        "ReadBack": lambda: ReadBack(name, grant, AT, SIZE, write, 0, SIZE),
        "AttachSegment": lambda: AttachSegment(name, True, 0, mapping),
        "HearRevocations": lambda: HearRevocations(name, mapping),
    }
    return wanted[kind]()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        served.tickets.trust(SECRET, TERMS, now_ms())
        served.memory.segments[0].mapping.map[AT : AT + SIZE] = BYTES
        served.data.clean([GrantId(ENDED, 1)], soon())
        served.data.refuse_client(REVOKED)
        yield served


def reply_to(connected: socket.socket, asked: Message) -> tuple[Message, int]:
    """The reply, and how many descriptors came with it."""
    connected.settimeout(30)
    body = NEW if isinstance(asked, WriteRange) else b""
    try:
        connected.sendall(PREAMBLE + frame(0, 0, encode(asked)) + body)
    except ConnectionError:
        pass  # It was refused at once, and has said why.
    head, descriptors, _, _ = socket.recv_fds(connected, HEAD_BYTES, 4)
    while len(head) < HEAD_BYTES:
        head += connected.recv(HEAD_BYTES - len(head))
    length, _, _ = struct.unpack("<III", head)
    payload = b""
    while len(payload) < length:
        payload += connected.recv(length - len(payload))
    for descriptor in descriptors:
        os.close(descriptor)
    return decode_data_reply(payload), len(descriptors)


def asked(address: str, path: str, message: Message, is_astray: bool = False) -> tuple[str, int]:
    """`served` or the code of the error, and how many descriptors were passed."""
    if isinstance(message, UNIX) != is_astray:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.connect(path)
    else:
        host, _, port = address.rpartition(":")
        connected = socket.create_connection((host, int(port)), timeout=30)
    with connected:
        reply, passed = reply_to(connected, message)
    if isinstance(reply, Failed) and not (reply.code == "unknown_segment" and "no disk" in reply.text):
        return reply.code, passed
    return "served", passed  # A file is looked for, and this node has no disk.


def moved(served: Served) -> tuple[bytes, int, int, int]:
    """All that a refusal must leave as it is."""
    transfers = served.data.transfers()
    return served.bytes_at(AT, SIZE), served.report.writers, transfers.reads, transfers.writes


def test_the_table_has_a_column_for_every_request_and_a_proof_for_every_row() -> None:
    assert set(SHOWN) == set(PROOFS)


@pytest.mark.parametrize("row", [row for row in PROOFS if row != OTHER_USER])
def test_a_node_answers_every_request_as_the_table_says(guarded: Served, row: str) -> None:
    """I20."""
    for kind in KINDS:
        before = moved(guarded)
        message = request(guarded, kind, row)
        if row == "right, other connection":  # Once more, by somebody else: who has it can use it.
            asked(guarded.data.address, guarded.path, message)
            before = BYTES, *before[1:]
        answer, passed = asked(guarded.data.address, guarded.path, message, row == "right, on other socket")
        assert answer == PROOFS[row][kind], kind
        if answer == "served":
            assert passed == (kind == "AttachSegment")
            if kind == "WriteRange":
                assert guarded.bytes_at(AT, SIZE) == NEW
                guarded.memory.segments[0].mapping.map[AT : AT + SIZE] = BYTES
        else:
            assert passed == 0
            assert moved(guarded) == before, f"{kind} was refused, and something changed"


@needs_root
def test_another_user_is_answered_as_the_table_says(guarded: Served) -> None:
    """Even if the mode of the socket let it in; over TCP users are not known, only proofs."""
    path = Path(guarded.path)
    path.chmod(0o666)
    path.parent.chmod(0o711)
    for kind in KINDS:
        message = request(guarded, kind, OTHER_USER)
        answer, passed = as_other_user(partial(asked, guarded.data.address, path.name, message), str(path.parent))
        assert answer == PROOFS[OTHER_USER][kind], kind
        assert passed == 0
    assert guarded.report.writers == 0


def test_a_segment_of_an_earlier_boot_is_nobodys(guarded: Served) -> None:
    """I14: with a proof that was right then."""
    name = guarded.name()
    earlier = SegmentName(name.node, name.boot - 2, name.number)
    mac = attach_mac(SECRET, earlier, READER, NOW, True)
    before = moved(guarded)
    message = AttachSegment(earlier, True, 0, AttachTicket(READER, NOW, True, mac))
    assert asked(guarded.data.address, guarded.path, message) == ("unknown_segment", 0)
    assert moved(guarded) == before
