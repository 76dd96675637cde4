"""Tenants: the same keys are different objects, and nobody can name, list, match, renew or remove another's (I20)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import pytest

from holdfast.errors import BadKey, BadRequest, BadValue, TenantBusy
from holdfast.identity.identities import Identity
from holdfast.identity.roles import ALL_ROLES
from holdfast.ids import MAX_KEY_BYTES, MAX_TENANTS, GrantId, extent_of, namespace_of, tenant_of
from holdfast.master.tenancy import (
    INWARD,
    OUTWARD,
    REPLIES_WITHOUT_KEYS,
    REQUESTS_WITHOUT_KEYS,
    Tenancies,
    Tenancy,
)
from holdfast.messages import requests as q
from holdfast.messages.of_tenants import ChangeTenant, TenantList
from holdfast.messages.rows import SeenRow
from holdfast.messages.shapes import Message
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import dump, load
from holdfast.wire import codec
from holdfast.wire.codec import expect, failed
from tests.core.world import World
from tests.stories.pair import Pair

T = TypeVar("T", bound=Message)
NAMES_KEYS = ("keys", "key", "prefix", "pattern", "rows", "stats", "text")
"""Fields that may hold keys, or ids of objects."""


@dataclass
class Peer:
    """A connection of a tenant, as the server sees it."""

    identity: Identity
    client: int
    tenancy: Tenancy | None = None


class Tenants:
    """Peers of several tenants before one engine."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tenancies = Tenancies()
        self.peers: dict[str, Peer] = {}

    def join(self, name: str) -> Peer:
        peer = Peer(Identity(name, ALL_ROLES, name), 100 + len(self.peers))
        self.peers[name] = peer
        self.tenancies.settle(peer, self.peers.values, self.world.engine, self.world.now)
        return peer

    def ask(self, name: str, kind: type[T], request: Message) -> T:
        peer = self.peers[name]
        if peer.tenancy is not None:
            peer.tenancy.inward(request, self.world.state.catalogue)
        reply = self.world.send(request, peer.client)
        assert reply is not None
        if peer.tenancy is not None:
            peer.tenancy.outward(reply)
        return expect(reply, kind)

    def put(self, name: str, *keys: str, size: int = 1_000) -> list[int]:
        world = self.world
        world.serial += 1
        grant = GrantId(self.peers[name].client, world.serial)
        length = extent_of(size)
        self.ask(name, q.Granted, q.GrantRanges(grant, struct.pack("<Q", length * len(keys))))
        words = [word for i in range(len(keys)) for word in (i * length, size, 7)]
        commit = q.CommitPuts(grant, list(keys), struct.pack(f"<{len(words)}Q", *words), finished=[grant])
        return list(self.ask(name, q.Committed, commit).stored)

    def has(self, name: str, *keys: str) -> list[int]:
        return list(self.ask(name, q.Presence, q.Exists(list(keys))).found)

    def located(self, name: str, *keys: str) -> list[tuple[int, ...]]:
        return list(struct.iter_unpack("<5Q", self.ask(name, q.Located, q.Locate(list(keys))).rows))

    def listed(self, name: str, prefix: str = "") -> list[str]:
        return sorted(self.ask(name, q.KeyList, q.ListKeys(prefix)).keys)

    def remove_matching(self, name: str, pattern: str) -> int:
        self.world.serial += 1
        return self.ask(name, q.Removed, q.RemoveMatching(pattern, self.world.serial)).removed


def joined(world: World) -> Tenants:
    """The default tenant and two others, on one node."""
    world.node(size=4 << 20)
    tenants = Tenants(world)
    for name in ("", "red", "blue"):
        tenants.join(name)
    return tenants


@pytest.fixture
def tenants() -> Tenants:
    return joined(World())


def test_every_message_has_a_row_in_one_table() -> None:
    assert set(codec.REQUESTS) == INWARD.keys() | REQUESTS_WITHOUT_KEYS
    assert set(codec.REPLIES) == OUTWARD.keys() | REPLIES_WITHOUT_KEYS
    assert not INWARD.keys() & REQUESTS_WITHOUT_KEYS
    assert not OUTWARD.keys() & REPLIES_WITHOUT_KEYS


def test_messages_of_clients_that_may_name_keys_are_translated() -> None:
    of_clients = [kind for kind in codec.REQUESTS if kind.__module__.endswith("requests")]
    for kind in of_clients:
        if any(field.name in NAMES_KEYS for field in msgspec.structs.fields(kind)):
            assert kind in INWARD, kind
    packed = {q.Located}
    """Its rows are in the order of the keys that were asked for, and hold none."""
    for kind in codec.REPLIES:
        if kind.__module__.endswith("requests") and kind not in packed:
            assert kind in OUTWARD or not any(f.name in NAMES_KEYS for f in msgspec.structs.fields(kind)), kind


def test_a_message_without_a_row_is_refused(tenants: Tenants) -> None:
    class Unheard(Message, tag=62):
        keys: list[str]

    with pytest.raises(BadRequest, match="Unheard"):
        Tenancy(1).inward(Unheard(["a"]), tenants.world.state.catalogue)


