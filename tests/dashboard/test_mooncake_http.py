"""The HTTP face of a Mooncake master, as SGLang, operators' scripts and dashboards read it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client import Counter, Gauge

from holdfast.dashboard.access import GuardedApp
from holdfast.dashboard.mooncake_http import build_mooncake_app
from tests.dashboard.fake_view import EVERYBODYS, FakeView, SameLoop


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
async def http(view: FakeView) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(GuardedApp(build_mooncake_app(view, SameLoop()), EVERYBODYS))
    async with httpx.AsyncClient(transport=transport, base_url="http://master") as client:
        yield client


async def test_segments_are_nodes(http: httpx.AsyncClient) -> None:
    assert (await http.get("/get_all_segments")).text == "node-1\n"
    detail = (await http.get("/get_segments_detail")).json()
    assert detail["total_segments"] == 1
    assert detail["segments"][0]["segment_name"] == "node-1"
    assert detail["segments"][0]["allocator_usage_percent"] == 50
    known = await http.get("/query_segment", params={"segment": "node-1"})
    assert (known.status_code, known.text) == (200, "node-1\nUsed(bytes): 1\nCapacity(bytes) : 2\n")
    unknown = await http.get("/query_segment", params={"segment": "nobody:1"})
    assert (unknown.status_code, unknown.text) == (500, "Failed to query segment")


async def test_keys_of_other_tenants_are_not_listed(view: FakeView, http: httpx.AsyncClient) -> None:
    view.stored[""] = ["plain", "|team-a|hidden", "|default||odd"]
    assert (await http.get("/get_all_keys")).text.splitlines() == ["plain", "|odd"]


async def test_all_keys_come_though_they_are_many(view: FakeView, http: httpx.AsyncClient) -> None:
    view.stored[""] = [f"key/{number}" for number in range(2_500)]
    assert len((await http.get("/get_all_keys")).text.splitlines()) == 2_500


async def test_a_key_has_its_replicas_in_memory(view: FakeView, http: httpx.AsyncClient) -> None:
    there = await http.get("/query_key", params={"key": "key/1"})
    place = {"size_": 10, "buffer_address_": 64, "protocol_": "tcp", "transport_endpoint_": "node-1"}
    assert there.json() == {"success": True, "data": [place]}
    missing = await http.get("/query_key", params={"key": "nope"})
    assert (missing.status_code, missing.json()["error_code"]) == (404, -704)


async def test_several_keys_are_answered_by_name(http: httpx.AsyncClient) -> None:
    answer = (await http.get("/batch_query_keys", params={"keys": "key/1,nope"})).json()
    assert answer["data"]["key/1"]["ok"] is True
    assert answer["data"]["nope"] == {
        "ok": False,
        "error": "OBJECT_NOT_FOUND",
        "values": None,
        "disk_values": None,
        "local_disk_values": None,
        "nof_values": None,
    }
    assert (await http.get("/batch_query_keys")).status_code == 400


async def test_roles_are_leader_and_standby(view: FakeView, http: httpx.AsyncClient) -> None:
    assert (await http.get("/role")).text == "leader"
    assert (await http.get("/ha_status")).text == "serving"
    assert (await http.get("/leader")).json() == {
        "present": True,
        "leader_address": "127.0.0.1:7070",
        "view_version": 1,
    }
    assert (await http.get("/health")).json()["service_ready"] is True
    view.unready = "no"
    assert (await http.get("/health")).json()["service_ready"] is False


async def test_metrics_have_the_names_of_mooncake_s_dashboards(view: FakeView, http: httpx.AsyncClient) -> None:
    Gauge("holdfast_used_bytes", "", registry=view.registry).set(7)
    asked = Counter("holdfast_requests", "", ["verb"], registry=view.registry)
    asked.labels("exists").inc(3)
    asked.labels("locate").inc(2)
    evicted = Counter("holdfast_evicted_objects", "", ["reason"], registry=view.registry)
    evicted.labels("put").inc(5)
    evicted.labels("quota").inc(1)
    Counter("holdfast_failures", "", ["code"], registry=view.registry).labels("no_room").inc(4)
    lines = (await http.get("/metrics")).text.splitlines()
    for line in (
        "master_allocated_bytes 7.0",
        "master_evicted_key_count 6.0",
        "master_exist_key_requests_total 3.0",
        "master_batch_get_replica_list_requests_total 2.0",
        "master_put_start_requests_total 0.0",
        "master_put_start_alloc_failures_total 4.0",
        'segment_total_capacity_bytes{segment="node-1"} 2.0',
    ):
        assert line in lines
