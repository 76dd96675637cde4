"""Who may ask what over HTTP: every role against every route, names, origins, places, tenants and headers."""

from __future__ import annotations

import asyncio
import base64
import math
import re
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fastapi import FastAPI, Response
from fastapi.routing import APIRoute
from prometheus_client import Gauge
from starlette.types import Message, Receive, Scope, Send

from holdfast.dashboard.access import (
    MOST_BODY_BYTES,
    PIECE_BYTES,
    Doorkeeper,
    GuardedApp,
    Shares,
    declared,
    names_of,
    needs,
)
from holdfast.dashboard.http import build_app
from holdfast.dashboard.mooncake_http import build_mooncake_app
from holdfast.dashboard.page_files import PAGE_FILES
from holdfast.dashboard.probes import add_probes, new_app
from holdfast.identity.identities import Entry, Identities, Identity, hash_of
from holdfast.identity.roles import Role, with_included
from tests.dashboard.fake_view import EVERYBODYS, PLACE, FakeView, SameLoop

OPEN = {"/healthz", "/readyz", *PAGE_FILES}
OF_OPERATORS = {"/api/v1/events"}
BOTH = [build_app(FakeView(), SameLoop()), build_mooncake_app(FakeView(), SameLoop())]


def entry(name: str, *roles: Role, tenant: str = "", not_after: float = math.inf) -> Entry:
    identity = Identity(name, with_included(roles), tenant)
    return Entry(identity, (hash_of(f"secret of {name}"),), not_after=not_after)


IDENTITIES = Identities(
    [
        *[entry(role.value, role) for role in Role],
        entry("nobody"),
        entry("red", Role.READER, tenant="red"),
        entry("old", Role.OPERATOR, not_after=1.0),
    ]
)


def asking(app: FastAPI, name: str = "", **headers: str) -> httpx.AsyncClient:
    if name:
        headers["authorization"] = f"Bearer secret of {name}"
    guarded = GuardedApp(app, Doorkeeper(IDENTITIES, hosts=frozenset({"master"})))
    return httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://master", headers=headers)


def routes(app: FastAPI) -> list[APIRoute]:
    found = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(found) == len(app.routes) > 5, "every route is one of ours: nothing is added by the framework"
    return found


@pytest.mark.parametrize("app", BOTH, ids=["dashboard", "mooncake"])
def test_every_route_declares_its_role(app: FastAPI) -> None:
    undeclared = [route.path for route in routes(app) if declared(route.endpoint) is None]
    assert undeclared == []
    openly = {route.path for route in routes(app) if declared(route.endpoint).role is None}  # type: ignore[union-attr]
    assert openly <= OPEN


async def test_a_route_that_declares_nothing_is_nobody_s() -> None:
    app = FastAPI()

    @app.get("/forgotten")
    async def forgotten() -> str:
        return "seen"

    async with asking(app, "operator") as http:
        assert (await http.get("/forgotten")).status_code == 403
        assert (await http.get("/docs")).status_code == 403  # The framework's own declare nothing either.
    guarded = GuardedApp(app, EVERYBODYS)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://master") as http:
        assert (await http.get("/forgotten")).status_code == 403


@pytest.mark.parametrize("name", ["", "wrong", "old", "nobody", *(role.value for role in Role)])
@pytest.mark.parametrize("app", BOTH, ids=["dashboard", "mooncake"])
async def test_every_role_against_every_route(app: FastAPI, name: str) -> None:
    async with asking(app, name) as http:
        for route in routes(app):
            if "GET" not in (route.methods or ()):
                continue
            status = (await http.get(route.path, params={"key": "key/1", "keys": "key/1"})).status_code
            if route.path in OPEN:
                expected = 200
            elif name in ("", "wrong", "old"):
                expected = 401
            elif name == "operator" or (name in ("reader", "writer") and route.path not in OF_OPERATORS):
                expected = 500 if route.path == "/query_segment" else 200  # There is no such segment.
            else:
                expected = 403
            assert status == expected, f"{name or 'a stranger'} asked for {route.path}"


