"""Clients with an identity, of a tenant, beside clients of a cluster open to all, turn by turn: what security costs.

Both clusters give tickets for reads over TCP: there is no way to read without one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import DURABLE, Row, Scale, interleaved, rate, rate_over, ratio_row
from benchmarks.processes import Cluster, wait_until_mapped
from holdfast.client.cache import Cache
from holdfast.identity.new_tokens import NewEntry, append_entry, fresh_token

BATCH = 512
VALUE = os.urandom(1024)
OPEN = "without identities"
NODE, CLIENT = "node", "client"


class TenantCluster(Cluster):
    """Its node and its clients have tokens; the clients are of a tenant, and may map memory."""

    def __init__(self, size: str) -> None:
        self._keys = tempfile.TemporaryDirectory(prefix="holdfast-keys-")
        file = Path(self._keys.name) / "identities.toml"
        self._tokens = {NODE: fresh_token(), CLIENT: fresh_token()}
        append_entry(file, NewEntry(NODE, ["node"]), self._tokens[NODE])
        append_entry(file, NewEntry(CLIENT, ["writer"], tenant="blue", shared_memory=True), self._tokens[CLIENT])
        super().__init__(size, identities=file)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._keys.cleanup()

    def add_node(self, name: str, *more: str) -> None:
        shown = Path(self._keys.name) / f"{name}.token"
        shown.touch(0o600)
        shown.write_text(self._tokens[NODE])
        super().add_node(name, "--token-file", str(shown), *more)

    def connect(self, **options: Any) -> Cache:
        return super().connect(token=self._tokens[CLIENT], **options)

    def connect_warm(self, **options: Any) -> Cache:
        cache = self.connect(**options)
        cache.put("warm", b"up")
        cache.get("warm")
        cache.remove("warm")  # Without force, which is the operator's.
        wait_until_mapped()
        return cache


def run(scale: Scale) -> list[Row]:
    with Cluster("1GiB") as plain, TenantCluster("1GiB") as guarded:
        return [
            *_single(scale, plain, guarded),
            *_batches(scale, plain, guarded, "same host", 0.95),
            *_batches(scale, plain, guarded, "over TCP", 0.9, shared_memory=False),
        ]


def _single(scale: Scale, plain: Cluster, guarded: Cluster) -> list[Row]:
    count = scale.of(1000, 100)
    turns: dict[str, Callable[[int], float]] = {}
    with (
        plain.connect_warm() as writer,
        plain.connect_warm() as reader,
        guarded.connect_warm() as own_writer,
        guarded.connect_warm() as own_reader,
    ):
        for name, puts, gets in (("plain", writer, reader), ("guarded", own_writer, own_reader)):
            # Another client than the writer, and each key once: nothing is leased, so every get asks.
            turns[f"{name} put"] = lambda number, cache=puts: rate_over(  # type: ignore[misc]
                lambda key: cache.put(key, VALUE), _keys(number, count)
            )
            turns[f"{name} get"] = lambda number, cache=gets: rate_over(cache.get, _keys(number, count))  # type: ignore[misc]
        figures = interleaved(2 * scale.rounds, turns)
    return [
        ratio_row("put 1 KiB, of a tenant", figures["guarded put"], "ops/s", figures["plain put"], OPEN, 0.95, DURABLE),
        ratio_row("get 1 KiB, of a tenant", figures["guarded get"], "ops/s", figures["plain get"], OPEN, 0.95),
    ]


def _keys(number: int, count: int) -> list[str]:
    return [f"single/{number}/{each}" for each in range(count)]


def _batches(scale: Scale, plain: Cluster, guarded: Cluster, how: str, at_least: float, **options: object) -> list[Row]:
    batches = scale.of(8, 2)
    turns: dict[str, Callable[[int], float]] = {}
    with (
        plain.connect_warm(**options) as writer,
        plain.connect_warm(**options) as reader,
        guarded.connect_warm(**options) as own_writer,
        guarded.connect_warm(**options) as own_reader,
    ):
        for name, puts, gets in (("plain", writer, reader), ("guarded", own_writer, own_reader)):
            turns[f"{name} put"] = lambda number, cache=puts: _put(cache, how, number, batches)  # type: ignore[misc]
            turns[f"{name} get"] = lambda number, cache=gets: _get(cache, how, number, batches)  # type: ignore[misc]
        figures = interleaved(2 * scale.rounds, turns)
    return [
        ratio_row(
            f"{verb}_many, {BATCH} x 1 KiB, {how}, of a tenant",
            figures[f"guarded {verb}"],
            "keys/s",
            figures[f"plain {verb}"],
            OPEN,
            at_least,
            DURABLE if verb == "put" else "",
        )
        for verb in ("put", "get")
    ]


def _names(how: str, number: int, batch: int) -> list[str]:
    return [f"batch/{how}/{number}/{batch}/{each}" for each in range(BATCH)]


def _put(cache: Cache, how: str, number: int, batches: int) -> float:
    todo = iter([dict.fromkeys(_names(how, number, batch), VALUE) for batch in range(batches)])
    return BATCH * rate(lambda: cache.put_many(next(todo)), batches)


def _get(cache: Cache, how: str, number: int, batches: int) -> float:
    todo = iter([_names(how, number, batch) for batch in range(batches)])

    def get() -> None:
        if len(cache.get_many(next(todo))) != BATCH:
            raise SystemExit("an object that was put is not there")

    return BATCH * rate(get, batches)
