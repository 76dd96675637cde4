"""The view of a master that the HTTP server needs, and the shapes in which it is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ConfigDict, Field

from holdfast.messages.shapes import Message


class Survey(Protocol):
    """Work of the master's loop in short steps, so that others have their turn in between."""

    def step(self) -> bool:
        """False: that was all."""
        ...

    def found(self) -> dict[str, Any]: ...


class ShownMaster(Protocol):
    """A master as seen from outside. Every call is made in the master's loop and is quick: a page, not everything."""

    registry: CollectorRegistry

    def status(self) -> dict[str, Any]:
        """At least the fields of `StatusShown`."""
        ...

    def nodes(self) -> list[dict[str, Any]]:
        """At least the fields of `NodeShown`, for each."""
        ...

    def sessions(self, after: str, limit: int) -> list[dict[str, Any]]:
        """At least the fields of `SessionShown`, for each, by name; those behind the name `after`."""
        ...

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Those with a higher number than `after`, the oldest first; with 0 the newest."""
        ...

    def objects(self, prefix: str, cursor: int, limit: int, tenant: str) -> dict[str, Any]:
        """`objects`: dicts with at least `key` and `size_bytes`; `cursor`: where to go on, 0 at the end."""
        ...

    def keys(self, cursor: int, tenant: str) -> tuple[list[str], int]:
        """Some keys, and where to go on; 0 at the end."""
        ...

    def stat(self, key: str, tenant: str) -> dict[str, Any] | None:
        """`key`, `size_bytes` and `replicas`, each with `kind`, `node` and `offset`; None: it is not stored."""
        ...

    def overview(self) -> dict[str, Any]:
        """At least the fields of `OverviewShown`. It is asked every second, so it makes no pass over the catalogue."""
        ...

    def survey_memory(self) -> Survey:
        """A map of the memory, which is counted in steps. On a standby, too."""
        ...

    def explain(self, key: str, tenant: str) -> dict[str, Any]:
        """`reasons`: why the object is kept, or what became of it; `stat` as of `stat`, or None."""
        ...

    def order(self, request: Message, answer: Callable[[Message], None]) -> None:
        """Carry out an operator's request, answered as over RPC."""
        ...

    def list_clients(self, tenant: str | None, answer: Callable[[Message], None]) -> None:
        """Answered by `ClientList`, a moment later; of all tenants with None."""
        ...

    def end_client(self, who: str, answer: Callable[[Message], None]) -> None:
        """Answered by `Done` with the number of clients, or by `Failed`."""
        ...

    def list_tenants(self, tenant: str | None, answer: Callable[[Message], None]) -> None:
        """Answered by `TenantList`, a moment later; of all tenants with None."""
        ...

    def change_tenant(
        self, name: str, quotas: dict[str, int | float | None], answer: Callable[[Message], None]
    ) -> None:
        """Answered by a `TenantList` of this one, or by `Failed`."""
        ...

    def remove_tenant(self, name: str, answer: Callable[[Message], None]) -> None:
        """Answered by `Done` with the number of tenants, or by `Failed`."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Are requests served? If not, why not."""
        ...


class Shown(BaseModel):
    """A view may hold more fields than are declared here; they are passed on."""

    model_config = ConfigDict(extra="allow")


class StatusShown(Shown):
    cluster: str
    name: str
    role: str = Field(description="primary or standby")
    epoch: int
    log_index: int
    applied_index: int
    durable_index: int
    promotable: bool
    promotable_reason: str
    objects: int
    used_bytes: int
    capacity_bytes: int
    digest: str
    leader: str


class NodeShown(Shown):
    name: str
    available: bool
    capacity_bytes: int
    used_bytes: int


class SessionShown(Shown):
    name: str
    standing: str = Field(description="safe or jeopardy")
    epoch: int
    session_epoch: int
    lease_left_ms: int
    last_command: str


class EventShown(BaseModel):
    number: int
    age_ms: int
    kind: str
    subject: str
    text: str
    master: str = Field(description="The one that noted it.")


class ObjectShown(Shown):
    key: str
    size_bytes: int


class NodesShown(BaseModel):
    nodes: list[NodeShown]


class SessionsShown(BaseModel):
    sessions: list[SessionShown]


class EventsShown(BaseModel):
    events: list[EventShown]


class ObjectsShown(BaseModel):
    objects: list[ObjectShown]
    cursor: int = Field(description="Ask again with this cursor; 0: that was all.")


class ClientShown(Shown):
    handle: str
    name: str = Field(description="Of its identity; empty where everybody may connect.")
    tenant: str
    kind: str = Field(description="client, node or viewer")
    address: str
    pid: int = Field(description="0: not known")
    connections: int
    grants: int
    leases: int
    requests_per_second: float
    bytes_per_second: float


class ClientsShown(BaseModel):
    clients: list[ClientShown]
    total: int = Field(description="All of them, also those that are left out.")


class RevocationShown(BaseModel):
    revoked: int = Field(description="How many clients.")


class TenantShown(Shown):
    name: str
    number: int
    guaranteed_bytes: int = Field(description="Memory that others cannot evict.")
    limit_bytes: int = Field(description="Memory that it cannot exceed; 0: no limit.")
    max_objects: int = Field(description="0: no limit")
    hard_pin_share: float
    max_clients: int = Field(description="0: no limit")
    requests_per_second: int = Field(description="The most, of all its clients together; 0: no limit.")
    lease_share: float
    used_bytes: int = Field(description="Memory of its objects, all replicas together.")
    objects: int
    pinned_bytes: int
    leased_bytes: int
    clients: int
    evicted: int = Field(description="Objects, since this primary began.")
    refused: int = Field(description="Requests that a quota refused since this primary began.")
    request_rate: float = Field(description="Requests per second now; 0 in the answer to a change.")


class TenantsShown(BaseModel):
    tenants: list[TenantShown]


class QuotasGiven(BaseModel):
    """Quotas to change. Those that are left out stay as they are; null resets one to its default."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, int | float | None]  # The master refuses other names, and lists those there are.
    guaranteed_bytes: int | None = None
    limit_bytes: int | None = None
    max_objects: int | None = None
    hard_pin_share: float | None = None
    max_clients: int | None = None
    requests_per_second: int | None = None
    lease_share: float | None = None


class TenantRemovalShown(BaseModel):
    removed: int = Field(description="1, or 0 if there was none of this name.")


class HealthShown(BaseModel):
    ok: bool


class ReadinessShown(BaseModel):
    ready: bool
    reason: str


class RefusalShown(BaseModel):
    detail: str = Field(description="What happened, and what to do.")