@pytest.mark.parametrize("name", ["", "wrong", "old", "nobody", "red", *(role.value for role in Role)])
@pytest.mark.parametrize("build", [build_app, build_mooncake_app])
async def test_what_changes_something_is_for_operators_on_every_route(
    build: Callable[[FakeView, SameLoop], FastAPI], name: str
) -> None:
    """I20. By method, not by what the route declares: one that declares too little is found here."""
    view = FakeView()
    app = build(view, SameLoop())
    changes = [(method, route.path) for route in routes(app) for method in set(route.methods or ()) - {"GET", "HEAD"}]
    assert bool(changes) is (build is build_app)
    async with asking(app, name) as http:
        for method, path in changes:
            body = None if method == "DELETE" else {"mode": "open", "max_objects": 7}
            status = (await http.request(method, re.sub("{.*?}", "red", path), json=body)).status_code
            what = f"{name or 'a stranger'}: {method} {path}"
            if name == "operator":
                assert status not in (401, 403, 405), what
            else:
                assert status == (401 if name in ("", "wrong", "old") else 403), what
    assert bool(view.orders) is (name == "operator" and build is build_app), "only who may has changed anything"
    assert ("red" in view.tenants) is not bool(view.orders)


async def test_strangers_do_not_learn_which_paths_there_are() -> None:
    async with asking(BOTH[0]) as http:
        assert (await http.get("/api/v1/nothing")).status_code == 401
        assert (await http.post("/healthz")).status_code == 405
    async with asking(BOTH[0], "reader") as http:
        assert (await http.get("/api/v1/nothing")).status_code == 404


