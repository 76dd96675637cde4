"""The HTTP face of a Mooncake master: the same paths, shapes and metric names, filled from a holdfast master.

SGLang waits for `/get_all_segments` before it starts, scripts read the JSON, and dashboards draw the metrics. All of it
is read-only, and needs the role of a reader; ids, addresses and offsets are empty for whoever is no operator. A segment
is a node. Figures that holdfast does not count are left out rather than shown as zero.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.dashboard.access import Asker, needs
from holdfast.dashboard.loop_calls import Calls
from holdfast.dashboard.probes import Collected, new_app
from holdfast.dashboard.view import ShownMaster
from holdfast.identity.roles import Role

NOT_FOUND = {"success": False, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"}
MOST_KEYS = 1_000
"""In one query."""
MARK = "|"
"""The first character of keys of tenants other than the default: `|tenant|key`."""

_GAUGES = {
    "master_allocated_bytes": ("holdfast_used_bytes", "Memory that objects take."),
    "master_total_capacity_bytes": ("holdfast_capacity_bytes", "Memory that nodes lend."),
    "master_key_count": ("holdfast_objects", "Objects stored."),
    "master_soft_pin_key_count": ("holdfast_soft_pinned_objects", "Objects pinned softly."),
    "master_active_clients": ("holdfast_connections", "Open connections."),
}
# Every request of holdfast is a batch, and counts under both of Mooncake's names.
_REQUESTS = {
    "exists": ("master_exist_key_requests", "master_batch_exist_key_requests"),
    "locate": ("master_get_replica_list_requests", "master_batch_get_replica_list_requests"),
    "grant_ranges": ("master_put_start_requests", "master_batch_put_start_requests"),
    "commit_puts": ("master_put_end_requests", "master_batch_put_end_requests"),
    "return_grants": ("master_put_revoke_requests", "master_batch_put_revoke_requests"),
    "remove": ("master_remove_requests",),
    "remove_matching": ("master_remove_by_regex_requests",),
    "keep_alive": ("master_ping_requests",),
    "register_node": ("master_mount_segment_requests",),
}


class MooncakeFigures(Collector):
    """The master's own figures under the names that Mooncake's dashboards know."""

    def __init__(self, view: ShownMaster) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in self._view.registry.collect()
            for sample in family.samples
        }
        for name, (own, text) in _GAUGES.items():
            if (own,) in samples:
                yield GaugeMetricFamily(name, text, samples[(own,)])
        evicted = [value for (name, *_), value in samples.items() if name == "holdfast_evicted_objects_total"]
        if evicted:
            # A gauge, since a counter's name would end in _total, and this one does not.
            yield GaugeMetricFamily("master_evicted_key_count", "Objects evicted.", sum(evicted))
        for verb, names in _REQUESTS.items():
            for name in names:
                yield CounterMetricFamily(
                    name, f"Requests of the kind {verb}.", samples.get(("holdfast_requests_total", verb), 0)
                )
        refused = samples.get(("holdfast_failures_total", "no_room"), 0)
        yield CounterMetricFamily("master_put_start_alloc_failures", "Puts refused for want of room.", refused)
        yield from self._segments()

    def _segments(self) -> Iterator[Metric]:
        used = GaugeMetricFamily("segment_allocated_bytes", "Memory in use on a node.", labels=["segment"])
        whole = GaugeMetricFamily("segment_total_capacity_bytes", "Memory that a node lends.", labels=["segment"])
        for node in self._view.nodes():
            used.add_metric([node["name"]], node["used_bytes"])
            whole.add_metric([node["name"]], node["capacity_bytes"])
        yield used
        yield whole


def build_mooncake_app(view: ShownMaster, calls: Calls) -> FastAPI:
    """The application that shows this view as Mooncake's master would. Serve it behind `access.GuardedApp`."""
    app = new_app("holdfast, as Mooncake's master")
    _add_segments(app, view, calls)
    _add_keys(app, view, calls)
    _add_roles(app, view, calls)

    @app.get("/metrics")
    @needs(Role.READER)
    async def metrics(asker: Asker) -> Response:
        found = Collected(await calls.ask(lambda: list(MooncakeFigures(view).collect())), asker)
        return Response(generate_latest(found), headers={"content-type": CONTENT_TYPE_LATEST})

    return app


def _add_segments(app: FastAPI, view: ShownMaster, calls: Calls) -> None:
    @app.get("/get_all_segments", response_class=PlainTextResponse)
    @needs(Role.READER)
    async def get_all_segments() -> str:
        return "".join(f"{node['name']}\n" for node in await calls.ask(view.nodes))

    @app.get("/get_segments_detail")
    @needs(Role.READER)
    async def get_segments_detail(asker: Asker) -> dict[str, Any]:
        segments = [_segment(node, asker.may(Role.OPERATOR)) for node in await calls.ask(view.nodes)]
        return {"total_segments": len(segments), "segments": segments}

    @app.get("/query_segment", response_class=PlainTextResponse)
    @needs(Role.READER)
    async def query_segment(response: Response, segment: str = "") -> str:
        for node in await calls.ask(view.nodes):
            if node["name"] == segment:
                return f"{segment}\nUsed(bytes): {node['used_bytes']}\nCapacity(bytes) : {node['capacity_bytes']}\n"
        response.status_code = 500
        return "Failed to query segment"


