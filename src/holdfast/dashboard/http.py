"""The HTTP application of a master, and the server that runs it in the master's own loop.

It is off the hot path: clients and nodes never use HTTP. `/healthz` shows that the process lives; `/readyz`, for load
balancers, that it serves. The socket is bound here before the server starts: a port in use is an error at once, and
with port 0 the real port is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from html import escape
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Query, Response
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from holdfast.addresses import join_address
from holdfast.dashboard.view import (
    EventsShown,
    HealthShown,
    NodesShown,
    ObjectsShown,
    ReadinessShown,
    SessionsShown,
    ShownMaster,
    StatusShown,
)
from holdfast.supervisor import Supervisor

MOST_OBJECTS = 1_000
MOST_EVENTS = 1_000
MOST_SESSIONS = 1_000
MAX_CURSOR = 2**62
STOP_WITHIN_S = 5.0
START_WITHIN_S = 10.0

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>holdfast: {name}</title>
<style>body {{ font: 16px/1.5 system-ui; margin: 3rem auto; max-width: 40rem; padding: 0 1rem }}</style>
<h1>holdfast</h1>
<p>{name} of {cluster}: {role}, epoch {epoch}, {objects:,} objects.</p>
<ul>
<li><a href="/api/v1/status">status</a></li>
<li><a href="/api/v1/nodes">nodes</a></li>
<li><a href="/api/v1/sessions">sessions</a> and <a href="/api/v1/events">events</a></li>
<li><a href="/api/v1/objects">objects</a></li>
<li><a href="/metrics">metrics</a></li>
<li><a href="/healthz">healthz</a> and <a href="/readyz">readyz</a></li>
<li><a href="/api/v1/openapi.json">OpenAPI</a></li>
</ul>
</html>
"""


def build_app(view: ShownMaster) -> FastAPI:
    """The application that shows this view."""
    # Without the documentation pages, which would load scripts from elsewhere.
    app = FastAPI(title="holdfast", openapi_url="/api/v1/openapi.json", docs_url=None, redoc_url=None)
    _add_probes(app, view)
    _add_api(app, view)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def front() -> str:
        status = {name: escape(one) if isinstance(one, str) else one for name, one in view.status().items()}
        return PAGE.format_map(status)

    return app


def _add_probes(app: FastAPI, view: ShownMaster) -> None:
    @app.get("/healthz", tags=["probes"])
    async def healthz() -> HealthShown:
        """The process lives."""
        return HealthShown(ok=True)

    @app.get("/readyz", tags=["probes"], responses={503: {"model": ReadinessShown, "description": "Not serving"}})
    async def readyz(response: Response) -> ReadinessShown:
        """The master serves requests; 503 and the reason while it does not."""
        ready, reason = view.ready()
        response.status_code = 200 if ready else 503
        return ReadinessShown(ready=ready, reason=reason)

    @app.get("/metrics", tags=["probes"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Metrics in the text format of Prometheus."""
        return Response(generate_latest(view.registry), headers={"content-type": CONTENT_TYPE_LATEST})


def _add_api(app: FastAPI, view: ShownMaster) -> None:
    @app.get("/api/v1/status", tags=["cluster"], response_model=StatusShown)
    async def status() -> dict[str, Any]:
        """The master's view of the cluster."""
        return view.status()

    @app.get("/api/v1/nodes", tags=["cluster"], response_model=NodesShown)
    async def nodes() -> dict[str, Any]:
        """The nodes and how they stand."""
        return {"nodes": view.nodes()}

    @app.get("/api/v1/sessions", tags=["cluster"], response_model=SessionsShown)
    async def sessions(
        after: Annotated[str, Query(max_length=1024, description="Only names behind this one.")] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_SESSIONS, description="The most sessions to give.")] = 100,
    ) -> dict[str, Any]:
        """The primary's followers, until when each session lasts, and its last command; by name, one page at a time."""
        return {"sessions": view.sessions(after, limit)}

    @app.get("/api/v1/events", tags=["cluster"], response_model=EventsShown)
    async def events(
        after: Annotated[int, Query(ge=0, le=MAX_CURSOR, description="Only later ones than this number.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_EVENTS, description="The most events to give.")] = 100,
    ) -> dict[str, Any]:
        """Recent events at this master, the oldest first."""
        return {"events": view.events(after, limit)}

    @app.get("/api/v1/objects", tags=["cluster"], response_model=ObjectsShown)
    async def objects(
        prefix: Annotated[str, Query(max_length=1024, description="Keys that begin so.")] = "",
        cursor: Annotated[int, Query(ge=0, le=MAX_CURSOR, description="From an earlier answer; 0 to begin.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_OBJECTS, description="The most objects to give.")] = 100,
    ) -> dict[str, Any]:
        """Stored objects, in no order, one page at a time. A page may be empty before the end."""
        return view.objects(prefix, cursor, limit)


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to the process in which it runs."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class RunningServer:
    """An HTTP server in this loop, from `start` until `stop`; if it ends earlier, it is restarted."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Bind the port; OSError at once if it is not available."""
        self._app = app
        self._listener = _bind(host, port)
        self._at: tuple[str, int] = self._listener.getsockname()[:2]
        self.address: str = join_address(*self._at)
        self._server = self._made()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def _made(self) -> uvicorn.Server:
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            loop="none",
            timeout_graceful_shutdown=int(STOP_WITHIN_S),
        )
        return _QuietServer(config)

    async def start(self, supervisor: Supervisor, name: str) -> None:
        """Return when it answers."""
        self._task = asyncio.create_task(supervisor.keep(name, self._serve), name="http")
        async with asyncio.timeout(START_WITHIN_S):
            while not self._server.started:  # noqa: ASYNC110 - uvicorn tells it by this attribute only.
                await asyncio.sleep(0.005)

    async def _serve(self) -> None:
        if self._stopping:
            return
        if self._listener.fileno() < 0:  # An earlier server has ended, and closed it.
            self._listener = _bind(*self._at)
            self._server = self._made()
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            self._listener.close()
        if not self._stopping:
            raise OSError(f"the HTTP server on {self.address} ended by itself")

    async def stop(self) -> None:
        """Give replies a moment to finish, then close."""
        self._stopping = True
        self._server.should_exit = True
        try:
            if self._task is not None:
                await asyncio.wait_for(self._task, STOP_WITHIN_S + 1)
        finally:
            self._listener.close()


async def serve_http(
    app: FastAPI, host: str, port: int, supervisor: Supervisor | None = None, name: str = "HTTP server"
) -> RunningServer:
    """Serve in the caller's loop. OSError at once if the port is not available. The supervisor knows it by `name`."""
    server = RunningServer(app, host, port)
    try:
        await server.start(supervisor if supervisor is not None else Supervisor(), name)
    except BaseException:
        await server.stop()
        raise
    return server


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(place)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
