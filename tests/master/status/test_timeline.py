"""Every master has the events of all of them, also of those that have died, and of its own earlier life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.core.primary.object_counts import EvictionReason
from holdfast.core.rules import Rules
from holdfast.ids import COPIES
from holdfast.instant import now_ms
from holdfast.master.events import PUBLISHED_EVENTS, EventHistory, RecentEvent
from holdfast.master.plan import Plan
from holdfast.master.roles.master import Master
from holdfast.master.status import timeline
from holdfast.master.status.timeline import EVENTS, MOST_BYTES, Timeline
from holdfast.messages.requests import ChangeSettings
from tests.contract.stories import until_true
from tests.master.masters import running_master


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "READ_SECONDS", 0.02)
    monkeypatch.setattr(timeline, "SPACING_SECONDS", 0.01)


@asynccontextmanager
async def telling_master(store: MemoryStore, folder: Path, name: str) -> AsyncIterator[Master]:
    """A master that exchanges its events with the others of the store."""
    plan = Plan(Rules(), "holdfast", f"{name}:7070", 5_000, again_seconds=0.02)
    async with running_master(MemoryCoordination(store), plan, folder / name, name) as master:
        task = asyncio.create_task(Timeline(master).run())
        try:
            yield master
        finally:
            task.cancel()
            await asyncio.wait([task])


def told(master: Master, kind: str) -> list[tuple[str, str, str]]:
    """Who noted an event of this kind, about what, and its text."""
    return [(one.master, one.subject, one.text) for one in master.events.after(0, 1_000) if one.kind == kind]


def change(primary: Master, lease_ttl_ms: int) -> None:
    assert primary.engine is not None
    primary.engine.handle(ChangeSettings({"lease_ttl_ms": lease_ttl_ms}), COPIES, 0, now_ms())


async def test_a_new_primary_has_the_events_of_the_one_before(tmp_path: Path) -> None:
    store = MemoryStore()
    async with telling_master(store, tmp_path, "b") as other:
        await until_true(lambda: other.role == "primary", "it leads")
        async with telling_master(store, tmp_path, "a") as one:
            await until_true(lambda: one.promotable()[0], "it follows")
            other.hand_over()
            await until_true(lambda: one.role == "primary", "it takes over")
            one.events.add("node_draining", "node-1", "", now_ms())
            await one.snapshot()
            await until_true(lambda: bool(told(other, "snapshot")), "the events are exchanged")
        await until_true(lambda: other.role == "primary", "it leads again")
        await until_true(lambda: [who for who, _, _ in told(other, "primary")] == ["b", "a", "b"], "all three terms")
        assert told(other, "node_draining") == [("a", "node-1", "")], "once, though it was read many times"
        assert [who for who, _, text in told(other, "snapshot") if "log through batch" in text] == ["a"]
        # Started again, a master has its own events, and those that others noted meanwhile.
        async with telling_master(store, tmp_path, "a") as again:
            await until_true(lambda: told(again, "node_draining") == [("a", "node-1", "")], "its own of earlier")
            await until_true(lambda: len(told(again, "primary")) == 3, "and the others'")
            again.events.add("waiting", "a", "for a reason", now_ms())
            await until_true(lambda: bool(told(other, "waiting")), "it goes on")
            assert told(other, "node_draining") == [("a", "node-1", "")], "its new value displaced nothing"


async def test_a_change_that_a_primary_had_no_time_to_tell_of_is_told_by_the_next(tmp_path: Path) -> None:
    """It is acknowledged, so it is in the log; its standby has applied it."""
    store = MemoryStore()
    async with telling_master(store, tmp_path, "b") as other:
        await until_true(lambda: other.role == "primary", "it leads")
        plan = Plan(Rules(), "holdfast", "a:7070", 5_000, again_seconds=0.02)
        async with running_master(MemoryCoordination(store), plan, tmp_path / "a", "a") as mute:
            await until_true(lambda: mute.promotable()[0], "it follows")
            change(other, 60_000)
            await until_true(lambda: mute.standby.state.changed == {"lease_ttl_ms": 60_000}, "it is followed")
            other.hand_over()
            await until_true(lambda: mute.role == "primary" and other.promotable()[0], "it takes over")
            change(mute, 70_000)
            engine = mute.engine
            assert engine is not None
            await until_true(lambda: other.standby.state.index == engine.state.index, "all of it is followed")
        await until_true(lambda: other.role == "primary", "it leads again")
        await until_true(lambda: len(told(other, "setting_changed")) == 2, "both changes are told")
        assert told(other, "setting_changed") == [("b", "lease_ttl_ms", "60000"), ("b", "lease_ttl_ms", "70000")]


async def test_a_value_that_is_none_of_ours_ends_nothing_and_shows_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    others = MemoryCoordination(store)
    garbage = {"w": b"\xff", "x": b"{}", "y": b'[{"date_ms":"now"}]', "z": b"[" + b" " * MOST_BYTES + b"]"}
    for name, content in garbage.items():
        await others.publish(EVENTS + name, content, 60_000)
    newer = [{"date_ms": 5, "kind": "primary", "subject": "v", "text": "epoch 1", "colour": "red"}]
    async with telling_master(store, tmp_path, "a") as one:
        await others.publish(EVENTS + "v", msgspec.json.encode(newer), 60_000)
        await until_true(lambda: ("v", "v", "epoch 1") in told(one, "primary"), "another version's is shown")
        assert {event.master for event in one.events.after(0, 1_000)} <= {"a", "v"}
    await others.close()


async def test_evictions_are_one_event_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "EVICTIONS_MS", 300)
    async with telling_master(MemoryStore(), tmp_path, "a") as one:
        await until_true(lambda: one.engine is not None, "it leads")
        assert one.engine is not None
        counts = one.engine.primary.counts
        counts.evicted.update({EvictionReason.PUT: 3, EvictionReason.WATERMARK: 1_500})
        counts.evicted_bytes.update({EvictionReason.PUT: 30, EvictionReason.WATERMARK: 9_000})
        await until_true(lambda: bool(told(one, "evictions")), "they are told")
        counts.evicted[EvictionReason.QUOTA] += 2
        counts.evicted_bytes[EvictionReason.QUOTA] += 64
        await until_true(lambda: len(told(one, "evictions")) == 2, "the next ones, too")
        assert [text for _, _, text in told(one, "evictions")] == [
            "1,503 objects, 9,030 bytes: 1,500 by watermark, 3 by put",
            "2 objects, 64 bytes: 2 by quota",
        ]


def test_many_events_of_one_kind_displace_no_other() -> None:
    """And the dates of one master's events differ, though its calendar stands still."""
    history = EventHistory("a", calendar=lambda: 1_000.0)
    history.add("primary", "a", "epoch 1", 0)
    for number in range(3_000):
        history.add("session_created", f"node-{number}", "", number)
    assert [(one.kind, one.subject) for one in history.own()][:2] == [
        ("primary", "a"),
        ("session_created", f"node-{3_000 - PUBLISHED_EVENTS + 1}"),
    ]
    assert len({one.date_ms for one in history.own()}) == PUBLISHED_EVENTS
    assert [one.number for one in history.after(2_999, 10)] == [3_000, 3_001]
    assert len(history.after(0, 5_000)) == 1_000


