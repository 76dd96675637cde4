"""The client's verbs over a dict, for tests of what the command line does with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import holdfast
from holdfast.errors import BadKey, BufferTooSmall, HoldfastError, ObjectLeased, ObjectNotFound, TooLarge
from holdfast.messages.requests import NodeInfo, NodeList, ObjectStat, Replica, Status


@dataclass
class Explained:
    stat: ObjectStat | None
    reasons: list[str]


@dataclass
class FakeChannel:
    """A master that answers how it stands, whatever it is asked."""

    status: Status

    def call(self, request: object, deadline: float) -> Status:
        return self.status

    def close(self) -> None:
        pass


@dataclass
class FakeReservation:
    cache: FakeCache
    key: str
    memory: bytearray

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, start: int, piece: bytes) -> None:
        self.memory[start : start + len(piece)] = piece

    def commit(self) -> bool:
        self.cache.stored[self.key] = bytes(self.memory)
        return True


@dataclass
class FakeCache:
    stored: dict[str, bytes] = field(default_factory=dict)
    leased: set[str] = field(default_factory=set)
    options: dict[str, Any] = field(default_factory=dict)
    failure: HoldfastError | BaseException | None = None
    """Raised by the next verbs, whatever they are."""
    closed: int = 0
    node_available: bool = True
    free_bytes: int = 1 << 30
    corrupts: bool = False
    timeout: float = 5.0
    used: list[str] = field(default_factory=list)
    pins: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def _checked(self, key: str) -> str:
        if self.failure is not None:
            raise self.failure
        if not key:
            raise BadKey("a key cannot be empty; nothing was sent")
        return key

    def put(self, key: str, data: Any, **options: Any) -> bool:
        self._checked(key)
        self.options = options
        if key in self.stored and not options.get("upsert"):
            return False
        self.stored[key] = bytes(memoryview(data))
        return True

    def reserve(self, key: str, size: int, **options: Any) -> FakeReservation | None:
        self._checked(key)
        self.options = options
        if size > self.free_bytes:
            raise TooLarge("no segment could ever hold it; nothing was stored")
        return None if key in self.stored and not options.get("upsert") else FakeReservation(self, key, bytearray(size))

    def put_many(self, items: Mapping[str, Any]) -> int:
        return sum(self.put(key, data) for key, data in items.items())

    def get(self, key: str) -> bytes:
        if self._checked(key) not in self.stored:
            raise ObjectNotFound(f"no object is stored under {key!r}")
        return b"?" + self.stored[key] if self.corrupts else self.stored[key]

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        return {key: self.stored[key] for key in keys if key in self.stored}

    def get_into(self, key: str, buffer: Any) -> int:
        data = self.get(key)
        with memoryview(buffer) as view:
            if len(view) < len(data):
                raise BufferTooSmall("too small; nothing was copied")
            view[: len(data)] = data
        return len(data)

    def exists(self, key: str) -> bool:
        return self._checked(key) in self.stored

    def exists_many(self, keys: Sequence[str]) -> list[bool]:
        return [self.exists(key) for key in keys]

    def use_many(self, keys: Sequence[str]) -> list[bool]:
        self.used += [key for key in keys if self.exists(key)]
        return self.exists_many(keys)

    def pin(self, keys: Sequence[str], hard: bool = False) -> list[bool]:
        self.pins |= {key: "hard" if hard else "soft" for key in keys if self.exists(key)}
        return self.exists_many(keys)

    def unpin(self, keys: Sequence[str]) -> list[bool]:
        for key in keys:
            self.pins.pop(key, None)
        return self.exists_many(keys)

    def keys(self, prefix: str = "") -> Iterator[str]:
        return (key for key in list(self.stored) if key.startswith(prefix))

    def some_keys(self, prefix: str = "", cursor: int = 0) -> tuple[list[str], int]:
        """Ten a page."""
        self._checked("listed")
        found = list(self.keys(prefix))
        return found[cursor : cursor + 10], cursor + 10 if cursor + 10 < len(found) else 0

    def remove(self, key: str, force: bool = False) -> int:
        if self._checked(key) in self.leased and not force:
            raise ObjectLeased("it is being read for another 9 s; nothing was removed")
        return 1 if self.stored.pop(key, None) is not None else 0

    def remove_matching(self, regex: str, force: bool = False) -> int:
        return sum(self.remove(key, force) for key in list(self.stored) if re.search(regex, key))

    def remove_all(self, force: bool = False) -> int:
        return self.remove_matching("", force)

    def stat(self, key: str) -> ObjectStat:
        replica = Replica("memory", "node-1", 1, 4096, len(self.get(key)))
        return ObjectStat(key, 77, len(self.get(key)), 0xAB, 9_000, 1_000, 60_000, False, [replica])

    def stat_many(self, keys: Sequence[str]) -> list[ObjectStat | None]:
        return [self.stat(key) if key in self.stored else None for key in map(self._checked, keys)]

    def explain(self, key: str) -> Explained:
        if self.exists(key):
            return Explained(self.stat(key), ["it is leased for another 9.0 s"])
        return Explained(None, ["it was evicted 3.0 s ago"])

    def status(self) -> Status:
        self._checked("status")
        used = sum(map(len, self.stored.values()))
        return Status(
            cluster="holdfast",
            name="master-1",
            role="primary",
            epoch=1,
            log_index=9,
            applied_index=9,
            durable_index=9,
            promotable=False,
            promotable_reason="it is the primary",
            objects=len(self.stored),
            used_bytes=used,
            capacity_bytes=1 << 30,
            digest="ab" * 8,
            leader="127.0.0.1:7070",
            granted_bytes=0,
            quarantined_bytes=0,
            free_bytes=self.free_bytes,
            nodes=1,
            clients=1,
            uptime_ms=90_000,
            version=holdfast.__version__,
        )

    def nodes(self) -> NodeList:
        self._checked("nodes")
        silent_ms, standing = (0, "safe") if self.node_available else (45_000, "jeopardy")
        place = ("127.0.0.1:7071", "host", 1, 1 << 30, 1 << 20)
        node = NodeInfo("node-1", "00ab", self.node_available, silent_ms, *place, standing, 9, 4_000, "clean")
        return NodeList([node])
