"""The routes that masters and nodes share: `/healthz`, `/readyz` and `/metrics`; and the application that has them.

`/healthz` shows that the process lives and answers; `/readyz`, for load balancers, that it serves. Both are open to
all. The metrics are for those who may read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.routing import Match

from holdfast.core.state.tenants import DEFAULT_NAME
from holdfast.dashboard.access import Asker, needs, open_to_all
from holdfast.dashboard.loop_calls import Calls
from holdfast.dashboard.view import HealthShown, ReadinessShown, RefusalShown
from holdfast.errors import Busy, HoldfastError, TryAgain, UnknownClient
from holdfast.identity.identities import Identity
from holdfast.identity.roles import Role

REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": RefusalShown, "description": "No token or certificate that is known"},
    403: {"model": RefusalShown, "description": "Another role is needed"},
    421: {"model": RefusalShown, "description": "Asked by a name that is not this server's"},
    503: {"model": RefusalShown, "description": "Too many ask at once, or the master did not answer in time"},
}


class Probed(Protocol):
    """A process as its probes see it."""

    @property
    def registry(self) -> CollectorRegistry: ...

    def ready(self) -> tuple[bool, str]:
        """Whether it serves, and why not, or how."""
        ...


class RefusalAnswer(JSONResponse):
    """A refusal in ASCII: what it quotes of a request may be half of a character, which UTF-8 cannot express."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode("ascii")


def new_app(title: str = "holdfast") -> FastAPI:
    """An application without routes. Serve it behind `access.GuardedApp`, which checks the roles."""
    # Without the documentation pages, which would load scripts from elsewhere.
    app = FastAPI(title=title, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(HoldfastError, on_failure)
    app.add_exception_handler(RequestValidationError, on_unreadable)
    app.add_exception_handler(405, on_other_method)
    return app


async def on_failure(request: Request, error: Exception) -> Response:
    """A route's answer to an error of the master's."""
    status = 503 if isinstance(error, TryAgain) else 404 if isinstance(error, UnknownClient) else 409
    return RefusalAnswer({"detail": str(error)}, status, {"retry-after": "1"} if status == 503 else None)


async def on_unreadable(request: Request, error: Exception) -> Response:
    """A request that is not of its route's shape. FastAPI's own answer repeats what was sent, which may be a number
    that JSON does not have (NaN)."""
    assert isinstance(error, RequestValidationError)
    return RefusalAnswer(
        {"detail": [{what: one[what] for what in ("loc", "msg", "type")} for one in error.errors()]}, 422
    )


async def on_other_method(request: Request, error: Exception) -> Response:
    """Routes of one path are several, one for each method: the answer names all of them."""
    found = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    allowed = sorted({method for route in found for method in route.methods})
    return JSONResponse({"detail": "Method Not Allowed"}, 405, {"allow": ", ".join(allowed)})


def add_probes(app: FastAPI, view: Probed, calls: Calls) -> None:
    @app.get("/healthz", tags=["probes"], responses={503: REFUSALS[503]})
    @open_to_all
    async def healthz() -> HealthShown:
        """The process lives and answers; of a master, its loop turns."""
        await calls.recent(view.ready)
        return HealthShown(ok=True)

    @app.get("/readyz", tags=["probes"], responses={503: {"model": ReadinessShown, "description": "Not serving"}})
    @open_to_all
    async def readyz(response: Response, asker: Asker) -> ReadinessShown:
        """It serves; 503 while it does not. The reason is for those who may read."""
        try:
            ready, reason = await calls.recent(view.ready)
        except Busy as error:
            ready, reason = False, str(error)
        response.status_code = 200 if ready else 503
        return ReadinessShown(ready=ready, reason=reason if asker.may(Role.READER) else "")


class Collected(Collector):
    """Metrics that were collected where they belong, to be written down elsewhere; of tenants only one's own,
    unless for an operator."""

    def __init__(self, found: list[Metric], asker: Identity) -> None:
        self._found = found
        self._asker = asker

    def collect(self) -> Iterator[Metric]:
        for family in self._found:
            if not self._asker.may(Role.OPERATOR):
                family.samples = [one for one in family.samples if self._is_for_asker(one.labels)]
            yield family

    def _is_for_asker(self, labels: dict[str, str]) -> bool:
        return labels.get("tenant", tenant_of(self._asker)) == tenant_of(self._asker)


def add_metrics(app: FastAPI, view: Probed, calls: Calls) -> None:
    answers: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}, **REFUSALS}

    @app.get("/metrics", tags=["probes"], response_class=Response, responses=answers)
    @needs(Role.READER)
    async def metrics(asker: Asker) -> Response:
        """Metrics in the text format of Prometheus."""
        found = Collected(await calls.ask(lambda: list(view.registry.collect())), asker)
        return Response(generate_latest(found), headers={"content-type": CONTENT_TYPE_LATEST})


def tenant_of(asker: Identity) -> str:
    """The name under which its tenant is listed."""
    return asker.tenant or DEFAULT_NAME
