"""A master's view without a master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from holdfast.core.state.tenants import DEFAULT_NAME, Tenant
from holdfast.core.tenants import QUOTAS as TENANT_QUOTAS
from holdfast.dashboard.access import Doorkeeper
from holdfast.errors import BadValue, UnknownClient, UnknownNode
from holdfast.identity.identities import Identities
from holdfast.messages.of_masters import ClientInfo, ClientList
from holdfast.messages.of_tenants import TenantInfo, TenantList
from holdfast.messages.requests import ChangeMode, Done
from holdfast.messages.shapes import Message
from holdfast.node.metrics import DirectCalls
from holdfast.wire.codec import failed

EVERYBODYS = Doorkeeper(Identities.of_everybody(), hosts=frozenset({"master", "testserver"}))


class SameLoop(DirectCalls):
    """Calls of a server that runs in the loop of its master."""


PLACE = {"host": "here", "boot": "00ff", "data_address": "127.0.0.1:7071"}


REPLICAS = [
    {"kind": kind, "node": "node-1", "segment": 7, "offset": offset, "size_bytes": 64}
    for kind, offset in (("MEMORY", 64), ("DISK", 0))
]


CLIENTS = [
    ClientInfo(f"{number:010x}", name, tenant, "client", "10.0.0.7:5000", 0, 1, 2, 64, 3, 1.5, 200.0, 5)
    for number, (name, tenant) in enumerate([("trainer", ""), ("trainer", ""), ("reds", "red")])
]


FIGURES: dict[str, Any] = {
    "alone": False,
    "waits": "",
    "insecure": [],
    "version": "1",
    "uptime_ms": 5,
    "index": 7,
    "durable_index": 7,
    "durability": "durable",
    "lease_sync": "off",
    "connections": 1,
    "capacity_bytes": 8,
    "free_bytes": 1,
    "sessions": {"safe": 1},
    "requests": {"locate": 3},
    "latencies": {"locate": [1, 3, 3]},
    "latency_bounds_seconds": [0.000008, 0.000016],
}
QUOTAS = dict.fromkeys(["used_bytes", "limit_bytes", "guaranteed_bytes", "objects", "clients", "evicted", "refused"], 7)


class FakeSurvey:
    """Counted in three steps."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> bool:
        self.steps += 1
        return self.steps < 3

    def found(self) -> dict[str, Any]:
        part = {"node": "node-1", "number": 0, "size_bytes": 8, "part_bytes": 4, "parts": {"used": [4, self.steps]}}
        return {"kinds": ["used"], "segments": [part]}


def tenant_info(name: str, **quotas: Any) -> TenantInfo:
    defaults = {quota: getattr(Tenant(0, ""), quota) for quota in TENANT_QUOTAS}
    held = dict.fromkeys(("used_bytes", "objects", "pinned_bytes", "leased_bytes", "clients", "evicted", "refused"), 3)
    return TenantInfo(name=name, number=1, **(defaults | quotas), **held, request_rate=1.5)


