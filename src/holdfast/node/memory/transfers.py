"""Bytes that a data connection has moved. Only its own thread counts them, so counting needs no lock."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Transfers:
    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0

    def add(self, other: Transfers) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def figures(self) -> dict[str, int]:
        return {f"tcp_{each.name}": getattr(self, each.name) for each in fields(self)}
