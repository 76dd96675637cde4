"""The operator's orders over HTTP, as the page's buttons give them, and the story of a key.

They are the requests of the RPC verbs, decided and logged in the same way, and answered when they are durable. Each is
refused to pages of other origins, as everything that changes something (`access`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from holdfast.dashboard.access import Asker, needs
from holdfast.dashboard.loop_calls import Calls
from holdfast.dashboard.view import ObjectShown, RefusalShown, ShownMaster
from holdfast.errors import Refused
from holdfast.identity.roles import Role
from holdfast.messages.of_masters import HandOver, TakeSnapshot
from holdfast.messages.requests import ChangeMode, Done
from holdfast.wire.codec import expect

SNAPSHOT_SECONDS = 4.0
"""How long an answer waits for the snapshot, which goes on in any case."""
PLACES_OF_REPLICAS = frozenset({"segment", "offset"})

REFUSED: dict[str, Any] = {"model": RefusalShown, "description": "The master refuses it; nothing was changed"}


class ModeGiven(BaseModel):
    model_config = ConfigDict(extra="forbid")
    mode: Literal["open", "cordoned", "draining"] = Field(description="draining: move everything away.")
    evict: bool = Field(False, description="Drain though the other nodes have no room for all: objects are evicted.")


class OrderShown(BaseModel):
    done: str = Field(description="What was done, or is being done.")


class ExplanationShown(BaseModel):
    key: str
    stat: ObjectShown | None = Field(description="null: no object is stored under this key.")
    reasons: list[str] = Field(description="Why it is kept, or what became of it.")


def add_orders(app: FastAPI, view: ShownMaster, calls: Calls, refusals: dict[int | str, dict[str, Any]]) -> None:
    refused = {**refusals, 409: REFUSED}

    @app.post("/api/v1/failover", tags=["orders"], responses=refused)
    @needs(Role.OPERATOR)
    async def failover() -> OrderShown:
        """Have this primary hand over to a standby. Refused where no standby is known to be able to take over."""
        found = await calls.ask(view.overview)
        others = [one for one in found["masters"] if one["name"] != found["name"]]
        if found["role"] == "primary" and not any(one["promotable"] for one in others):
            known = "; ".join(f"{one['name']}: {one['reason']}" for one in others) or "there is no other master"
            raise Refused(f"no standby can take over; nothing was done ({known})")
        expect(await calls.begin(partial(view.order, HandOver())), Done)
        return OrderShown(done=f"{found['name']} hands over")

    @app.post("/api/v1/snapshot", tags=["orders"], responses={**refused, 202: {"model": OrderShown}})
    @needs(Role.OPERATOR)
    async def snapshot(response: Response) -> OrderShown:
        """Have this master write a snapshot now. 202: it is being written, and an event tells when it is done."""
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                written = expect(await calls.begin(partial(view.order, TakeSnapshot())), Done)
        except TimeoutError:
            response.status_code = 202
            return OrderShown(done="the snapshot is being written; the events tell when it is done")
        return OrderShown(done=f"a snapshot of the log through batch {written.count:,} was written")

    unread: dict[int | str, dict[str, Any]] = {400: {"model": RefusalShown, "description": "The body is not JSON"}}

    @app.post("/api/v1/nodes/{name}/mode", tags=["orders"], responses={**refused, **unread})
    @needs(Role.OPERATOR)
    async def change_mode(
        name: Annotated[str, Path(min_length=1, max_length=1024, description="The node.")], given: ModeGiven
    ) -> OrderShown:
        """Drain, cordon or open a node. It is in the log once it is answered, and outlives failovers."""
        changed = expect(await calls.begin(partial(view.order, ChangeMode(name, given.mode, given.evict))), Done)
        return OrderShown(done=f"{name} is {given.mode}" + ("" if changed.count else ", as it was"))


def add_explanation(app: FastAPI, view: ShownMaster, calls: Calls, refusals: dict[int | str, dict[str, Any]]) -> None:
    @app.get("/api/v1/explain", tags=["cluster"], response_model=ExplanationShown, responses={**refusals, 409: REFUSED})
    @needs(Role.READER)
    async def explain(
        asker: Asker, key: Annotated[str, Query(min_length=1, max_length=4096, description="A key of one's tenant.")]
    ) -> dict[str, Any]:
        """Why an object is kept and where it is, or what became of it."""
        found = await calls.ask(lambda: view.explain(key, asker.tenant))
        if found["stat"] is not None and not asker.may(Role.OPERATOR):
            found["stat"]["replicas"] = [
                {fact: value for fact, value in replica.items() if fact not in PLACES_OF_REPLICAS}
                for replica in found["stat"]["replicas"]
            ]
        return found
