"""The HTTP application of a master: its routes, the role that each needs, and what it shows to whom.

It is off the hot path: clients and nodes never use HTTP. `/healthz` shows that the process lives and its loop turns;
`/readyz`, for load balancers, that it serves. Both are open to all. Operators see all that the view holds; others see
no boot ids, no addresses of nodes and no places of bytes, and of tenants only their own.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Path, Query
from fastapi.responses import JSONResponse

from holdfast.dashboard.access import Asker, needs
from holdfast.dashboard.live import add_live
from holdfast.dashboard.loop_calls import Calls
from holdfast.dashboard.orders import add_explanation, add_orders
from holdfast.dashboard.page_files import add_page
from holdfast.dashboard.probes import REFUSALS, add_metrics, add_probes, new_app, tenant_of
from holdfast.dashboard.view import (
    ClientsShown,
    EventsShown,
    NodesShown,
    ObjectsShown,
    QuotasGiven,
    RefusalShown,
    RevocationShown,
    SessionsShown,
    ShownMaster,
    StatusShown,
    TenantRemovalShown,
    TenantShown,
    TenantsShown,
)
from holdfast.identity.identities import Identity, fault_for
from holdfast.identity.roles import Role
from holdfast.messages.of_masters import ClientList
from holdfast.messages.of_tenants import TenantList
from holdfast.messages.requests import Done
from holdfast.wire.codec import expect

MOST_OBJECTS = 1_000
OBJECTS_AT_ONCE = 100
"""In one call of the master's loop, which takes a millisecond."""
MOST_EVENTS = 1_000
MOST_SESSIONS = 1_000
MAX_CURSOR = 2**62
PLACES_OF_NODES = frozenset({"boot", "data_address", "host"})
PLACES_OF_REPLICAS = frozenset({"segment", "offset"})
HIDDEN_OF_SESSIONS = frozenset({"session"})
REFUSED: dict[str, Any] = {"model": RefusalShown, "description": "The master refuses it; nothing was changed"}
TenantName = Annotated[str, Path(min_length=1, max_length=64, description="The tenant; 'default' for clients of none.")]


def build_app(view: ShownMaster, calls: Calls) -> FastAPI:
    """The application that shows this view. Serve it behind `access.GuardedApp`, which checks the roles."""
    app = new_app()
    add_probes(app, view, calls)
    add_metrics(app, view, calls)
    _add_cluster(app, view, calls)
    _add_objects(app, view, calls)
    _add_clients(app, view, calls)
    _add_tenants(app, view, calls)
    add_live(app, view, calls, REFUSALS)
    add_orders(app, view, calls, REFUSALS)
    add_explanation(app, view, calls, REFUSALS)
    add_page(app)

    @app.get("/api/v1/openapi.json", include_in_schema=False)
    @needs(Role.READER)
    async def schema() -> JSONResponse:
        return JSONResponse(app.openapi())

    return app


