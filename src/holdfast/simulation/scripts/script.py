"""The script of a run, as data: operations of clients and faults of the world. `draw.py` draws it from a seed."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from holdfast.settings import PresetName

Verb: TypeAlias = Literal[
    "put",
    "upsert",
    "put_many",
    "get",
    "get_many",
    "exists",
    "touch",
    "view",
    "remove",
    "force_remove",
    "remove_matching",
    "remove_all",
    "reserve",
    "abandon",
    "hold",
    "list",
    "pry",
    "pin",
    "unpin",
]
FaultKind: TypeAlias = Literal[
    "kill_master",
    "kill_node",
    "kill_client",
    "pause_master",
    "pause_node",
    "pause_client",
    "cut",
    "partition",
    "reset",
    "store_outage",
    "lost_requests",
    "lost_answers",
    "lost_watches",
    "late_store",
    "slow_network",
    "expire_leader",
    "hand_over",
    "spoil_snapshot",
    "command",
    "refuse",
    "slow_threads",
    "fade",
    "drain",
    "settings",
    "lose_files",
    "spoil_files",
    "slow_disk",
    "take_snapshots",
    "wipe_store",
    "restore",
    "quotas",
]

OF_SCENES: tuple[FaultKind, ...] = ("take_snapshots", "wipe_store", "restore", "quotas")
"""Faults drawn in scenes and for tenants alone: they mean something only there, or end all that was stored before."""
FAULTS: tuple[FaultKind, ...] = tuple(kind for kind in FaultKind.__args__ if kind not in OF_SCENES)  # type: ignore[attr-defined]
DISK_FAULTS: tuple[FaultKind, ...] = ("lose_files", "spoil_files", "slow_disk")
"""Faults in worlds whose nodes have disks."""
VERBS: dict[Verb, int] = {
    "put": 30,
    "upsert": 8,
    "put_many": 6,
    "get": 30,
    "get_many": 6,
    "exists": 4,
    "touch": 3,
    "view": 5,
    "remove": 8,
    "force_remove": 5,
    "remove_matching": 1,
    "remove_all": 1,
}
"""How often each is drawn. Other verbs occur only in scenes, in scripts by hand and where there are tenants: a share
for them would change what every seed plays."""
FAULT_MS = 20_000
"""New faults begin until then; when the last is over, the world heals."""
HEAL_MS = 100
PRIMARY = "primary"
"""As the target of a fault: the master that leads at that moment."""
KEYS = 10
BIG = 256 << 10


class Operation(msgspec.Struct, frozen=True, array_like=True):
    at_ms: int
    client: int
    verb: Verb
    number: int
    """The number of this operation, which identifies its values."""
    keys: tuple[str, ...]
    size_bytes: int = 0
    replicas: int = 1
    durability: str | None = None
    hold_ms: int = 0
    pin: Literal["", "soft", "hard"] = ""
    cancel_ms: int = 0
    """How long after its start the call is cancelled; 0: it is not."""


class Fault(msgspec.Struct, frozen=True, array_like=True):
    at_ms: int
    kind: FaultKind
    lasts_ms: int
    one: str = ""
    other: str = ""
    share: float = 0.0
    after_steps: int = 0
    """If given, the fault begins right after the event with that number instead of at its time."""


class ScriptShape(msgspec.Struct, frozen=True, array_like=True):
    """How large the world is, and how slow."""

    masters: int = 2
    nodes: int = 2
    clients: int = 3
    segment_bytes: int = 4 << 20
    """The memory of each node. With little of it there is always something to evict."""
    slowest_ms: int = 1
    """The longest that a message is under way while nothing is wrong."""
    preset: PresetName = "follow"
    disk_bytes: int = 0
    """The disk of each node; 0: it has none."""
    tenants: tuple[str, ...] = ()
    """The tenant of each client, by its number; empty names and clients beyond the end: the default tenant."""
    remote: tuple[str, ...] = ()
    """Tenants that may not map memory: their clients read and write over TCP."""

    def tenant_of(self, client: int) -> str:
        return self.tenants[client] if client < len(self.tenants) else ""


class Script(msgspec.Struct, frozen=True, array_like=True):
    seed: int
    shape: ScriptShape
    operations: tuple[Operation, ...]
    faults: tuple[Fault, ...]

    @property
    def restores(self) -> bool:
        """Does the operator restore a history? Objects without checksums would not come back with it."""
        return any(fault.kind == "restore" or (fault.kind == "wipe_store" and fault.other) for fault in self.faults)

    @property
    def heals_ms(self) -> int:
        """When the last operation has begun and the last fault is over."""
        begun = max((operation.at_ms for operation in self.operations), default=0)
        return max(begun, max((fault.at_ms + fault.lasts_ms for fault in self.faults), default=0)) + HEAL_MS
