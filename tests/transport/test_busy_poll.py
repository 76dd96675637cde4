"""A loop that looks for the next request: only for a while, not while the log needs the interpreter, not in a crowd."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.transport import spin
from holdfast.transport.spin import LOOP_CROWDED_SECONDS, UNCROWDED_SECONDS, BusyPoll


class Turned(asyncio.AbstractEventLoop):
    """A loop that the test turns by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[..., Any]] = []
        self.later: list[tuple[float, Callable[..., Any]]] = []

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        self.later.append((delay, callback))

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        self.giving_way_takes = 1e-6
        self.looks = 0
        self.log_waits = False
        monkeypatch.setattr(spin, "now_seconds", lambda: self.now)
        monkeypatch.setattr(os, "sched_yield", self._give_way)
        self.loop = Turned()

    def _give_way(self) -> None:
        self.looks += 1
        self.now += self.giving_way_takes

    def lookout(self, seconds: float) -> BusyPoll:
        return BusyPoll(self.loop, seconds, lambda: self.log_waits)


def test_it_looks_for_a_while_after_each_answer_and_then_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    watch = world.lookout(10e-6)
    watch.stay_awake()
    watch.stay_awake()
    for _ in range(100):
        world.loop.turn()
    assert 9 <= world.looks <= 11, "10 us of looks that take one each"
    assert not world.loop.soon, "the loop may sleep"
    watch.stay_awake()
    assert len(world.loop.soon) == 1, "and looks again after the next answer"


def test_what_is_heard_while_it_looks_keeps_it_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    watch = world.lookout(10e-6)
    for _ in range(50):
        watch.stay_awake()
        world.loop.turn()
    assert world.looks == 50


def test_it_never_looks_where_that_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.lookout(0.0).stay_awake()
    assert not world.loop.soon


def test_it_does_not_look_while_the_log_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.log_waits = True
    watch = world.lookout(10e-6)
    watch.stay_awake()
    world.loop.turn()
    assert (world.looks, world.loop.soon) == (0, [])


def test_in_a_crowd_it_sleeps_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.giving_way_takes = 2 * LOOP_CROWDED_SECONDS
    watch = world.lookout(100e-6)
    watch.stay_awake()
    world.loop.turn()
    watch.stay_awake()
    assert (world.looks, world.loop.soon) == (1, [])
    [(delay, rested)] = world.loop.later
    assert delay == UNCROWDED_SECONDS
    rested()
    watch.stay_awake()
    assert len(world.loop.soon) == 1
