"""The record of what clients saw: every operation from its call to its reply, by the world's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from holdfast.ids import GrantId
from holdfast.simulation.scripts.script import Operation

Outcome: TypeAlias = Literal["pending", "done", "refused", "unknown", "cancelled"]
"""Refused: nothing was changed. Unknown: it may have happened."""


@dataclass(slots=True)
class ClientCall:
    operation: Operation
    """Its keys are named with the client's tenant."""
    called_ns: int
    answered_ns: int = -1
    outcome: Outcome = "pending"
    result: object = None
    error: str = ""
    asked_without: bool = False
    """Nodes that did not answer were ignored: a miss there says nothing."""
    left_out: frozenset[str] = frozenset()
    """Keys of a batch that could not be read: their absence from its reply says nothing."""
    leased_since_ns: dict[str, int] = field(default_factory=dict)
    """Keys that the client held a live lease on when it was called, and since when: the reply may be as old as that."""
    tenant: str = ""


@dataclass(slots=True)
class History:
    calls: list[ClientCall] = field(default_factory=list)
    commits_sent: dict[tuple[GrantId, int], int] = field(default_factory=dict)
    """(grant, offset in it) -> when its commit was last sent."""

    def of_key(self, key: str) -> list[ClientCall]:
        return [call for call in self.calls if key in call.operation.keys]


def named(tenant: str, key: str) -> str:
    """The name of a tenant's key for checkers, which see the keys of all tenants. Scripts' keys have no colon."""
    return f"{tenant}:{key}" if tenant else key


def tenant_in(name: str) -> str:
    return name.rpartition(":")[0]


def key_in(name: str) -> str:
    """The key as its client calls it."""
    return name.rpartition(":")[2]


def value_of(number: int, size_bytes: int) -> bytes:
    """The bytes of a put: its number, over and over."""
    word = number.to_bytes(8, "little")
    return (word * (size_bytes // 8 + 1))[:size_bytes]


def number_of(value: bytes) -> int | None:
    """The number of the put that these bytes are of; None if of none, or of several."""
    number = int.from_bytes(value[:8], "little")
    return number if value == value_of(number, len(value)) else None
