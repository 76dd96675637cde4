"""Every role against every verb of a master's RPC port, and what is refused beside that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, get_origin

import msgspec
import pytest

from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.errors import BadRequest, NotAllowed, NotAuthorized
from holdfast.identity.identities import EVERYBODY, Entry, Identities, Identity, hash_of
from holdfast.identity.roles import ALL_ROLES, Role, with_included
from holdfast.instant import now_ms, now_seconds
from holdfast.master.access.permissions import BY_TAG, confine, may_send
from holdfast.master.engine.engine import Engine
from holdfast.master.server import RpcServer
from holdfast.messages.of_masters import GetOverview, HandOver
from holdfast.messages.of_nodes import MountSegment, ReportUsage
from holdfast.messages.of_sessions import CloseSession, Opened, OpenSession
from holdfast.messages.requests import (
    Done,
    Exists,
    Failed,
    GetStatus,
    Hello,
    Presence,
    Remove,
    Removed,
    RemoveMatching,
    Status,
)
from holdfast.messages.shapes import Message
from holdfast.transport.async_channel import AsyncChannel
from holdfast.wire.codec import PREAMBLE, REPLIES, REQUESTS, FrameBuffer, decode_reply, encode, expect, frame, tag_of

READS = "Exists Locate RenewLeases ListKeys Stat Explain ListSegments GetStatus ListNodes ListClients GetOverview"
WRITES = "GrantRanges ExtendGrants CommitPuts ReturnGrants Remove RemoveMatching ChangePins"
OPERATES = (
    "HandOver TakeSnapshot DescribeHistories OfferCatalogue RestoreHistory ChangeMode ResizeNode RevokeWrites "
    "ChangeCopying ChangeSettings EndClient ListEvents ListTenants ChangeTenant RemoveTenant"
)
OF_NODES = (
    "RegisterNode ReportWriters ReportUsage ReportGone OpenSession KeepAlive CloseSession AddReplicas MountDisk "
    "ReportFiles ReportDisk MountSegment ReportLostFiles ListFiles ReportFilesVerified VerifyRanges"
)
MAY_SEND = {
    "reader": READS,
    "writer": f"{READS} {WRITES}",
    "operator": f"{READS} {WRITES} {OPERATES}",
    "node": OF_NODES,
    "master": "FetchSnapshot HoldTail TakeSnapshot",
}
"""Beside GiveSign, which everyone may send who was let in."""

KEY = bytes(range(16))
VERBS = [kind for kind in REQUESTS if kind is not Hello]


def entry(name: str, *roles: Role) -> Entry:
    return Entry(Identity(name, with_included(roles)), (hash_of(f"token of {name}"),))


IDENTITIES = Identities(
    [*(entry(role.value, role) for role in Role), entry("another node", Role.NODE), entry("all", *Role)]
)


def leading(identities: Identities | None, token: str = "") -> RpcServer:
    server = RpcServer("here", token, identities=identities)
    engine = Engine(Primary(State(), Rules()))
    engine.start_log(1, "test", b"secret", now_ms())
    engine.start_epoch(1, now_ms())
    server.lead(engine)
    return server


class Peer:
    """A connection that can send anything."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = FrameBuffer()
        self._number = 0

    async def ask(self, payload: bytes) -> Message:
        self._number += 1
        self.writer.write(frame(self._number, 1_000, payload))
        while (found := self._frames.next_frame()) is None:
            data = await asyncio.wait_for(self._reader.read(65_536), 20)
            if not data:
                raise ConnectionError("closed")
            self._frames.space()[: len(data)] = data
            self._frames.filled(len(data))
        return decode_reply(bytes(found[2]))


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = leading(IDENTITIES)
    host, port = await server.start("127.0.0.1", 0)
    yield f"{host}:{port}"
    await server.stop()


async def peer_of(address: str, token: str) -> Peer:
    host, _, port = address.rpartition(":")
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    peer.writer.write(PREAMBLE)
    reply = await peer.ask(encode(Hello(5, token, looks=True, client_key=KEY)))
    if isinstance(reply, Failed):
        expect(reply, Done)
    return peer


def example(kind: type[Message]) -> Message:
    """A well-formed request of this kind."""
    plain: dict[str, Any] = {"int": 1, "str": "one", "bytes": b"", "bool": False, "grant": [1, 1], "dict": {}}
    built: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            name = "grant" if field.name == "grant" else getattr(get_origin(field.type) or field.type, "__name__", "")
            built[field.name] = plain.get(name, [])
    values = [kind.__struct_config__.tag, *(built[name] for name in kind.__struct_fields__ if name in built)]
    return msgspec.msgpack.decode(msgspec.msgpack.encode(values), type=kind)


