"""The objects that all engines share, in batches, for callers that take no exception: whatever fails is a miss.

Reads are given less time than stores, which may wait for room. Every call costs a number of round trips that does not
grow with the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import holdfast
from holdfast.client.cache import Cache
from holdfast.errors import BadValue, HoldfastError
from holdfast.integrations.link import Link, answered
from holdfast.integrations.lmcache.failures import Failures, log
from holdfast.integrations.lmcache.keys import Namespace
from holdfast.integrations.lmcache.options import LmcacheOptions
from holdfast.messages.requests import NodeInfo
from holdfast.supervisor import Supervisor

T = TypeVar("T")
SWEEP_KEYS = 4_096
"""Keys looked at per sweep, in one round trip: 262,144 tracked keys are all looked at within 16 minutes."""


@dataclass(slots=True)
class PoolFigures:
    """Counts since the start."""

    lookups: int = 0
    lookup_hits: int = 0
    loads: int = 0
    load_hits: int = 0
    loaded_bytes: int = 0
    stores: int = 0
    stored: int = 0
    stored_bytes: int = 0
    removed: int = 0
    evicted: int = 0
    """Stored here, and found to be gone later."""


class SharedPool:
    """For any thread."""

    def __init__(self, options: LmcacheOptions, layout: str) -> None:
        self.options = options
        self.namespace = Namespace(options.key_prefix, layout)
        self.failures = Failures()
        self.figures = PoolFigures()
        self._counting = threading.Lock()
        self._stopped = threading.Event()
        self._supervisor = Supervisor()
        self._link = Link(self._connect, "LMCache", log, options.retry_s)
        try:
            self._link.open()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Cache:
        options = self.options
        return holdfast.connect(
            options.reached_at,
            timeout=options.timeout_s,
            token=options.secret(),
            tls=options.tls(),
            verify=options.verify,
            shared_memory=options.shared_memory,
        )

    def start_patrol(self, patrol: Callable[[], object]) -> None:
        """From now on this is called every `sweep_s` seconds while the link is up, the first time at once."""

        def keep_on() -> None:
            pause = 0.0
            while not self._stopped.wait(pause):
                if self.is_up:
                    patrol()
                pause = self.options.sweep_s if self.is_up else self.options.retry_s

        threading.Thread(
            target=self._supervisor.keep_thread,
            args=("patrol of LMCache's objects", keep_on, self._stopped.wait),
            name="holdfast-patrol",
            daemon=True,
        ).start()

    @property
    def is_up(self) -> bool:
        return self._link.is_up

    def store(self, names: Sequence[str], values: Sequence[Any]) -> list[bool | HoldfastError]:
        """Per name: True stored, False it was there already, or its error."""
        options = self.options
        pairs = list(zip(self.namespace.keys_of(names), values, strict=True))
        try:
            outcomes = self._link.run(
                lambda cache: answered(
                    cache.with_timeout(options.store_timeout_s).put_many(
                        pairs,
                        replicas=options.replicas,
                        soft_pin=options.soft_pin,
                        prefer=options.preferred or None,
                        durability=options.durability or None,
                        outcomes=True,
                    )
                )
            )
        except HoldfastError as error:
            self.failures.note("a store", error, len(pairs))
            outcomes = [error] * len(pairs)
        else:
            self._note_each("a store", outcomes)
        self.count(stores=len(pairs), stored=sum(one is True for one in outcomes))
        return list(outcomes)

    def lookup(self, names: Sequence[str]) -> list[int] | None:
        """Size of each, 0: not stored. Those found are leased until `release` was called as often. None: no master
        answers now, and none is leased."""
        keys = self.namespace.keys_of(names)
        try:
            sizes = self._link.run(lambda cache: cache.lease_many(keys)) if keys else []
        except HoldfastError as error:
            self.failures.note("a lookup", error, len(keys))
            self.count(lookups=len(keys))
            return None
        self.count(lookups=len(keys), lookup_hits=sum(map(bool, sizes)))
        return sizes

    def release(self, names: Sequence[str]) -> None:
        keys = self.namespace.keys_of(names)
        try:
            self._link.run(lambda cache: cache.release_many(keys), even_if_down=True)
        except HoldfastError as error:
            self.failures.note("an unlock", error, len(keys))

    def load(self, names: Sequence[str], targets: Sequence[Any]) -> list[int]:
        """Bytes read into each target, 0 for a miss; what a missed one's target holds then is undefined.

        While no master answers, what is leased is read without one; the others miss at once."""
        keys = self.namespace.keys_of(names)
        found = self._or_misses("a load", len(keys), lambda: self._link.load(keys, list(targets)))
        self._note_each("a load", found)
        sizes = [0 if isinstance(one, HoldfastError) else one for one in found]
        self.count(loads=len(keys), load_hits=sum(map(bool, sizes)), loaded_bytes=sum(sizes))
        return sizes

    def remove(self, names: Sequence[str], force: bool = False) -> list[bool]:
        """Was it there, and is it gone? What somebody reads, or has pinned, stays unless forced."""
        keys = self.namespace.keys_of(names)
        removed = self._or_misses(
            "a removal", len(keys), lambda: self._link.run(lambda cache: cache.remove_many(keys, force=force))
        )
        self.count(removed=sum(map(bool, removed)))
        return [bool(one) for one in removed]

    def present(self, names: Sequence[str]) -> list[bool]:
        """Is it there to be read? Those that are, are leased as by a read."""
        keys = self.namespace.keys_of(names)
        return self._or_misses(
            "a lookup", len(keys), lambda: self._link.run(lambda cache: cache.exists_many(keys, touch=True))
        )

    def gone(self, names: Sequence[str]) -> list[int]:
        """The indices of those that are no longer stored. Leases nothing."""
        keys = self.namespace.keys_of(names)

        def look(cache: Cache) -> list[int]:
            missing = [index for index, there in enumerate(cache.exists_many(keys)) if not there]
            # An object that only silent nodes hold is missing to a reader, but it is not gone.
            stats = cache.stat_many([keys[index] for index in missing]) if missing else []
            return [index for index, stat in zip(missing, stats, strict=True) if stat is None]

        try:
            return self._link.run(look) if keys else []
        except HoldfastError as error:
            self.failures.note("a look at what was evicted", error)
            return []

    def some_names(self, beginning: str, cursor: int) -> tuple[list[str], int]:
        """Some names that begin so, and where to go on (0: nowhere). Raises: it is for people."""
        keys, following = self._link.run(lambda cache: cache.some_keys(self.namespace.start + beginning, cursor))
        return [self.namespace.name_of(key) for key in keys], following

    def sizes_of(self, names: Sequence[str]) -> list[int]:
        """0: not stored. Leases nothing. Raises: it is for people."""
        keys = self.namespace.keys_of(names)
        stats = self._link.run(lambda cache: cache.stat_many(keys)) if keys else []
        return [0 if one is None else one.size_bytes for one in stats]

    def nodes(self) -> list[NodeInfo] | None:
        try:
            return self._link.run(lambda cache: cache.nodes().nodes)
        except HoldfastError as error:
            self.failures.note("asking for the nodes", error)
            return None

    def status(self) -> dict[str, Any]:
        with self._counting:
            figures = asdict(self.figures)
        return {
            "is_healthy": self.is_up,
            "address": self.options.reached_at,
            "key_prefix": self.namespace.start,
            "why_not": self._link.why_down,
            "figures": figures,
            "failures": self.failures.counts(),
        }

    def count(self, **more: int) -> None:
        with self._counting:
            for name, number in more.items():
                setattr(self.figures, name, getattr(self.figures, name) + number)

    def close(self) -> None:
        """Gives all leases up. Closing twice is harmless."""
        self._stopped.set()
        self._link.close()

    def _or_misses(self, doing: str, count: int, call: Callable[[], list[T]]) -> list[Any]:
        if not count:
            return []
        try:
            return call()
        except HoldfastError as error:
            self.failures.note(doing, error, count)
            return [0] * count

    def _note_each(self, doing: str, results: Sequence[object]) -> None:
        failed = [one for one in results if isinstance(one, HoldfastError)]
        for kind in {type(one) for one in failed}:
            same = [one for one in failed if type(one) is kind]
            self.failures.note(doing, same[0], len(same))


def empty_value(name: str) -> BadValue:
    return BadValue(f"the object {name!r} has no bytes; nothing was stored")
