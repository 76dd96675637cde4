"""A master with another history is met in the middle of a read: nothing of the old one is shown or kept (I2, I7).

Its segments have the same numbers, and its objects may lie at the same places: only the history tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.client import first_tries
from holdfast.client.operations import places
from holdfast.client.state.client import Core
from holdfast.client.state.leases import LeaseRow
from holdfast.errors import ChecksumMismatch, ObjectNotFound
from holdfast.ids import SegmentName
from holdfast.messages import requests as m
from holdfast.messages.shapes import Message, Range, SegmentPlace
from tests.client.fake_master import Act, FakeMaster
from tests.client.inside import core_of
from tests.waiting import wait_until

Connect = Callable[..., Any]


def starts_anew_at(kind: type[Message], master: FakeMaster) -> None:
    """When it is first asked this, the master dies; the next one at its address knows nothing."""

    def judge(request: Message) -> Act:
        if isinstance(request, kind) and master.log_id == 7:
            master.log_id = 8
            master.objects = {}
            return Act.DROP
        return Act.USUAL

    master.judge = judge


def connected_early(master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch, **named: Any) -> Any:
    """A client that was told of no segments yet: it asks where they are when it has located an object."""
    with monkeypatch.context() as patch:
        patch.setattr(master, "segments", list)
        return connect(master.address, **named)


@pytest.mark.parametrize("verify", [True, False])
def test_a_lease_of_the_old_history_is_not_used_after_the_new_one_was_met(
    master: FakeMaster, connect: Connect, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(master.address).put("key", b"of the old history")
    # It is located, and before its segment is known the master is another.
    cache = connected_early(master, connect, monkeypatch, verify=verify)
    starts_anew_at(m.ListSegments, master)
    assert cache.get("key", default=None) is None
    assert cache.get_many(["key"]) == {}
    assert core_of(cache).leases.by_key == {}


def test_a_view_of_the_old_history_is_not_opened_after_the_new_one_was_met(
    master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(master.address).put("key", b"of the old history")
    cache = connected_early(master, connect, monkeypatch)
    starts_anew_at(m.ListSegments, master)
    with pytest.raises(ObjectNotFound), cache.view("key"):
        pass


def test_a_location_told_under_the_old_history_is_not_kept(
    master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread of the client met the new master between the question and its answer."""
    cache = connect(master.address)
    core: Core = core_of(cache)
    cache.put("key", b"of the old history")
    cache.get("key")
    core.leases.clear()
    told = places.lease_in
    met: list[int] = []

    def meanwhile(located: m.Located, sent_at: float, history: int) -> LeaseRow | None:
        if not met:
            met.append(history)
            with monkeypatch.context() as patch:
                # Its segments are mapped already, and have the same numbers.
                patch.setattr(core.bytes, "enter_history", lambda *given: None)
                core.welcomed(msgspec.structs.replace(core.limits, log_id=history + 1))
        return told(located, sent_at, history)

    for module in (first_tries, places):
        monkeypatch.setattr(module, "lease_in", meanwhile)
    kept: list[LeaseRow] = []
    monkeypatch.setattr(core, "read_leased", lambda key: kept.extend(core.leases.by_key.values()))
    assert cache.get("key") == b"of the old history", "the fake master has only one"
    assert met == [7]
    assert {row[7] for row in kept} <= {8}


