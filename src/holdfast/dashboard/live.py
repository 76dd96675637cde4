"""The live part of the dashboard: an overview every second, the memory, and the events, as one stream per page.

A stream of server-sent events costs the master no more than one page does, however many watch:

1. A page opens `/api/v1/stream`. `STREAMS` bounds how many are open; each is one of the HTTP server's connections.
2. Once a second it gets the overview, which all streams share: the master's loop is asked once a second in all, and for
   as long as somebody watches. The map of the memory is counted in steps, one call of the loop each, and then rests for
   ten times what it took.
3. It ends after `STREAM_SECONDS`, before the server would cut off an answer that takes so long, and the page opens the
   next. It ends at once when the master stops, or when the identity that opened it is not admitted any longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from holdfast.core.state.tenants import DEFAULT_NAME
from holdfast.dashboard.access import Asker, Shares, UnderWay, needs
from holdfast.dashboard.loop_calls import Calls
from holdfast.dashboard.view import NodeShown, Shown, ShownMaster
from holdfast.errors import Busy, HoldfastError
from holdfast.identity.identities import Identity
from holdfast.identity.roles import Role
from holdfast.instant import now_seconds

T = TypeVar("T")
STREAMS = Shares(of_all=16, of_others=12, of_one=6)
STREAM_SECONDS = 50.0
EVERY_SECONDS = 1.0
MEMORY_SECONDS = 2.0
REST_SHARE = 10.0
EVENTS_AT_ONCE = 200
OF_OPERATORS = frozenset({"boot", "data_address", "host"})
"""Facts of nodes that only operators see, as at `/api/v1/nodes`."""


class MasterShown(Shown):
    name: str
    url: str = Field(description="Of its dashboard.")
    role: str
    epoch: int
    index: int = Field(description="Records that it has applied, as it said within the last seconds.")
    promotable: bool
    reason: str
    lag_batches: int = Field(0, description="Batches of the log that it has not applied, as far as it knew.")


class OverviewShown(Shown):
    cluster: str
    name: str
    role: str
    epoch: int
    leader: str
    stopping: bool
    masters: list[MasterShown]
    nodes: list[NodeShown]
    objects: int
    requests: dict[str, int] = Field(description="Requests by verb, since the process began.")
    latencies: dict[str, list[int]] = Field(
        description="Verb -> requests answered within each of `latency_bounds_seconds`, and last all of them."
    )
    latency_bounds_seconds: list[float]


class SegmentMapShown(BaseModel):
    node: str
    number: int
    size_bytes: int
    part_bytes: int
    parts: dict[str, list[int]] = Field(description="Kind -> bytes of it in each part; the rest is free.")


class MemoryShown(BaseModel):
    kinds: list[str]
    segments: list[SegmentMapShown]


class SharedAnswer(Generic[T]):
    """An answer of the master's that all who watch share, until it is older than `fresh_seconds`."""

    def __init__(self, ask: Callable[[], Awaitable[T]], fresh_seconds: float, rest_share: float = 0.0) -> None:
        self._ask = ask
        self._fresh_seconds = fresh_seconds
        self._rest_share = rest_share
        self._asking: asyncio.Task[T] | None = None
        self._again_at = 0.0
        self._last: T | None = None

    async def get(self) -> T:
        """A fresh one."""
        return await asyncio.shield(self._begun())

    def latest(self) -> T | None:
        """The last one, at once; None before the first. The next one is begun if it is time."""
        self._begun()
        return self._last

    def _begun(self) -> asyncio.Task[T]:
        here = asyncio.get_running_loop()
        asking = self._asking
        # After a restart of the HTTP server there is another loop, and nobody finishes what the former one began.
        if asking is None or asking.get_loop() is not here or (asking.done() and now_seconds() >= self._again_at):
            asking = self._asking = here.create_task(self._take())
            asking.add_done_callback(_looked_at)
        return asking

    async def _take(self) -> T:
        began = now_seconds()
        try:
            self._last = await self._ask()
            return self._last
        finally:
            took = now_seconds() - began
            self._again_at = now_seconds() + max(self._fresh_seconds, self._rest_share * took)


def _looked_at(task: asyncio.Task[Any]) -> None:
    """A failure is told to those who wait; if nobody does, the next one who asks tries again."""
    if not task.cancelled():
        task.exception()


