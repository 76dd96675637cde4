"""Every master knows how the others stand, and shows no entry that is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.core.rules import Rules
from holdfast.master.plan import Plan
from holdfast.master.status import standings
from holdfast.master.status.standings import STANDINGS, Standings, url_of
from holdfast.master.status.view import MasterView
from holdfast.messages.of_masters import TakeSnapshot
from holdfast.messages.requests import ChangeMode, Done, Failed
from holdfast.messages.shapes import Message
from tests.contract.stories import until_true
from tests.master.masters import running_master


def plan(name: str) -> Plan:
    return Plan(Rules(), "holdfast", f"{name}:7070", 5_000, again_seconds=0.02)


@pytest.mark.parametrize(
    ("http", "address", "encrypted", "url"),
    [
        ("127.0.0.1:7080", "10.0.0.1:7070", False, "http://127.0.0.1:7080/"),
        ("0.0.0.0:7080", "10.0.0.1:7070", False, "http://10.0.0.1:7080/"),
        ("[::]:7080", "[fd00::1]:7070", True, "https://[fd00::1]:7080/"),
    ],
)
def test_a_dashboard_is_linked_where_others_reach_it(http: str, address: str, encrypted: bool, url: str) -> None:
    assert url_of(http, address, encrypted) == url


async def test_each_master_shows_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standings, "RENEWED_SECONDS", 0.02)
    store = MemoryStore()
    first, second = MemoryCoordination(store), MemoryCoordination(store)
    async with running_master(first, plan("a"), tmp_path / "a", "a") as one:
        await until_true(lambda: one.role == "primary", "it leads")
        async with running_master(second, plan("b"), tmp_path / "b", "b") as other:
            shown, tasks = [Standings(one), Standings(other)], []
            for at, known in enumerate(shown):
                tasks.append(asyncio.create_task(known.run(f"http://{'ab'[at]}:7080/")))
            expected = [("a", "primary", False, "http://a:7080/"), ("b", "standby", True, "http://b:7080/")]

            def seen(known: Standings) -> list[tuple[str, str, bool, str]]:
                return [(standing.name, standing.role, standing.promotable, standing.url) for standing in known.all()]

            await until_true(lambda: [seen(known) for known in shown] == [expected] * 2, "both know both")
            # Whatever else lies there is shown by nobody, and ends nothing.
            for name, content in (("x", b"\xff"), ("y", b"{}"), ("z", b"x" * 10_000)):
                await first.publish(STANDINGS + name, content, 60_000)
            more = msgspec.json.encode({**msgspec.structs.asdict(shown[0].own()), "name": "c", "newer": 1})
            await first.publish(STANDINGS + "c", more, 60_000)
            await until_true(lambda: [one.name for one in shown[1].all()] == ["a", "b", "c"], "and another version's")
            # A primary that was killed says nothing more, and its last word stays for a while.
            dead = msgspec.structs.replace(shown[0].own(), name="0", epoch=shown[0].own().epoch - 1)
            await first.publish(STANDINGS + "0", msgspec.json.encode(dead), 60_000)
            await until_true(lambda: shown[1].all()[0].name == "0", "its last word is known")
            assert [one.role for one in shown[1].all()[:3]] == ["was primary", "primary", "standby"]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_the_overview_of_either_role_and_orders_as_over_rpc(tmp_path: Path) -> None:
    store, answers = MemoryStore(), list[Message]()
    async with running_master(MemoryCoordination(store), plan("a"), tmp_path / "a", "a") as one:
        await until_true(lambda: one.role == "primary", "it leads")
        async with running_master(MemoryCoordination(store), plan("b"), tmp_path / "b", "b") as other:
            primary, standby = MasterView(one), MasterView(other)
            await until_true(lambda: other.promotable()[0], "it follows")
            assert (primary.overview()["role"], standby.overview()["role"]) == ("primary", "standby")
            assert primary.overview()["nodes"] == standby.overview()["nodes"] == []
            assert primary.overview()["capacity_bytes"] == 0
            primary.order(TakeSnapshot(), answers.append)
            await until_true(lambda: bool(answers), "a snapshot is written")
            assert isinstance(answers.pop(), Done)
            assert [event["kind"] for event in primary.events(0, 10)][-1] == "snapshot"
            for view, code in ((primary, "unknown_node"), (standby, "not_leader")):
                view.order(ChangeMode("nobody", "draining"), answers.append)
                await until_true(lambda: bool(answers), "it is refused")
                refused = answers.pop()
                assert isinstance(refused, Failed)
                assert refused.code == code
            assert "standby" in standby.explain("k", "")["reasons"][0]
            assert primary.explain("k", "")["stat"] is None