def test_namespaces_are_unique_and_no_prefix_of_each_other() -> None:
    spaces = [namespace_of(number) for number in range(1, MAX_TENANTS + 1)]
    assert len(set(spaces)) == MAX_TENANTS
    assert {len(space.encode()) for space in spaces} == {3}
    assert [tenant_of(space + "key") for space in spaces] == list(range(1, MAX_TENANTS + 1))
    assert (namespace_of(0), tenant_of("key"), tenant_of("\0key")) == ("", 0, 0)


def test_the_same_keys_are_different_objects(tenants: Tenants) -> None:
    for size, name in ((1_000, ""), (2_000, "red"), (3_000, "blue")):
        assert tenants.put(name, "a", "b", size=size) == [1, 1]
        assert tenants.put(name, "a", size=size) == [0]
    assert [tenants.located(name, "a")[0][3] for name in ("", "red", "blue")] == [1_000, 2_000, 3_000]
    assert len({tenants.located(name, "a")[0][0] for name in ("", "red", "blue")}) == 3
    tenants.world.serial += 1
    removed = tenants.ask("red", q.Removed, q.Remove(["a", "b"], tenants.world.serial, force=True))
    assert removed.removed == 2
    assert [tenants.has(name, "a", "b") for name in ("", "red", "blue")] == [[1, 1], [0, 0], [1, 1]]
    tenants.world.check()


def test_pins_are_ones_own(tenants: Tenants) -> None:
    """I20"""
    for name in ("", "red"):
        tenants.put(name, "a")
    assert tenants.ask("blue", q.Presence, q.ChangePins(["a"], hard_pin=True)).found == b"\0"
    assert tenants.ask("red", q.Presence, q.ChangePins(["a"], hard_pin=True)).found == b"\1"
    pinned = [tenants.ask(name, q.Stats, q.Stat(["a"])).stats[0] for name in ("", "red")]
    assert [one is not None and one.hard_pin for one in pinned] == [False, True]
    tenants.world.check()


def test_a_listing_shows_ones_own(tenants: Tenants) -> None:
    tenants.put("", "k/default")
    tenants.put("red", "k/red", "other")
    assert tenants.listed("") == ["k/default"]
    assert tenants.listed("red") == ["k/red", "other"]
    assert tenants.listed("red", "k/") == ["k/red"]
    assert tenants.listed("blue") == tenants.listed("blue", "k/") == []


def test_patterns_match_ones_own_without_the_prefix(tenants: Tenants) -> None:
    for name in ("", "red", "blue"):
        tenants.put(name, "abc", "xabc", "zz")
    assert tenants.remove_matching("red", "^abc$") == 1
    assert tenants.remove_matching("red", "^..$|nothing") == 1
    assert tenants.listed("red") == ["xabc"]
    assert tenants.remove_matching("", "") == 3
    assert tenants.listed("") == []
    assert tenants.listed("blue") == ["abc", "xabc", "zz"]
    assert tenants.remove_matching("blue", "") == 3
    assert tenants.listed("red") == ["xabc"]


def test_anothers_id_is_unknown(tenants: Tenants) -> None:
    tenants.put("red", "a")
    tenants.put("", "d")
    red, mine = tenants.located("red", "a")[0][:3], tenants.located("", "d")[0][:3]
    rows = SeenRow.pack_rows([red, mine])
    seen = {name: tenants.ask(name, q.Presence, q.RenewLeases(rows)).found for name in ("", "red", "blue")}
    assert seen == {"": b"\0\1", "red": b"\1\0", "blue": b"\0\0"}


def test_stat_and_explain_show_ones_own_key(tenants: Tenants) -> None:
    tenants.put("red", "a")
    [stat] = tenants.ask("red", q.Stats, q.Stat(["a"])).stats
    assert stat is not None
    assert stat.key == "a"
    explained = tenants.ask("red", q.Explanations, q.Explain(["a", "gone"]))
    assert [known and known.key for known in explained.stats] == ["a", None]
    for name in ("", "blue"):
        assert tenants.ask(name, q.Stats, q.Stat(["a"])).stats == [None]
        [[why]] = tenants.ask(name, q.Explanations, q.Explain(["a"])).reasons
        assert "none that went recently" in why


def test_reserved_keys_are_refused(tenants: Tenants) -> None:
    tenants.put("red", "a")
    reserved = namespace_of(1) + "a"
    for name in ("", "red", "blue"):
        for request in (
            q.Exists(["fine", reserved]),
            q.Locate([reserved]),
            q.Stat([reserved]),
            q.Explain([reserved]),
            q.Remove([reserved], 1),
            q.ListKeys(namespace_of(1)),
            q.RemoveMatching(namespace_of(1), 2),
            q.GrantRanges(GrantId(1, 1), struct.pack("<Q", 64), [reserved]),
        ):
            with pytest.raises(BadValue, match="reserved"):
                tenants.ask(name, Message, request)
        with pytest.raises(BadValue, match="reserved"):
            tenants.put(name, reserved)
    assert tenants.has("red", "a") == [1]