class Live:
    """What the streams of one master share."""

    def __init__(self, view: ShownMaster, calls: Calls) -> None:
        self._view = view
        self._calls = calls
        self.overview = SharedAnswer(lambda: calls.ask(view.overview), 0.9 * EVERY_SECONDS)
        self.memory = SharedAnswer(self._survey, MEMORY_SECONDS, REST_SHARE)
        self.streams = UnderWay(STREAMS)

    async def _survey(self) -> dict[str, Any]:
        survey = await self._calls.ask(self._view.survey_memory)
        while await self._calls.ask(survey.step):
            pass
        return await self._calls.ask(survey.found)

    async def stream(self, asker: Identity, still_admitted: Callable[[], bool]) -> AsyncIterator[bytes]:
        """The events of one stream."""
        yield _event("asker", {"name": asker.name, "roles": sorted(asker.roles), "tenant": asker.tenant})
        until, shown_memory, last_event = now_seconds() + STREAM_SECONDS, None, 0
        while now_seconds() < until and still_admitted():
            try:
                overview = await self.overview.get()
                yield _event("overview", overview_for(overview, asker))
                if overview["stopping"]:
                    yield _event("stopping", {})
                    return
                memory = self.memory.latest()
                if memory is not None and memory is not shown_memory:
                    shown_memory = memory
                    yield _event("memory", memory)
                if asker.may(Role.OPERATOR):
                    events = await self._events_after(last_event)
                    if events:
                        last_event = events[-1]["number"]
                        yield _event("events", {"events": events})
            except HoldfastError as error:
                yield _event("trouble", {"detail": str(error)})
            await asyncio.sleep(EVERY_SECONDS)

    async def _events_after(self, number: int) -> list[dict[str, Any]]:
        return await self._calls.ask(lambda: self._view.events(number, EVENTS_AT_ONCE))


def _event(name: str, content: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(content))


def overview_for(overview: dict[str, Any], asker: Identity) -> dict[str, Any]:
    """What this asker may see of it: of tenants its own, of nodes no places, unless it is an operator."""
    return overview if asker.may(Role.OPERATOR) else overview_of_tenant(overview, asker.tenant or DEFAULT_NAME)


def overview_of_tenant(overview: dict[str, Any], own: str) -> dict[str, Any]:
    nodes = [{name: fact for name, fact in node.items() if name not in OF_OPERATORS} for node in overview["nodes"]]
    tenants = [one for one in overview.get("tenants", ()) if one["name"] == own]
    return overview | {"nodes": nodes, "tenants": tenants}


class StreamAnswer(StreamingResponse):
    """A stream that is counted for as long as it is open, however it ends."""

    def __init__(self, streams: UnderWay, asker: Identity, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._streams = streams
        self._asker = asker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.one_more(self._asker):
            await super().__call__(scope, receive, send)


def add_live(app: FastAPI, view: ShownMaster, calls: Calls, refusals: dict[int | str, dict[str, Any]]) -> None:
    live = Live(view, calls)

    @app.get("/api/v1/overview", tags=["live"], response_model=OverviewShown, responses=refusals)
    @needs(Role.READER)
    async def overview(asker: Asker) -> dict[str, Any]:
        """The figures of the dashboard: masters, nodes, tenants and counters, at most a second old."""
        return overview_for(await live.overview.get(), asker)

    @app.get("/api/v1/memory", tags=["live"], response_model=MemoryShown, responses=refusals)
    @needs(Role.READER)
    async def memory() -> dict[str, Any]:
        """A map of the memory: the bytes of each kind in each part of each segment, a few seconds old."""
        return await live.memory.get()

    answers = {200: {"content": {"text/event-stream": {}}, "description": "Server-sent events"}, **refusals}

    @app.get("/api/v1/stream", tags=["live"], response_class=StreamingResponse, responses=answers)
    @needs(Role.READER)
    async def stream(request: Request, asker: Asker) -> StreamAnswer:
        """Server-sent events for a minute: `overview` every second, `memory`, and to operators `events`."""
        if not live.streams.has_room(asker):
            raise Busy("too many pages watch this master already; close one, or try again")
        return StreamAnswer(live.streams, asker, live.stream(asker, request.scope["still_admitted"]))