def test_every_request_declares_its_role() -> None:
    assert [kind.__name__ for kind in VERBS if "needs" not in vars(kind)] == []
    assert [kind.__name__ for kind in REPLIES if "needs" in vars(kind)] == []
    assert {name for names in MAY_SEND.values() for name in names.split()} | {"GiveSign"} == {
        kind.__name__ for kind in VERBS
    }


def test_a_request_without_a_role_is_nobodys() -> None:
    class Forgotten(Message, tag=99_999):
        pass

    assert not may_send(ALL_ROLES, Forgotten)


@pytest.mark.parametrize("kind", REQUESTS)
def test_the_tag_is_read_without_decoding(kind: type[Message]) -> None:
    tag = kind.__struct_config__.tag
    assert BY_TAG[tag] is kind
    assert tag_of(encode(example(kind))) == tag
    for head in (b"\xdc\x00\x05", b"\xdd\x00\x00\x00\x05"):
        assert tag_of(head + bytes([tag])) == tag
        assert tag_of(head + bytes([0xCC, tag])) == tag


@pytest.mark.parametrize("payload", [b"", b"\x91", b"\xdc\x00", b"\xc0", b"\x91\xc0", b"\x81\x05\x05", b"\xff\x05"])
def test_what_has_no_tag_has_none(payload: bytes) -> None:
    assert tag_of(payload) == -1


@pytest.mark.parametrize("role", list(Role))
async def test_every_verb_is_allowed_or_refused_as_the_table_says(address: str, role: Role) -> None:
    peer = await peer_of(address, f"token of {role}")
    refused, allowed = set(), {"GiveSign"}
    for kind in VERBS:
        reply = await peer.ask(encode(example(kind)))
        (refused if isinstance(reply, Failed) and reply.code == NotAllowed.code else allowed).add(kind.__name__)
    assert allowed == {*MAY_SEND[role].split(), "GiveSign"}
    assert refused == {kind.__name__ for kind in VERBS} - allowed
    peer.writer.close()


@pytest.mark.parametrize("role", list(Role))
async def test_nothing_of_a_refused_request_is_decoded(address: str, role: Role) -> None:
    """Its body is what no request may be; the role is what it is refused for, in every form of array and tag."""
    peer = await peer_of(address, f"token of {role}")
    for kind in VERBS:
        if kind.__name__ in MAY_SEND[role].split() or kind.__name__ == "GiveSign":
            continue
        tag = kind.__struct_config__.tag
        for payload in (bytes([0x92, tag, 0xC1]), bytes([0xDC, 0, 2, tag, 0xC1]), bytes([0x92, 0xCC, tag, 0xC1])):
            reply = await peer.ask(payload)
            assert isinstance(reply, Failed), kind
            assert reply.code == NotAllowed.code, (kind, reply.text)
            assert f"needs the role {kind.needs}" in reply.text
            assert "nothing was changed" in reply.text
    assert isinstance(await peer.ask(b"\x92\x7f\x00"), Failed)
    peer.writer.close()


@pytest.mark.parametrize("token", ["", "token of nobody", hash_of("token of writer")])
async def test_strangers_are_not_let_in(address: str, token: str) -> None:
    with pytest.raises(NotAuthorized):
        await peer_of(address, token)


@pytest.mark.parametrize("kind", VERBS)
async def test_nothing_is_answered_before_the_greeting(address: str, kind: type[Message]) -> None:
    host, _, port = address.rpartition(":")
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    peer.writer.write(PREAMBLE)
    with pytest.raises(BadRequest, match="first request must be Hello"):
        expect(await peer.ask(encode(example(kind))), Done)
    with pytest.raises(ConnectionError):
        await peer.ask(encode(Hello(5, "token of writer", client_key=KEY)))
    peer.writer.close()


async def opened(address: str, token: str, client: int = 5) -> AsyncChannel:
    return await AsyncChannel.open(
        address, Hello(client, token, client_key=client.to_bytes(16, "little")), now_seconds() + 20
    )


async def test_a_refused_request_does_not_end_the_connection(address: str) -> None:
    channel = await opened(address, "token of reader")
    with pytest.raises(NotAllowed, match="HandOver needs the role operator, and 'reader' has reader"):
        expect(await channel.call(HandOver(), now_seconds() + 20), Done)
    assert isinstance(await channel.call(Exists(["one"]), now_seconds() + 20), Presence)
    channel.close()


