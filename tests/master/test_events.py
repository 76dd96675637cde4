"""The history of events at a master: changed settings among them, each once."""

from __future__ import annotations

from holdfast.master.events import EventHistory
from holdfast.messages import requests as q
from tests.core.world import World


def test_a_changed_setting_is_an_event_and_a_new_epoch_is_none() -> None:
    history, world = EventHistory(), World()
    world.note = history.note
    world.ask(q.SettingsInForce, q.ChangeSettings({"lease_ttl_ms": 60_000}))
    world.ask(q.SettingsInForce, q.ChangeSettings({"lease_ttl_ms": 60_000, "high_watermark": 0.5}))
    world.engine.start_epoch(2, world.now)
    world.ask(q.SettingsInForce, q.ChangeSettings({"lease_ttl_ms": None}))
    told = [(event.kind, event.subject, event.text) for event in history.after(0, 100)]
    assert told == [
        ("setting_changed", "lease_ttl_ms", "60000"),
        ("setting_changed", "high_watermark", "0.5"),
        ("setting_changed", "lease_ttl_ms", "as the masters were started with"),
    ]