def _add_cluster(app: FastAPI, view: ShownMaster, calls: Calls) -> None:
    @app.get("/api/v1/status", tags=["cluster"], response_model=StatusShown, responses=REFUSALS)
    @needs(Role.READER)
    async def status(asker: Asker) -> dict[str, Any]:
        """The master's view of the cluster."""
        found = await calls.ask(view.status)
        return found | {"identities_fault": fault_for(asker, found["identities_fault"])}

    @app.get("/api/v1/nodes", tags=["cluster"], response_model=NodesShown, responses=REFUSALS)
    @needs(Role.READER)
    async def nodes(asker: Asker) -> dict[str, Any]:
        """The nodes and how they stand; to operators also where they are."""
        return {"nodes": [_for_asker(node, asker, PLACES_OF_NODES) for node in await calls.ask(view.nodes)]}

    @app.get("/api/v1/sessions", tags=["cluster"], response_model=SessionsShown, responses=REFUSALS)
    @needs(Role.READER)
    async def sessions(
        asker: Asker,
        after: Annotated[str, Query(max_length=1024, description="Only names behind this one.")] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_SESSIONS, description="The most sessions to give.")] = 100,
    ) -> dict[str, Any]:
        """The primary's followers, until when each session lasts, and its last command; by name, one page at a time."""
        found = await calls.ask(lambda: view.sessions(after, limit))
        return {"sessions": [_for_asker(session, asker, HIDDEN_OF_SESSIONS) for session in found]}

    @app.get("/api/v1/events", tags=["cluster"], response_model=EventsShown, responses=REFUSALS)
    @needs(Role.OPERATOR)
    async def events(
        after: Annotated[int, Query(ge=0, le=MAX_CURSOR, description="Only later ones than this number.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_EVENTS, description="The most events to give.")] = 100,
    ) -> dict[str, Any]:
        """Recent events of all masters, in the order in which this one learned of them."""
        return {"events": await calls.ask(lambda: view.events(after, limit))}


def _add_objects(app: FastAPI, view: ShownMaster, calls: Calls) -> None:
    @app.get("/api/v1/objects", tags=["cluster"], response_model=ObjectsShown, responses=REFUSALS)
    @needs(Role.READER)
    async def objects(
        asker: Asker,
        prefix: Annotated[str, Query(max_length=1024, description="Keys that begin so.")] = "",
        cursor: Annotated[int, Query(ge=0, le=MAX_CURSOR, description="From an earlier answer; 0 to begin.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_OBJECTS, description="The most objects to give.")] = 100,
    ) -> dict[str, Any]:
        """Stored objects of the asker's tenant, in no order, one page at a time. A page may be empty before the end."""
        found: list[dict[str, Any]] = []
        for _ in range(-(-limit // OBJECTS_AT_ONCE)):
            most = min(OBJECTS_AT_ONCE, limit - len(found))
            page = await calls.ask(partial(view.objects, prefix, cursor, most, asker.tenant))
            found += page["objects"]
            cursor = page["cursor"]
            if not cursor or len(found) >= limit:
                break
        return {"objects": [_without_places(one, asker) for one in found], "cursor": cursor}


def _add_clients(app: FastAPI, view: ShownMaster, calls: Calls) -> None:
    @app.get("/api/v1/clients", tags=["clients"], response_model=ClientsShown, responses=REFUSALS)
    @needs(Role.READER)
    async def clients(asker: Asker) -> dict[str, Any]:
        """Who is connected to this master, the busiest first; to operators all, to others their own tenant's."""
        tenant = None if asker.may(Role.OPERATOR) else asker.tenant
        found = expect(await calls.begin(partial(view.list_clients, tenant)), ClientList)
        return {"clients": [msgspec.structs.asdict(one) for one in found.clients], "total": found.total}

    refusals: dict[int | str, dict[str, Any]] = {
        404: {"model": RefusalShown, "description": "Nobody of this handle or name"},
        409: REFUSED,
    }

    @app.post("/api/v1/clients/{who}/revoke", tags=["clients"], responses={**REFUSALS, **refusals})
    @needs(Role.OPERATOR)
    async def revoke(
        who: Annotated[str, Path(min_length=1, max_length=128, description="A handle, or an identity's name.")],
    ) -> RevocationShown:
        """End a client's grants, leases and connections, or those of all clients of an identity."""
        return RevocationShown(revoked=expect(await calls.begin(partial(view.end_client, who)), Done).count)


def _add_tenants(app: FastAPI, view: ShownMaster, calls: Calls) -> None:
    refusals = {**REFUSALS, 409: REFUSED}

    @app.get("/api/v1/tenants", tags=["tenants"], response_model=TenantsShown, responses=REFUSALS)
    @needs(Role.READER)
    async def tenants(asker: Asker) -> dict[str, Any]:
        """What each tenant holds of its quotas; to operators all of them, to others their own."""
        tenant = None if asker.may(Role.OPERATOR) else tenant_of(asker)
        found = expect(await calls.begin(partial(view.list_tenants, tenant)), TenantList)
        return {"tenants": [msgspec.structs.asdict(one) for one in found.tenants]}

    @app.patch("/api/v1/tenants/{name}", tags=["tenants"], response_model=TenantShown, responses=refusals)
    @needs(Role.OPERATOR)
    async def change_tenant(name: TenantName, quotas: QuotasGiven) -> dict[str, Any]:
        """Change quotas of a tenant, which is defined if it is new. They count at once, and outlive failovers."""
        given = quotas.model_dump(exclude_unset=True)
        [info] = expect(await calls.begin(partial(view.change_tenant, name, given)), TenantList).tenants
        return msgspec.structs.asdict(info)

    @app.delete("/api/v1/tenants/{name}", tags=["tenants"], responses=refusals)
    @needs(Role.OPERATOR)
    async def remove_tenant(name: TenantName) -> TenantRemovalShown:
        """Remove a tenant that has no objects and no clients; of the default tenant, its quotas."""
        return TenantRemovalShown(removed=expect(await calls.begin(partial(view.remove_tenant, name)), Done).count)


def _without_places(shown: dict[str, Any], asker: Identity) -> dict[str, Any]:
    replicas = [_for_asker(replica, asker, PLACES_OF_REPLICAS) for replica in shown.get("replicas", ())]
    return {**shown, "replicas": replicas}


def _for_asker(facts: dict[str, Any], asker: Identity, of_operators: frozenset[str]) -> dict[str, Any]:
    if asker.may(Role.OPERATOR):
        return facts
    return {name: value for name, value in facts.items() if name not in of_operators}