@pytest.mark.parametrize("request_kind", [Remove(["one"], 1, force=True), RemoveMatching("", 2, force=True)])
async def test_to_remove_with_force_is_the_operators(address: str, request_kind: Message) -> None:
    writer, operator = await opened(address, "token of writer"), await opened(address, "token of operator", 6)
    with pytest.raises(NotAllowed, match="with force needs the role operator"):
        expect(await writer.call(request_kind, now_seconds() + 20), Removed)
    assert isinstance(await writer.call(Remove(["one"], 3), now_seconds() + 20), Removed)
    assert isinstance(await operator.call(request_kind, now_seconds() + 20), Removed)
    for channel in (writer, operator):
        channel.close()


async def test_only_the_identity_that_opened_a_session_speaks_for_its_node(address: str) -> None:
    own, another = await opened(address, "token of node"), await opened(address, "token of another node", 6)

    async def ask(channel: AsyncChannel, message: Message) -> Message:
        return await channel.call(message, now_seconds() + 20)

    assert isinstance(await ask(own, OpenSession(77, "node-1")), Opened)
    for message in (
        OpenSession(77, "node-1"),
        ReportUsage(77, 1, {}),
        CloseSession(77),
        MountSegment("node-1", 1, 1, 64),
    ):
        reply = await ask(another, message)
        assert isinstance(reply, Failed)
        assert (reply.code, "another identity" in reply.text) == ("not_allowed", True), message
    reply = await ask(another, OpenSession(78, "node-1"))
    assert isinstance(reply, Failed)
    assert reply.code == "name_taken"
    # Also while its node is away: nobody takes its name, and its own identity may.
    own.close()
    back = await opened(address, "token of node", 7)
    reply = await ask(another, OpenSession(78, "node-1"))
    assert isinstance(reply, Failed)
    assert (reply.code, "another identity" in reply.text) == ("name_taken", True)
    assert isinstance(await ask(back, OpenSession(79, "node-1")), Opened)
    # Its workers have connections of their own.
    worker = await opened(address, "token of node", 8)
    reply = await ask(worker, MountSegment("node-1", 1, 1, 64))
    assert isinstance(reply, Failed)
    assert reply.code == "unknown_node"
    reply = await ask(worker, MountSegment("node-2", 1, 1, 64))
    assert isinstance(reply, Failed)
    assert (reply.code, "not open at this master yet" in reply.text) == ("busy", True)
    for channel in (another, back, worker):
        channel.close()


@pytest.mark.parametrize("token", ["", "s3cret"])
async def test_where_there_are_no_roles_everything_is_allowed(token: str) -> None:
    server = leading(None, token)
    host, port = await server.start("127.0.0.1", 0)
    peer = await peer_of(f"{host}:{port}", token)
    for kind in VERBS:
        reply = await peer.ask(encode(example(kind)))
        assert not isinstance(reply, Failed) or reply.code != NotAllowed.code, kind
    (connection,) = server.connections.values()
    assert connection.identity == EVERYBODY if not token else connection.identity.name == "token"
    peer.writer.close()
    await server.stop()


@pytest.mark.parametrize(("who", "shown"), [("reader", "default"), ("writer", "default"), ("operator", "red")])
def test_an_overview_is_of_the_sender_s_own_tenant_unless_it_is_an_operator(who: str, shown: str) -> None:
    """I20"""
    identity = entry(who, Role(who)).identity
    request = GetOverview("red")
    confine(request, identity)
    assert request.tenant == shown
    everything = GetOverview()
    confine(everything, identity)
    assert everything.tenant == (None if who == "operator" else "default")


@pytest.mark.parametrize("who", ["reader", "writer", "operator"])
async def test_whose_entry_of_the_identities_is_wrong_is_for_operators(who: str) -> None:
    """I20"""
    server = leading(IDENTITIES)
    shown = msgspec.structs.replace(example(Status), identities_fault="entry 3 (blue-app) is wrong")
    server.views[GetStatus] = lambda request, answer: answer(shown)
    host, port = await server.start("127.0.0.1", 0)
    channel = await opened(f"{host}:{port}", f"token of {who}")
    reply = await channel.call(GetStatus(), now_seconds() + 20)
    channel.close()
    await server.stop()
    assert isinstance(reply, Status)
    assert reply.identities_fault
    assert ("blue-app" in reply.identities_fault) is (who == "operator")