@pytest.mark.parametrize("count", [1, 2])
def test_reserved_keys_are_refused_before_there_are_tenants(count: int) -> None:
    world = World()
    world.node()
    with pytest.raises(BadValue, match="reserved"):
        world.put(*[f"{namespace_of(1)}{i}" for i in range(count)])
    assert world.put("\0fine") == [True]


def test_a_tenants_keys_are_shorter_by_the_prefix(tenants: Tenants) -> None:
    assert tenants.put("red", "k" * (MAX_KEY_BYTES - 3)) == [1]
    with pytest.raises(BadKey, match="1,021"):
        tenants.put("red", "k" * (MAX_KEY_BYTES - 2))
    with pytest.raises(BadKey, match="empty"):
        tenants.has("red", "")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("key", ["k", "\0k", "", namespace_of(2), "é" * 255, "é" * 256, "k" * 1_021, "k" * 1_022])
def test_a_key_alone_is_translated_as_in_a_batch(tenants: Tenants, number: int, key: str) -> None:
    """By the fast path for almost every put and get, and by `Tenancy.inside`."""

    def inside(*keys: str) -> list[str] | str:
        request = q.Locate([*keys])
        try:
            Tenancy(number).inward(request, tenants.world.state.catalogue)
        except (BadKey, BadValue) as error:
            return str(error)
        return request.keys

    alone, batch = inside(key), inside(key, "other")
    if isinstance(batch, str):
        assert alone == batch
    else:
        assert [*alone] == [*batch[:1]] == [namespace_of(number) + key]


def test_what_is_asked_ahead_of_one_key_is_translated_too(tenants: Tenants) -> None:
    """A commit of one key takes the fast path only without it."""
    ahead = q.GrantRanges(GrantId(1, 2), struct.pack("<Q", 64), ["next"])
    commit = q.CommitPuts(GrantId(1, 1), ["k"], bytes(24), ahead=ahead)
    Tenancy(1).inward(commit, tenants.world.state.catalogue)
    assert (commit.keys, ahead.keys) == ([namespace_of(1) + "k"], [namespace_of(1) + "next"])


def test_errors_show_no_prefix() -> None:
    tenancy = Tenancy(5)
    reply = failed(BadKey(f"{tenancy.prefix}a is bad, as {tenancy.prefix + 'b'!r} is"))
    tenancy.outward(reply)
    assert reply.text == "a is bad, as 'b' is"


def test_connections_of_the_default_tenant_translate_nothing_until_there_is_another() -> None:
    tenants = Tenants(World())
    first = tenants.join("")
    assert first.tenancy is None
    tenants.join("red")
    assert first.tenancy is not None
    assert first.tenancy.prefix == ""
    assert tenants.world.primary.namespaces == {101: namespace_of(1)}
    tenants.tenancies.leave(tenants.peers["red"], tenants.world.engine)
    assert tenants.world.primary.namespaces == {}


def test_tenants_outlive_failovers_and_snapshots() -> None:
    pair = Pair()
    tenants = joined(pair)
    for name in ("", "red", "blue"):
        tenants.put(name, "a", size=1_000 + len(name))
    pair.replicate()
    copied = pair.standby.state.tenants
    assert [copied.number_of(name) for name in ("", "red", "blue", "green")] == [0, 1, 2, None]
    restored = load(b"".join(dump(pair.state, Position(), pair.now)), pair.now).state
    assert restored.tenants.by_number == pair.state.tenants.by_number
    assert restored.tenants.next_number == 3
    assert sorted(key for key in restored.catalogue.keys if key) == sorted(
        namespace_of(number) + "a" for number in range(3)
    )


def refused_of(tenants: Tenants, name: str, count: int) -> int:
    """How many of so many requests at once come too soon."""
    tenancy, refused = tenants.peers[name].tenancy, 0
    assert tenancy is not None
    for _ in range(count):
        try:
            tenancy.check_rate(q.Exists(["k"]), tenants.world.now)
        except TenantBusy:
            refused += 1
    return refused


def test_a_change_of_another_tenants_quotas_gives_no_new_seconds_worth_of_requests(tenants: Tenants) -> None:
    """Neither does a new connection; a changed rate begins anew."""
    world = tenants.world

    def change(name: str, **quotas: int) -> None:
        world.ask(TenantList, ChangeTenant(name, {**quotas}))
        assert tenants.tenancies.settle_all(tenants.peers.values(), world.engine, world.now) == []

    change("red", requests_per_second=5)
    assert refused_of(tenants, "red", 6) == 1
    change("blue", max_objects=7)
    assert refused_of(tenants, "red", 2) == 2
    tenants.join("red")
    assert refused_of(tenants, "red", 2) == 2
    assert refused_of(tenants, "blue", 9) == 0
    change("red", requests_per_second=3)
    assert refused_of(tenants, "red", 4) == 1
