"""HTTP as a load balancer, Prometheus, a script and a stranger see it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from holdfast.dashboard.access import GuardedApp
from holdfast.dashboard.http import build_app
from holdfast.dashboard.http_thread import serve_http
from tests.dashboard.fake_view import EVERYBODYS, FakeView, SameLoop

schema = schemathesis.openapi.from_asgi(
    "/api/v1/openapi.json", GuardedApp(build_app(FakeView(), SameLoop()), EVERYBODYS)
)


@schema.parametrize()
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
def test_every_answer_is_what_the_schema_says(case: schemathesis.Case) -> None:
    """I10: whatever is asked, an answer of the declared shape comes back."""
    case.call_and_validate()


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
def app(view: FakeView) -> GuardedApp:
    return GuardedApp(build_app(view, SameLoop()), EVERYBODYS)


@pytest.fixture
async def http(app: GuardedApp) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://master") as client:
        yield client


async def test_a_living_process_is_healthy_even_if_it_does_not_serve(view: FakeView, http: httpx.AsyncClient) -> None:
    view.unready = "it is a standby"
    assert (await http.get("/healthz")).json() == {"ok": True}


async def test_readiness_is_a_status_code_and_a_reason(view: FakeView, http: httpx.AsyncClient) -> None:
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "reason": ""})
    view.unready = "it is a standby"
    unready = await http.get("/readyz")
    assert (unready.status_code, unready.json()) == (503, {"ready": False, "reason": "it is a standby"})


async def test_metrics_come_from_the_view_s_own_registry(http: httpx.AsyncClient) -> None:
    answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "holdfast_puts_total 3.0" in answer.text


async def test_status_and_nodes_pass_on_more_than_is_declared(view: FakeView, http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/v1/status")).json() == view.status()
    assert (await http.get("/api/v1/nodes")).json() == {"nodes": view.nodes()}
    assert (await http.get("/api/v1/sessions")).json() == {"sessions": view.sessions("", 100)}


async def test_sessions_come_page_by_page(http: httpx.AsyncClient) -> None:
    first = (await http.get("/api/v1/sessions", params={"limit": 2})).json()["sessions"]
    rest = (await http.get("/api/v1/sessions", params={"after": first[-1]["name"]})).json()["sessions"]
    assert [one["name"] for one in first + rest] == [f"node-{number}" for number in range(5)]
    assert (await http.get("/api/v1/sessions?limit=1001")).status_code == 422


async def test_events_are_given_from_a_number_on(http: httpx.AsyncClient) -> None:
    first = (await http.get("/api/v1/events", params={"limit": 3})).json()["events"]
    assert [event["number"] for event in first] == [1, 2, 3]
    rest = (await http.get("/api/v1/events", params={"after": 3})).json()["events"]
    assert [event["number"] for event in rest] == [4, 5]
    assert (await http.get("/api/v1/events?limit=0")).status_code == 422


async def test_objects_come_page_by_page_and_each_once(view: FakeView, http: httpx.AsyncClient) -> None:
    seen, cursor, pages = [], 0, 0
    while pages == 0 or cursor:
        page = (await http.get("/api/v1/objects", params={"prefix": "key/", "cursor": cursor, "limit": 100})).json()
        seen += [one["key"] for one in page["objects"]]
        cursor, pages = page["cursor"], pages + 1
    assert seen == view.stored[""]
    assert pages == 3


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "cursor=-1", "prefix=" + "a" * 1025])
async def test_a_bad_query_is_refused(http: httpx.AsyncClient, query: str) -> None:
    assert (await http.get(f"/api/v1/objects?{query}")).status_code == 422


async def test_a_server_takes_any_free_port_and_gives_it_back(app: GuardedApp) -> None:
    server = await serve_http(app, "127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(base_url=f"http://{server.address}") as client:
            assert (await client.get("/healthz")).status_code == 200
    finally:
        await server.stop()
    host, port = server.address.split(":")
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((host, int(port)))


async def test_a_port_in_use_is_an_error_at_once(app: GuardedApp) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await serve_http(app, "127.0.0.1", taken.getsockname()[1])


async def test_stopping_ends_though_a_client_stays_connected(app: GuardedApp) -> None:
    """I10: a half-open connection cannot hold a master up."""
    server = await serve_http(app, "127.0.0.1", 0)
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"GET /healthz HT")
        await writer.drain()
        async with asyncio.timeout(30):
            await server.stop()
            assert await reader.read() == b""
    finally:
        writer.close()
