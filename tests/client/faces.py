"""AsyncCache with the calls of Cache, so that every verb is tested once and holds for both shells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import holdfast
from holdfast.client.async_cache import AsyncReservation
from holdfast.errors import HoldfastError


class AwaitedFace:
    """AsyncCache with the calls of Cache: each verb runs the loop until it is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cache: holdfast.AsyncCache) -> None:
        self.loop = loop
        self.cache = cache

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *args, **named: self.loop.run_until_complete(getattr(self.cache, verb)(*args, **named))

    def keys(self, prefix: str = "", **named: Any) -> Iterator[str]:
        async def gathered() -> list[str]:
            return [key async for key in self.cache.keys(prefix, **named)]

        return iter(self.loop.run_until_complete(gathered()))

    def view(self, key: str, **named: Any) -> AwaitedBlock:
        return AwaitedBlock(self.loop, self.cache.view(key, **named))

    def view_many(self, keys: list[str], **named: Any) -> AwaitedBlock:
        return AwaitedBlock(self.loop, self.cache.view_many(keys, **named))

    def reserve(self, key: str, size: int, **options: Any) -> Any:
        return self._faced(self.loop.run_until_complete(self.cache.reserve(key, size, **options)))

    def reserve_many(self, sizes: Any, **options: Any) -> list[Any]:
        return [self._faced(each) for each in self.loop.run_until_complete(self.cache.reserve_many(sizes, **options))]

    def commit_many(self, reserved: list[AwaitedReservation]) -> list[bool | HoldfastError]:
        return self.loop.run_until_complete(self.cache.commit_many([each.reservation for each in reserved]))

    def abandon_many(self, reserved: list[AwaitedReservation]) -> None:
        self.loop.run_until_complete(self.cache.abandon_many([each.reservation for each in reserved]))

    def _faced(self, outcome: Any) -> Any:
        return AwaitedReservation(self.loop, outcome) if isinstance(outcome, AsyncReservation) else outcome


class AwaitedBlock:
    """An `async with` block as a `with` block. The views must have no other name here: references are counted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, block: Any) -> None:
        self.loop = loop
        self.block = block

    def __enter__(self) -> Any:
        return self.loop.run_until_complete(self.block.__aenter__())

    def __exit__(self, *raised: object) -> None:
        self.loop.run_until_complete(self.block.__aexit__(*raised))


class AwaitedReservation:
    def __init__(self, loop: asyncio.AbstractEventLoop, reservation: AsyncReservation) -> None:
        self.loop = loop
        self.reservation = reservation
        self.key = reservation.key
        self.size = reservation.size

    def write(self, start: int, buffer: Any) -> None:
        self.loop.run_until_complete(self.reservation.write(start, buffer))

    def commit(self) -> bool:
        return self.loop.run_until_complete(self.reservation.commit())

    def abandon(self) -> None:
        self.loop.run_until_complete(self.reservation.abandon())

    def __enter__(self) -> AwaitedReservation:
        return self

    def __exit__(self, *raised: object) -> None:
        self.abandon()