def _segment(node: dict[str, Any], with_places: bool) -> dict[str, Any]:
    capacity, used = node["capacity_bytes"], node["used_bytes"]
    return {
        "segment_name": node["name"],
        "segment_id": node.get("boot", "") if with_places else "",
        "client_id": node["name"],
        "size_bytes": capacity,
        "size_human": f"{capacity / (1 << 30):.2f} GiB",
        "te_endpoint": node.get("data_address", "") if with_places else "",
        "protocol": "tcp",
        "status": "OK" if node["available"] else "UNAVAILABLE",
        "allocator_used_bytes": used,
        "allocator_capacity_bytes": capacity,
        "allocator_usage_percent": 100 * used / capacity if capacity else 0.0,
    }


def _add_keys(app: FastAPI, view: ShownMaster, calls: Calls) -> None:
    @app.get("/get_all_keys", response_class=PlainTextResponse)
    @needs(Role.READER)
    async def get_all_keys(asker: Asker) -> StreamingResponse:
        """All keys of the default tenant of Mooncake's, within the asker's own tenant of holdfast's."""
        first = await calls.ask(lambda: view.keys(0, asker.tenant))
        return StreamingResponse(_lines(view, calls, asker.tenant, first), media_type="text/plain")

    @app.get("/query_key")
    @needs(Role.READER)
    async def query_key(response: Response, asker: Asker, key: str = "") -> dict[str, Any]:
        stat = await calls.ask(lambda: view.stat(key, asker.tenant))
        if stat is None:
            response.status_code = 404
            return NOT_FOUND
        return {"success": True, "data": _in_memory(stat, asker.may(Role.OPERATOR))}

    @app.get("/batch_query_keys")
    @needs(Role.READER)
    async def batch_query_keys(
        asker: Asker, keys: Annotated[str, Query(description="Keys, with commas between them.")] = ""
    ) -> JSONResponse:
        asked = [key for key in keys.split(",") if key]
        if not asked or len(asked) > MOST_KEYS:
            error = "No keys provided. Use ?keys=key1,key2,..." if not asked else f"More than {MOST_KEYS} keys."
            return JSONResponse({"success": False, "error": error}, 400)
        stats = await calls.ask(lambda: [view.stat(key, asker.tenant) for key in asked])
        found = {key: _found(stat, asker.may(Role.OPERATOR)) for key, stat in zip(asked, stats, strict=True)}
        return JSONResponse({"success": True, "data": found})


async def _lines(view: ShownMaster, calls: Calls, tenant: str, page: tuple[list[str], int]) -> AsyncIterator[str]:
    own = f"{MARK}default{MARK}"
    while True:
        keys, cursor = page
        yield "".join(f"{key.removeprefix(own)}\n" for key in keys if not key.startswith(MARK) or key.startswith(own))
        if not cursor:
            return
        page = await calls.ask(partial(view.keys, cursor, tenant))


def _found(stat: dict[str, Any] | None, with_places: bool) -> dict[str, Any]:
    kinds = {"disk_values": None, "local_disk_values": None, "nof_values": None}
    if stat is None:
        return {"ok": False, "error": "OBJECT_NOT_FOUND", "values": None, **kinds}
    return {"ok": True, "error": None, "values": _in_memory(stat, with_places), **kinds}


def _in_memory(stat: dict[str, Any], with_places: bool) -> list[dict[str, Any]]:
    return [
        {
            "size_": stat["size_bytes"],
            "buffer_address_": replica["offset"] if with_places else 0,
            "protocol_": "tcp",
            "transport_endpoint_": replica["node"] if with_places else "",
        }
        for replica in stat["replicas"]
        if replica["kind"] == "MEMORY"
    ]


def _add_roles(app: FastAPI, view: ShownMaster, calls: Calls) -> None:
    @app.get("/health")
    @needs(Role.READER)
    async def health() -> dict[str, Any]:
        status, (ready, _) = await calls.ask(lambda: (view.status(), view.ready()))
        return {
            "status": "ok",
            "role": _role(status),
            "ha_state": _state(status, ready),
            "service_ready": ready and status["role"] == "primary",
            "leader_address": status["leader"] or None,
            "view_version": status["epoch"],
        }

    @app.get("/role", response_class=PlainTextResponse)
    @needs(Role.READER)
    async def role() -> str:
        return _role(await calls.ask(view.status))

    @app.get("/leader")
    @needs(Role.READER)
    async def leader() -> dict[str, Any]:
        status = await calls.ask(view.status)
        present = bool(status["leader"])
        return {
            "present": present,
            "leader_address": status["leader"] or None,
            "view_version": status["epoch"] if present else None,
        }

    @app.get("/ha_status", response_class=PlainTextResponse)
    @needs(Role.READER)
    async def ha_status() -> str:
        status, (ready, _) = await calls.ask(lambda: (view.status(), view.ready()))
        return _state(status, ready)


def _role(status: dict[str, Any]) -> str:
    return "leader" if status["role"] == "primary" else "standby"


def _state(status: dict[str, Any], ready: bool) -> str:
    if status["role"] == "primary":
        return "serving" if ready else "starting"
    return "standby" if ready else "recovering"
