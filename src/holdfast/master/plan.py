"""A master's plan: its settings at the start."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.rules import Rules
from holdfast.replication.carried import PIECE_BYTES


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one master; all masters of a cluster have the same rules."""

    rules: Rules
    cluster: str
    address: str
    leader_ttl_ms: int = 5_000
    durability: str = "durable"
    early_takeover: bool = True
    snapshot_bytes: int = 64 << 20
    """How much the log grows between two snapshots."""
    piece_bytes: int = PIECE_BYTES
    """The size of the pieces in which a restore writes the catalogue to the log."""
    new_history: bool = False
    """If the store is empty, begin an empty history, whatever other histories are known here."""
    insecure: tuple[str, ...] = ()
    """Listeners beyond this machine that lack protection, and what each lacks."""
    again_seconds: float = 0.5
    """How long a role waits before it tries again what has failed."""
