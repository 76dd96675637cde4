"""The operator's orders over HTTP, and the story of a key."""

from __future__ import annotations

import pytest

from holdfast.dashboard.http import build_app
from holdfast.messages.of_masters import HandOver, TakeSnapshot
from holdfast.messages.requests import ChangeMode
from tests.dashboard.fake_view import FakeView, SameLoop
from tests.dashboard.test_access import asking

ORDERS = {
    "/api/v1/failover": HandOver(),
    "/api/v1/snapshot": TakeSnapshot(),
    "/api/v1/nodes/node-1/mode": ChangeMode("node-1", "draining", True),
}
BODY = {"mode": "draining", "evict": True}


@pytest.mark.parametrize("path", ORDERS)
@pytest.mark.parametrize(("name", "status"), [("operator", 200), ("writer", 403), ("node", 403), ("", 401)])
async def test_an_order_is_the_operator_s(path: str, name: str, status: int) -> None:
    view = FakeView()
    async with asking(build_app(view, SameLoop()), name) as http:
        assert (await http.post(path, json=BODY)).status_code == status
    assert view.orders == ([ORDERS[path]] if status == 200 else [])


async def test_a_page_of_another_origin_orders_nothing() -> None:
    view = FakeView()
    async with asking(build_app(view, SameLoop()), "operator", origin="http://elsewhere.example") as http:
        assert [(await http.post(path, json=BODY)).status_code for path in ORDERS] == [403] * 3
    assert view.orders == []


async def test_nobody_hands_over_to_nobody() -> None:
    view = FakeView()
    view.has_standby = False
    async with asking(build_app(view, SameLoop()), "operator") as http:
        refused = await http.post("/api/v1/failover")
    assert refused.status_code == 409
    assert "master-2: it is behind" in refused.json()["detail"]
    assert view.orders == []


async def test_a_refusal_of_the_master_s_is_passed_on() -> None:
    async with asking(build_app(FakeView(), SameLoop()), "operator") as http:
        refused = await http.post("/api/v1/nodes/other/mode", json={"mode": "draining"})
        assert (refused.status_code, "'other'" in refused.json()["detail"]) == (409, True)
        for wrong in ({}, {"mode": "gone"}, {"mode": "open", "more": 1}):
            assert (await http.post("/api/v1/nodes/node-1/mode", json=wrong)).status_code == 422


async def test_a_key_is_explained_within_one_s_tenant_and_without_places() -> None:
    view = FakeView()
    view.stored = {"": ["a key"], "red": ["reds"]}
    app = build_app(view, SameLoop())
    async with asking(app, "red") as http:
        own = (await http.get("/api/v1/explain", params={"key": "reds"})).json()
        assert own["reasons"] == ["it is new"]
        assert "offset" not in own["stat"]["replicas"][0]
        assert (await http.get("/api/v1/explain", params={"key": "a key"})).json()["stat"] is None
        assert (await http.get("/api/v1/explain")).status_code == 422
    async with asking(app, "operator") as http:
        assert "offset" in (await http.get("/api/v1/explain?key=a%20key")).json()["stat"]["replicas"][0]
