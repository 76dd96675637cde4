"""The stream of a dashboard: what it tells to whom, how many there are, and when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from holdfast.dashboard import live
from holdfast.dashboard.access import Doorkeeper, GuardedApp, Shares
from holdfast.dashboard.http import build_app
from holdfast.dashboard.http_thread import HttpThread, serve_http
from holdfast.dashboard.live import Live, SharedAnswer
from holdfast.errors import Busy
from holdfast.identity.identities import Identities, Identity
from holdfast.identity.roles import Role, with_included
from tests.dashboard.fake_view import EVERYBODYS, PLACE, FakeView, SameLoop
from tests.dashboard.test_access import entry

OPERATOR = Identity("operator", with_included([Role.OPERATOR]))
READER = Identity("reader", with_included([Role.READER]), tenant="red")


def told(events: list[bytes]) -> list[tuple[str, dict[str, Any]]]:
    lines = [event.decode().removesuffix("\n\n").split("\n") for event in events]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in lines]


async def streamed(view: FakeView, asker: Identity) -> dict[str, dict[str, Any]]:
    return dict(told([event async for event in Live(view, SameLoop()).stream(asker, lambda: True)]))


async def test_it_begins_with_who_asks_and_ends_when_the_master_stops() -> None:
    found = await streamed(FakeView(), OPERATOR)
    assert list(found) == ["asker", "overview", "stopping"]
    assert found["asker"] == {"name": "operator", "roles": ["operator", "reader", "writer"], "tenant": ""}


async def test_operators_see_all_and_others_their_tenant_and_no_places() -> None:
    everything = (await streamed(FakeView(), OPERATOR))["overview"]
    own = (await streamed(FakeView(), READER))["overview"]
    assert set(PLACE) <= set(everything["nodes"][0])
    assert not set(PLACE) & set(own["nodes"][0])
    assert [one["name"] for one in everything["tenants"]] == ["default", "red", "blue"]
    assert [one["name"] for one in own["tenants"]] == ["red"]


@pytest.mark.parametrize(("asker", "is_told"), [(OPERATOR, True), (READER, False)])
async def test_memory_is_told_to_all_and_events_to_operators(
    asker: Identity, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.001)
    view = FakeView()
    view.stopping = False
    found: dict[str, list[dict[str, Any]]] = {}
    async for event in Live(view, SameLoop()).stream(asker, lambda: True):
        [(kind, content)] = told([event])
        found.setdefault(kind, []).append(content)
        if len(found.get("overview", [])) > 20 and "memory" in found:
            break
    assert found["memory"][0]["segments"][0]["parts"] == {"used": [4, 3]}
    assert len(found["memory"]) == 1, "it is told once, not at every look"
    numbers = [event["number"] for content in found.get("events", []) for event in content["events"]]
    assert numbers == ([1, 2, 3, 4, 5] if is_told else []), "each once"


async def test_it_ends_after_its_time_and_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.001)
    monkeypatch.setattr(live, "STREAM_SECONDS", 0.05)
    view = FakeView()
    view.stopping = False
    async with asyncio.timeout(60):
        assert len([event async for event in Live(view, SameLoop()).stream(READER, lambda: True)]) > 1
        assert len([event async for event in Live(view, SameLoop()).stream(READER, lambda: False)]) == 1


async def test_a_master_that_is_busy_is_trouble_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.001)
    view, answers = FakeView(), iter([Busy("the master did not answer"), None])
    answer = view.overview

    def overview() -> dict[str, Any]:
        error = next(answers)
        if error is not None:
            raise error
        return answer()

    monkeypatch.setattr(view, "overview", overview)
    watched = Live(view, SameLoop())
    watched.overview = SharedAnswer(lambda: SameLoop().ask(view.overview), 0)
    found = told([event async for event in watched.stream(READER, lambda: True)])
    assert [kind for kind, _ in found] == ["asker", "trouble", "overview", "stopping"]


def counting(began: list[int], go: asyncio.Event) -> Callable[[], Awaitable[int]]:
    async def ask() -> int:
        began.append(1)
        await go.wait()
        return len(began)

    return ask


async def test_all_who_watch_share_one_answer() -> None:
    began: list[int] = []
    go = asyncio.Event()
    shared = SharedAnswer(counting(began, go), fresh_seconds=600)
    waiting = [asyncio.create_task(shared.get()) for _ in range(50)]
    await asyncio.sleep(0)
    assert shared.latest() is None, "it does not wait"
    waiting[0].cancel()
    go.set()
    assert await asyncio.gather(*waiting[1:]) == [1] * 49, "who gives up takes nothing from the others"
    assert (await shared.get(), shared.latest(), len(began)) == (1, 1, 1)


async def test_an_answer_is_taken_again_when_it_is_old_and_after_a_failure() -> None:
    began: list[int] = []
    go = asyncio.Event()
    go.set()
    old = SharedAnswer(counting(began, go), fresh_seconds=0)
    assert [await old.get(), await old.get()] == [1, 2]

    async def fail() -> int:
        began.append(1)
        raise Busy("not now")

    failing = SharedAnswer(fail, fresh_seconds=0)
    for _ in range(2):
        with pytest.raises(Busy):
            await failing.get()
    assert len(began) == 4


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[FakeView, HttpThread]]:
    monkeypatch.setattr(live, "STREAMS", Shares(of_all=4, of_others=3, of_one=2))
    view = FakeView()
    view.stopping = False
    identities = Identities([entry(name, Role.READER) for name in ("reader", "other")] + [entry("boss", Role.OPERATOR)])
    app = GuardedApp(build_app(view, SameLoop()), Doorkeeper(identities))
    server = await serve_http(app, "127.0.0.1", 0)
    yield view, server
    view.stopping = True
    await server.stop()


async def test_streams_are_few_and_end_when_the_master_stops(watched: tuple[FakeView, HttpThread]) -> None:
    """I17: however many pages are open, probes and programs find a place; and no page holds the master up."""
    view, server = watched
    headers = {"authorization": "Bearer secret of reader"}
    async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60, headers=headers) as http:
        async with http.stream("GET", "/api/v1/stream") as first, http.stream("GET", "/api/v1/stream") as second:
            assert first.headers["content-type"].startswith("text/event-stream")
            pieces, others = first.aiter_text(), second.aiter_text()
            assert "event: asker" in await anext(pieces)
            assert "event: asker" in await anext(others)
            refused = await http.get("/api/v1/stream")
            assert (refused.status_code, "pages watch" in refused.json()["detail"]) == (503, True)
            assert (await http.get("/healthz")).status_code == 200
            view.stopping = True
            async with asyncio.timeout(60):
                ends = [piece async for piece in pieces][-1], [piece async for piece in others][-1]
            assert all("event: stopping" in end for end in ends)
        async with asyncio.timeout(60):
            while (await http.get("/api/v1/stream")).status_code != 200:  # noqa: ASYNC110 - The server counts down.
                await asyncio.sleep(0.01)


async def test_streams_of_others_leave_some_for_operators(watched: tuple[FakeView, HttpThread]) -> None:
    _, server = watched
    async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60) as http, AsyncExitStack() as stack:
        found, streams = [], []
        for name in ("reader", "reader", "reader", "other", "other", "boss", "boss"):
            headers = {"authorization": f"Bearer secret of {name}"}
            opened = await stack.enter_async_context(http.stream("GET", "/api/v1/stream", headers=headers))
            found.append(opened.status_code)
            streams.append(opened.aiter_text())
            if opened.status_code == 200:  # It is counted from before its first event.
                assert "event: asker" in await anext(streams[-1])
    assert found == [200, 200, 503, 200, 503, 200, 503]


async def test_a_stranger_gets_no_stream() -> None:
    guarded = GuardedApp(build_app(FakeView(), SameLoop()), Doorkeeper(Identities([entry("reader", Role.READER)])))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://127.0.0.1") as http:
        assert (await http.get("/api/v1/stream")).status_code == 401


async def test_the_memory_is_counted_step_by_step_and_once_for_all() -> None:
    view = FakeView()
    guarded = GuardedApp(build_app(view, SameLoop()), EVERYBODYS)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://master") as http:
        for _ in range(3):
            assert (await http.get("/api/v1/memory")).json()["segments"][0]["parts"] == {"used": [4, 3]}
    assert view.surveys == 1