@pytest.mark.parametrize("size", [100, 100_000])
def test_memory_of_the_new_history_is_not_written_with_a_grant_of_the_old_one(
    master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Another thread meets the new master between the grant and the copy; its memory has the same numbers."""
    cache = connect(master.address)
    cache.put("before", b"b" * size)
    core = core_of(cache)
    writable = core.bytes.writable
    met: list[int] = []

    def meets(piece: Range) -> object:
        if not met:
            met.append(len(master.asked(m.GrantRanges)))
            with monkeypatch.context() as patch:
                patch.setattr(core.bytes, "enter_history", lambda *given: None)
                core.forget_all(core.limits.log_id + 1)
        return writable(piece)

    monkeypatch.setattr(core.bytes, "writable", meets)
    cache.put("after", b"a" * size)
    assert len(master.asked(m.GrantRanges)) == met[0] + 1, "it was written with a grant of the new history"
    _, segment, offset, _, _ = master.objects["after"]
    assert master.node is not None
    assert master.node.bytes_at(offset, size, segment - 1) == b"a" * size


def test_a_grant_asked_for_under_the_old_history_is_not_kept_under_the_new_one(
    master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I19: the answer arrives just after another thread of the client has met a master with another history."""
    cache = connect(master.address)
    core = core_of(cache)
    keep_grant = core.keep_grant
    met: list[bool] = []

    def keeps(grant: object, history: int, now: float) -> bool:
        if not met:
            core.welcomed(msgspec.structs.replace(core.limits, log_id=history + 1))
        kept = keep_grant(grant, history, now)  # type: ignore[arg-type]
        met.append(kept)
        return kept

    monkeypatch.setattr(core, "keep_grant", keeps)
    cache.put("key", b"bytes")
    assert met == [False, True], "the first grant was void, and another was taken"
    assert cache.get("key") == b"bytes"


@pytest.mark.parametrize("size", [100, 100_000])
def test_what_is_mapped_under_the_old_history_is_not_told_to_a_master_with_the_new_one(
    master: FakeMaster, connect: Connect, size: int
) -> None:
    """I19, I11: its segments have the same numbers. A writer that its nodes have never given a number to is one whose
    end they cannot tell, and what it was granted stayed in quarantine for ever (seed 900229)."""
    cache = connect(master.address)
    starts_anew_at(m.GrantRanges, master)
    assert cache.put("key", b"k" * size)
    first, *later = master.asked(m.GrantRanges)
    assert first.attached
    assert later
    assert not {*first.attached} & {mapped for request in later for mapped in request.attached}
    assert cache.get("key") == b"k" * size


@pytest.fixture
def spoiled(master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client that was told not to verify; the bytes of "key" are not the ones that were put."""
    connect(master.address).put("key", b"what was put")
    _, segment, offset, size, _ = master.objects["key"]
    assert master.node is not None
    master.node.memory.segments[segment - 1].mapping.view[offset : offset + size] = b"newer bytes."
    places = master.segments
    monkeypatch.setattr(
        master, "segments", lambda: [msgspec.structs.replace(place, unverified=True) for place in places()]
    )
    return connect(master.address, verify=False, timeout=2)


def test_memory_that_a_restored_history_has_not_verified_is_compared_with_its_checksums_whatever_was_said(
    spoiled: Any,
) -> None:
    """I2: what lies in the range may be newer than the restored catalogue."""
    with pytest.raises(ChecksumMismatch):
        spoiled.get("key")
    assert spoiled.get_many(["key"]) == {}
    with pytest.raises(ChecksumMismatch), spoiled.view("key"):
        pass


def test_a_disk_that_is_not_verified_yet_costs_reads_of_memory_nothing(
    spoiled: Any, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be compared for hours, or it may be away."""
    monkeypatch.undo()
    disk = SegmentPlace(99, SegmentName("here", 7, 0), 4096, "127.0.0.1:1", "", "host", unverified=True)
    places = [*master.segments(), disk]
    monkeypatch.setattr(master, "segments", lambda: places)
    core = core_of(spoiled)
    core.segments.clear()
    core.bytes.enter_history(core.limits.log_id)
    assert spoiled.get_many(["key"]) == {"key": b"newer bytes."}, "it was told not to verify, and did not"


def test_memory_that_was_verified_may_be_looked_at_in_place(
    spoiled: Any, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the mark such a client takes the bytes as they are."""
    monkeypatch.undo()
    core = core_of(spoiled)
    core.segments.clear()
    core.bytes.enter_history(core.limits.log_id)
    with spoiled.view("key") as view:
        assert bytes(view) == b"newer bytes."


def test_an_idle_client_lets_go_of_memory_that_belongs_to_a_later_history(master: FakeMaster, connect: Connect) -> None:
    """I11: it is told by the node, without asking any master, and its life line ends."""
    cache = connect(master.address)
    cache.put("key", b"bytes")
    assert cache.get("key") == b"bytes"
    node = master.node
    assert node is not None
    node.attach.enter_history(8, [7])
    wait_until(lambda: node.attach.older_writers() == 0, what="the client has let go")
    assert core_of(cache).bytes.maps == {}
    assert core_of(cache).grants.by_id == {}