class FakeView:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Counter("holdfast_puts", "Puts.", registry=self.registry).inc(3)
        self.unready = ""
        self.name = "master-1"
        self.stored = {"": [f"key/{number}" for number in range(250)]}
        """Tenant -> its keys."""
        self.stopping = True
        """A stream ends with its first overview."""
        self.has_standby = True
        self.surveys = 0
        self.orders: list[Message] = []
        self.tenants = {DEFAULT_NAME: tenant_info(DEFAULT_NAME), "red": tenant_info("red")}

    def keys_of(self, tenant: str) -> list[str]:
        return self.stored.get(tenant, [])

    def status(self) -> dict[str, Any]:
        return {
            "cluster": "holdfast",
            "name": self.name,
            "role": "primary",
            "epoch": 1,
            "log_index": 7,
            "applied_index": 7,
            "durable_index": 7,
            "promotable": False,
            "promotable_reason": "it is the primary",
            "objects": len(self.stored[""]),
            "used_bytes": 1,
            "capacity_bytes": 2,
            "digest": "0" * 16,
            "leader": "127.0.0.1:7070",
            "uptime_ms": 5,
            "identities_fault": "entry 3 (blue-app) is wrong",
        }

    def nodes(self) -> list[dict[str, Any]]:
        return [{"name": "node-1", "available": True, "capacity_bytes": 2, "used_bytes": 1, **PLACE}]

    def sessions(self, after: str, limit: int) -> list[dict[str, Any]]:
        return [
            {
                "name": f"node-{number}",
                "standing": "safe",
                "epoch": 1,
                "session_epoch": 4,
                "lease_left_ms": 900,
                "last_command": "clean",
                "segments": 1,
                "session": "0123abcd",
            }
            for number in range(5)
            if f"node-{number}" > after
        ][:limit]

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        found = [
            {"number": n, "age_ms": 5, "kind": "session_created", "subject": "node-1", "text": "", "master": "master-1"}
            for n in range(1, 6)
        ]
        return [event for event in found if int(str(event["number"])) > after][:limit]

    def keys(self, cursor: int, tenant: str) -> tuple[list[str], int]:
        found = self.keys_of(tenant)
        return found[cursor : cursor + 1000], cursor + 1000 if cursor + 1000 < len(found) else 0

    def objects(self, prefix: str, cursor: int, limit: int, tenant: str) -> dict[str, Any]:
        found = [key for key in self.keys_of(tenant) if key.startswith(prefix)]
        page = found[cursor : cursor + limit]
        after = cursor + limit
        return {
            "objects": [{"key": key, "size_bytes": 1, "replicas": REPLICAS} for key in page],
            "cursor": after if after < len(found) else 0,
        }

    def overview(self) -> dict[str, Any]:
        known = self.status()
        other = {"name": "master-2", "role": "standby", "promotable": self.has_standby, "reason": "it is behind"}
        own = {"name": self.name, "role": "primary", "promotable": False, "reason": "it is the primary"}
        return {name: known[name] for name in ("cluster", "name", "role", "epoch", "leader", "objects")} | {
            **FIGURES,
            "stopping": self.stopping,
            "masters": [{**one, "url": "http://here:1/", "epoch": 1, "index": 7} for one in (own, other)],
            "nodes": [{**node, "standing": "safe", "mode": "open"} for node in self.nodes()],
            "tenants": [{"name": name, **QUOTAS} for name in ("default", "red", "blue")],
        }

    def survey_memory(self) -> FakeSurvey:
        self.surveys += 1
        return FakeSurvey()

    def explain(self, key: str, tenant: str) -> dict[str, Any]:
        stat = self.stat(key, tenant)
        return {"key": key, "stat": stat, "reasons": ["it is new" if stat is not None else "it was never here"]}

    def order(self, request: Message, answer: Callable[[Message], None]) -> None:
        if isinstance(request, ChangeMode) and request.node != "node-1":
            answer(failed(UnknownNode(f"no node is called {request.node!r}; nothing was changed")))
            return
        self.orders.append(request)
        answer(Done(1))

    def list_clients(self, tenant: str | None, answer: Callable[[Message], None]) -> None:
        found = [one for one in CLIENTS if tenant is None or one.tenant == tenant]
        answer(ClientList(found, len(found)))

    def end_client(self, who: str, answer: Callable[[Message], None]) -> None:
        found = [one for one in CLIENTS if who in (one.handle, one.name)]
        answer(Done(len(found)) if found else failed(UnknownClient(f"nobody is called {who!r}")))

    def list_tenants(self, tenant: str | None, answer: Callable[[Message], None]) -> None:
        answer(TenantList([one for name, one in self.tenants.items() if tenant in (None, name)]))

    def change_tenant(
        self, name: str, quotas: dict[str, int | float | None], answer: Callable[[Message], None]
    ) -> None:
        wrong = [f"{quota!r} is no quota" for quota in quotas if quota not in TENANT_QUOTAS]
        wrong += [f"{quota} is not {value!r}" for quota, value in quotas.items() if value is not None and value < 0]
        if wrong:
            answer(failed(BadValue(wrong[0])))
            return
        given = {quota: value for quota, value in quotas.items() if value is not None}
        self.tenants[name] = tenant_info(name, **given)
        answer(TenantList([self.tenants[name]]))

    def remove_tenant(self, name: str, answer: Callable[[Message], None]) -> None:
        answer(Done(int(self.tenants.pop(name, None) is not None)))

    def ready(self) -> tuple[bool, str]:
        return not self.unready, self.unready

    def stat(self, key: str, tenant: str) -> dict[str, Any] | None:
        if key not in self.keys_of(tenant):
            return None
        return {"key": key, "size_bytes": 10, "replicas": REPLICAS}