async def test_a_token_may_be_the_password_of_basic() -> None:
    shown = base64.b64encode(b"whoever:secret of reader").decode()
    async with asking(BOTH[0], authorization=f"Basic {shown}") as http:
        assert (await http.get("/api/v1/status")).status_code == 200
    for wrong in (f"Basic {shown[:-4]}", "Basic !", "Basic", "Bearer", "Digest secret of reader", ""):
        async with asking(BOTH[0], authorization=wrong) as http:
            refused = await http.get("/api/v1/status")
            assert refused.status_code == 401
            assert "Basic" in refused.headers["www-authenticate"]
    async with asking(BOTH[0], "reader") as http:
        twice = [("authorization", "Bearer secret of reader"), ("authorization", "Bearer x")]
        assert (await http.get("/api/v1/status", headers=twice)).status_code == 401


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("master", True),
        ("MASTER:7080", True),
        ("master.", True),
        ("localhost:7080", True),
        ("127.0.0.1:7080", True),
        ("10.1.2.3", True),
        ("[::1]:7080", True),
        ("attacker.example", False),
        ("attacker.example:7080", False),
        ("127.0.0.1.attacker.example", False),
        ("localhost.attacker.example", False),
        ("[::1", False),
        ("a b", False),
        ("", False),
    ],
)
async def test_a_page_whose_name_was_resolved_to_this_server_is_refused(host: str, is_own: bool) -> None:
    """DNS rebinding: a browser sends the name of the page."""
    guarded = GuardedApp(BOTH[0], Doorkeeper(Identities.of_everybody(), hosts=names_of(["master:7080", ""], " a, ")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://master") as http:
        assert (await http.get("/api/v1/status", headers={"host": host})).status_code == (200 if is_own else 421)
        assert (await http.get("/healthz", headers={"host": host})).status_code == 200, "load balancers use any name"


def test_names_come_from_the_addresses_and_the_setting() -> None:
    assert names_of(["Master:1", "0.0.0.0:2", ""], "One, two.,") == {"master", "0.0.0.0", "one", "two"}


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({}, True),
        ({"origin": "http://master"}, True),
        ({"origin": "http://master", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://attacker.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://master:81"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
    ],
)
async def test_a_page_of_another_origin_changes_nothing(headers: dict[str, str], is_own: bool) -> None:
    """A browser sends a form to any server, with the name of that server and what it knows of its user."""
    app, done = FastAPI(), []

    @app.post("/change")
    @needs(Role.OPERATOR)
    async def change() -> None:
        done.append(1)

    async with asking(app, "operator", **headers) as http:
        assert (await http.post("/change")).status_code == (200 if is_own else 403)
        assert bool(done) is is_own
        several = [*headers.items(), ("origin", "http://attacker.example")]
        assert (await http.post("/change", headers=several)).status_code == 403


async def test_boot_ids_and_places_are_for_operators() -> None:
    hidden = {*PLACE, "segment", "offset", "session"}
    for name, is_operator in (("reader", False), ("writer", False), ("operator", True)):
        async with asking(BOTH[0], name) as http:
            node = (await http.get("/api/v1/nodes")).json()["nodes"][0]
            stored = (await http.get("/api/v1/objects")).json()["objects"][0]
            session = (await http.get("/api/v1/sessions")).json()["sessions"][0]
        shown = {*node, *stored["replicas"][0], *session}
        assert shown & hidden == (hidden if is_operator else set())
        async with asking(BOTH[1], name) as http:
            segment = (await http.get("/get_segments_detail")).json()["segments"][0]
            place = (await http.get("/query_key", params={"key": "key/1"})).json()["data"][0]
            several = (await http.get("/batch_query_keys", params={"keys": "key/1"})).json()["data"]["key/1"]
        places = [segment["segment_id"], segment["te_endpoint"], place["buffer_address_"]]
        places += [place["transport_endpoint_"], several["values"][0]["buffer_address_"]]
        assert [bool(one) for one in places] == [is_operator] * 5


async def test_whose_entry_of_the_identities_is_wrong_is_for_operators() -> None:
    for name, is_operator in (("red", False), ("reader", False), ("operator", True)):
        async with asking(BOTH[0], name) as http:
            fault = (await http.get("/api/v1/status")).json()["identities_fault"]
            assert fault
            assert ("blue-app" in fault) is is_operator


async def test_a_tenant_sees_its_own_objects_and_figures() -> None:
    view = FakeView()
    view.stored = {"": ["common"], "red": ["reds"], "blue": ["blues"]}
    used = Gauge("holdfast_tenant_bytes", "", ["tenant"], registry=view.registry)
    for tenant in view.stored:
        used.labels(tenant or "default").set(7)
    app, other = build_app(view, SameLoop()), build_mooncake_app(view, SameLoop())
    for name, own in (("red", "red"), ("reader", "")):
        async with asking(app, name) as http:
            listed = (await http.get("/api/v1/objects")).json()["objects"]
            assert [one["key"] for one in listed] == view.stored[own]
            lines = [line for line in (await http.get("/metrics")).text.splitlines() if "tenant=" in line]
            assert lines == [f'holdfast_tenant_bytes{{tenant="{own or "default"}"}} 7.0']
        async with asking(other, name) as http:
            assert (await http.get("/get_all_keys")).text.splitlines() == view.stored[own]
            assert (await http.get("/query_key", params={"key": "blues"})).status_code == 404
    async with asking(app, "operator") as http:
        assert (await http.get("/metrics")).text.count("tenant=") == 3


async def test_clients_are_shown_to_their_tenant_and_revoked_by_operators() -> None:
    for name, shown in (("red", ["reds"]), ("reader", ["trainer"] * 2), ("operator", ["trainer", "trainer", "reds"])):
        async with asking(BOTH[0], name) as http:
            found = (await http.get("/api/v1/clients")).json()
            assert [one["name"] for one in found["clients"]] == shown
            assert found["total"] == len(shown)
            answer = await http.post("/api/v1/clients/trainer/revoke")
            assert answer.status_code == (200 if name == "operator" else 403)
            if name == "operator":
                assert answer.json() == {"revoked": 2}
                assert (await http.post("/api/v1/clients/nobody/revoke")).status_code == 404
    async with asking(BOTH[0]) as http:
        assert (await http.post("/api/v1/clients/trainer/revoke")).status_code == 401


async def test_tenants_are_shown_to_themselves_and_changed_by_operators() -> None:
    """I20: no quota without the operator's role."""
    app = build_app(FakeView(), SameLoop())
    for name, shown in (("red", ["red"]), ("reader", ["default"]), ("operator", ["default", "red"])):
        async with asking(app, name) as http:
            found = (await http.get("/api/v1/tenants")).json()["tenants"]
            assert [one["name"] for one in found] == shown
            assert (found[0]["used_bytes"], found[0]["request_rate"]) == (3, 1.5)
    for name, status in (("", 401), ("writer", 403), ("red", 403), ("node", 403), ("master", 403), ("operator", 200)):
        async with asking(app, name) as http:
            assert (await http.patch("/api/v1/tenants/red", json={"max_objects": 7})).status_code == status
            assert (await http.delete("/api/v1/tenants/nobody")).status_code == status


async def test_quotas_over_http() -> None:
    """Those that are not named stay; null resets one; the master says what is wrong with the others."""
    view = FakeView()
    async with asking(build_app(view, SameLoop()), "operator") as http:
        changed = await http.patch("/api/v1/tenants/blue", json={"limit_bytes": 1 << 40, "lease_share": None})
        assert (changed.status_code, changed.json()["limit_bytes"]) == (200, 1 << 40)
        unknown = await http.patch("/api/v1/tenants/blue", json={"speed": 3})
        assert (unknown.status_code, unknown.json()) == (409, {"detail": "'speed' is no quota"})
        assert (await http.patch("/api/v1/tenants/blue", json={"max_objects": -1})).status_code == 409
        for wrong in ({"max_objects": "7"}, {"max_objects": True}, {"max_objects": 1.5}, {"speed": "fast"}, [], "x"):
            assert (await http.patch("/api/v1/tenants/blue", json=wrong)).status_code == 422, wrong
        assert (await http.delete("/api/v1/tenants/blue")).json() == {"removed": 1}
        assert (await http.delete("/api/v1/tenants/blue")).json() == {"removed": 0}
        assert set(view.tenants) == {"default", "red"}


async def test_the_reason_of_readiness_is_for_those_who_may_read() -> None:
    view = FakeView()
    view.unready = "the log at 10.0.0.7 is away"
    app = build_app(view, SameLoop())
    for name, reason in (("", ""), ("node", ""), ("reader", view.unready)):
        async with asking(app, name) as http:
            answer = await http.get("/readyz")
            assert (answer.status_code, answer.json()["reason"]) == (503, reason)


async def test_every_answer_has_the_security_headers() -> None:
    async with asking(BOTH[0], "reader") as http:
        for path, status in (("/", 200), ("/metrics", 200), ("/none", 404), ("/api/v1/events", 403), ("/healthz", 200)):
            answer = await http.get(path)
            assert answer.status_code == status
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-store"


async def test_only_the_page_may_run_a_script_and_only_its_own() -> None:
    async with asking(BOTH[0], "reader") as http:
        for path in ("/", "/api/v1/objects", "/none"):
            policy = (await http.get(path)).headers.get_list("content-security-policy")
            assert len(policy) == 1
            assert ("script-src 'self'" in policy[0]) is (path == "/")
            assert "unsafe" not in policy[0]


async def test_browsers_are_not_told_to_ask_for_a_password_beside_the_page() -> None:
    """The page has a field for the token; `Basic` would make the browser ask as well."""
    async with asking(BOTH[0]) as http:
        of_page = await http.get("/api/v1/overview", headers={"x-holdfast-page": "1"})
        assert (of_page.status_code, of_page.headers["www-authenticate"]) == (401, "Bearer")
        assert "Basic" in (await http.get("/api/v1/overview")).headers["www-authenticate"]


def holding(shares: Shares) -> tuple[GuardedApp, asyncio.Event]:
    """An application whose `/slow` is under way until the event is set."""
    app, goes_on = new_app(), asyncio.Event()

    @app.get("/slow")
    @needs(Role.READER)
    async def slow() -> None:
        await goes_on.wait()

    add_probes(app, FakeView(), SameLoop())
    return GuardedApp(app, Doorkeeper(IDENTITIES, hosts=frozenset({"master"})), shares), goes_on


@pytest.mark.parametrize(
    ("under_way", "refused", "admitted"),
    [
        (["reader"] * 2, ["reader"], ["red", "operator"]),
        (["reader", "reader", "red"], ["reader", "red", "writer"], ["operator"]),
        (["reader", "operator", "operator", "operator"], ["reader", "red", "operator"], []),
    ],
)
async def test_each_has_a_share_of_the_requests_under_way(
    under_way: list[str], refused: list[str], admitted: list[str]
) -> None:
    """Whoever asks for more than that is refused, strangers take nobody's, and a probe is answered in any case."""
    guarded, goes_on = holding(Shares(of_all=4, of_others=3, of_one=2))

    def ask(name: str, path: str = "/slow") -> asyncio.Task[httpx.Response]:
        headers = {"authorization": f"Bearer secret of {name}"} if name else {}
        return asyncio.create_task(http.get(path, headers=headers))

    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://master") as http:
        held = [ask(name) for name in under_way]
        for name in refused:
            answer = await ask(name)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), name
        assert (await ask("")).status_code == 401
        assert (await ask("", "/healthz")).status_code == 200
        for name in admitted:
            held.append(one := ask(name))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not one.done(), name
        goes_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*held)] == [200] * len(held)
        assert (await ask(refused[0])).status_code == 200, "their shares are free again"