def test_a_reader_gets_late_news_of_old_events_by_their_number() -> None:
    history = EventHistory("a", calendar=lambda: 1_000.0)
    history.add("primary", "a", "epoch 2", now_ms())
    [own] = history.after(0, 10)
    history.adopt(RecentEvent(0, 0, "primary", "b", "epoch 1", "b", 400_000))
    adopted = now_ms()
    [late] = history.after(own.number, 10)
    assert late.master == "b"
    assert own.at <= late.at + 600_000 <= adopted, "600 s before it was adopted"
    assert history.after(0, 1) == [own], "the newest by its time"


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_is_not_lost_when_an_event_is_noted_in_the_same_moment(
    turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "READ_SECONDS", 60.0)
    monkeypatch.setattr(timeline, "SPACING_SECONDS", 0.0)
    plan = Plan(Rules(), "holdfast", "a:7070", 5_000, again_seconds=0.02)
    async with running_master(MemoryCoordination(MemoryStore()), plan, tmp_path, "a") as master:
        await until_true(lambda: master.role == "primary", "it leads")
        task = asyncio.create_task(Timeline(master).run())
        await until_true(lambda: not master.events.added.is_set(), "its events are published")
        for _ in range(100):  # Until it waits for the next event.
            await asyncio.sleep(0)
        master.events.added.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        ended, _ = await asyncio.wait([task], timeout=10)
        task.cancel()
        assert ended, "it went on"
