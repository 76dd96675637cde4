"""Published values in ZooKeeper, for watchers.

A watch on the children reports new names, one on each value its changes; each fires once and is set again by the read
that follows. After a change of the connection, which may have lost watches, all are set again, and every value is
reported anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kazoo.exceptions import NoNodeError

from holdfast.coordination.watches import Changes
from holdfast.coordination.zookeeper.session import ZooKeeperSession
from holdfast.coordination.zookeeper.term import Paths


class PublishedWatch:
    def __init__(
        self, session: ZooKeeperSession, paths: Paths, read: Callable[[str], Awaitable[bytes | None]], prefix: str
    ) -> None:
        self.changes = Changes()
        self._session = session
        self._paths = paths
        self._read = read
        self._prefix = prefix
        self._known: set[str] = set()
        """Names that were reported, and whose values are watched."""
        session.when_moved(self._watches_lost)

    def close(self) -> None:
        self._session.forget_moved(self._watches_lost)

    def _watches_lost(self) -> None:
        self._known.clear()
        self.changes.bump()

    def _children_event(self, _: Any) -> None:
        self._session.soon(self.changes.bump)

    def _value_event(self, name: str) -> Callable[[Any], None]:
        def changed() -> None:
            self._known.discard(name)
            self.changes.bump()

        return lambda _: self._session.soon(changed)

    async def read(self) -> dict[str, bytes]:
        """Values that are new or changed since the last call."""
        client = self._session.client
        children = await self._session.read(client.get_children_async(self._paths.published, self._children_event))
        names = [name for name in map(self._paths.published_name, children) if name.startswith(self._prefix)]
        self._known.intersection_update(names)
        news: dict[str, bytes] = {}
        for name in sorted(set(names) - self._known):
            # The watch is set before the value is read, so that no change is missed between the two.
            try:
                path = self._paths.of_published(name)
                await self._session.read(client.exists_async(path, self._value_event(name)))
                value = await self._read(name)
            except NoNodeError:
                continue
            self._known.add(name)
            if value is not None:
                news[name] = value
        return news