@pytest.mark.parametrize("declared_length", [True, False], ids=["with its length", "in chunks"])
async def test_a_body_is_refused_before_it_takes_memory(declared_length: bool) -> None:
    """I17. An application keeps a whole body before it looks at it."""
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * MOST_BODY_BYTES:
            sent += 16_384
            yield b" " * 16_384

    async with asking(BOTH[0], "operator") as http:
        headers = {"content-type": "application/json"}
        if declared_length:
            headers["content-length"] = str(100 * MOST_BODY_BYTES)
        answer = await http.patch("/api/v1/tenants/red", content=body(), headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    assert "nothing was changed" in answer.json()["detail"]
    assert sent <= 2 * MOST_BODY_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b'{"max_objects": NaN}',
        b'{"max_objects": -Infinity}',
        b'{"max_objects": "\\ud800"}',
        b'{"\\ud800": "x"}',
        b'{"\\ud800": 3}',
        b"[" * 50_000,
        b'{"max_objects": ' + b"9" * 5_000 + b"}",
    ],
)
async def test_what_json_cannot_repeat_is_refused_all_the_same(body: bytes) -> None:
    async with asking(build_app(FakeView(), SameLoop()), "operator") as http:
        headers = {"content-type": "application/json"}
        for method, path in (("PATCH", "/api/v1/tenants/red"), ("POST", "/api/v1/nodes/node-1/mode")):
            answer = await http.request(method, path, content=body, headers=headers)
            assert answer.status_code in (400, 409, 422), body
            assert answer.json()["detail"]


async def test_a_large_answer_is_sent_piece_by_piece() -> None:
    """So that it is under way for as long as its client takes it, and the connection holds no second copy."""
    app, pieces = new_app(), list[int]()
    content = bytes(range(256)) * 1_000

    @app.get("/large")
    @needs(Role.READER)
    async def large() -> Response:
        return Response(content)

    guarded = GuardedApp(app, EVERYBODYS)

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            pieces.append(len(message.get("body", b"")))
            await send(message)

        await guarded(scope, receive, count)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(counting), base_url="http://master") as http:
        assert (await http.get("/large")).content == content
    assert (len(pieces), max(pieces)) == (5, PIECE_BYTES)
