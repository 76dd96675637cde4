"""A ZooKeeper session for asyncio: kazoo's threads do the work, the event loop gets the replies.

Every request has a deadline. A connection that is lost for a while ends nothing: reads and writes fail, the leader's
own deadline passes if the outage lasts, and listeners are called only for a session that ended for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from holdfast.coordination.interface import CoordinationLost
from holdfast.coordination.urls import Location
from holdfast.errors import BadValue, NotAuthorized, ReplyLost

log = logging.getLogger("holdfast.coordination")

OPEN_S = 5.0
REFUSALS = (BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency)


def client_of(place: Location, timeout_s: float, retry: KazooRetry | None = None) -> KazooClient:
    """A client with the TLS and the user of the URL. Nodes made by a user are for that user alone: the log holds the
    secret of the cluster."""
    options: dict[str, Any] = {"timeout": timeout_s, "connection_retry": retry, "logger": _kazoo_log()}
    if place.is_encrypted:
        ca, cert, key = (place.options.get(name) for name in ("ca", "cert", "key"))
        options |= {"use_ssl": True, "check_hostname": True, "ca": ca, "certfile": cert, "keyfile": key}
    login = place.login()
    if login is not None:
        options["default_acl"] = CREATOR_ALL_ACL
        if place.options.get("auth") == "sasl":
            options["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": login[0], "password": login[1]}
        else:
            options["auth_data"] = [("digest", ":".join(login))]
    try:
        return KazooClient(",".join(place.hosts), **options)
    except ImportError as error:
        raise BadValue(f"auth=sasl needs a package that is not installed ({error}): pip install pure-sasl") from error


def refused(place: Location) -> NotAuthorized:
    return NotAuthorized(
        f"ZooKeeper at {','.join(place.hosts)} refuses this user; nothing was changed. Check user= in its URL, its "
        f"password, and who owns the nodes: zkCli.sh getAcl /holdfast/{place.cluster}"
    )


class ZooKeeperSession:
    def __init__(self, place: Location, timeout_s: float, answer_s: float) -> None:
        self.place = place
        self.hosts = ",".join(place.hosts)
        self._answer_s = answer_s
        self._forgets_s = 2 * timeout_s
        self._forgetting: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._lost: list[Callable[[], None]] = []
        self._moved: list[Callable[[], None]] = []
        retry = KazooRetry(max_tries=-1, delay=0.1, max_delay=1.0)
        self.client = client_of(place, timeout_s, retry)
        self.client.add_listener(self._state_changed)

    @property
    def number(self) -> int | None:
        """The session's id, which owns its ephemeral nodes."""
        identity = self.client.client_id
        return None if identity is None else int(identity[0])

    def when_lost(self, call: Callable[[], None]) -> None:
        self._lost.append(call)

    def when_moved(self, call: Callable[[], None]) -> None:
        """Call this after any change of the connection: watches may have missed something."""
        self._moved.append(call)

    def forget_moved(self, call: Callable[[], None]) -> None:
        if call in self._moved:
            self._moved.remove(call)

    def soon(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _state_changed(self, state: str) -> None:
        for call in [*self._moved, *(self._lost if state == KazooState.LOST else [])]:
            self.soon(call)
        self.soon(lambda: self._count_absence(state))

    def _count_absence(self, state: str) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        if state == KazooState.SUSPENDED:
            self._forgetting = self._loop.call_later(self._forgets_s, self._forget_what_was_seen)

    def _forget_what_was_seen(self) -> None:
        """Reset the last transaction seen. A server refuses, for ever, a client that has seen more than itself, and so
        does one that was emptied. By now the session must be over anyway, so pose as a new client."""
        log.warning("no ZooKeeper server has let this master in for %g s: it begins anew with them", self._forgets_s)
        self.client.last_zxid = 0

    async def open(self) -> None:
        connected = self.client.start_async()
        found = await self._loop.run_in_executor(None, connected.wait, OPEN_S)
        if self.client.client_state == KeeperState.AUTH_FAILED:
            raise refused(self.place)
        if not found:
            raise CoordinationLost(f"ZooKeeper at {self.hosts} does not answer; nothing was changed")

    async def read(self, result: Any) -> Any:
        """Await a read. `NoNodeError` passes through; any other failure is `CoordinationLost`."""
        return await self._asked(result, NoNodeError, CoordinationLost)

    async def write(self, result: Any) -> Any:
        """Await a write. A refusal (wrong version, node missing or existing) passes through; after any other failure it
        may have been done."""
        return await self._asked(result, REFUSALS, ReplyLost, "; it may have been written")

    async def _asked(
        self,
        result: Any,
        passes: type[KazooException] | tuple[type[KazooException], ...],
        failure: type[CoordinationLost | ReplyLost],
        doubt: str = "",
    ) -> Any:
        try:
            return await self._answer(result)
        except passes:
            raise
        except (NoAuthError, AuthFailedError) as error:
            raise refused(self.place) from error
        except (KazooException, TimeoutError) as error:
            raise failure(f"ZooKeeper at {self.hosts} does not answer: {_name(error)}{doubt}") from error

    async def commit(self, transaction: Any) -> list[Any] | None:
        """The results of all operations, or None if the transaction was refused as a whole."""
        results: list[Any] = await self.write(transaction.commit_async())
        failed = [result for result in results if isinstance(result, Exception)]
        for error in failed:
            if isinstance(error, NoAuthError):
                raise refused(self.place) from error
            if not isinstance(error, REFUSALS):
                raise ReplyLost(f"ZooKeeper at {self.hosts} answered {_name(error)}; it may have been written")
        return None if failed else results

    async def _answer(self, result: Any) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()

        def resolve() -> None:
            if answer.done():
                return
            if result.exception is not None:
                answer.set_exception(result.exception)
            else:
                answer.set_result(result.value)

        result.rawlink(lambda _: self.soon(resolve))
        async with asyncio.timeout(self._answer_s):
            return await answer

    async def close(self) -> None:
        self._lost.clear()
        self._moved.clear()
        self._count_absence(KazooState.LOST)
        await self._loop.run_in_executor(None, self._stop)

    def _stop(self) -> None:
        self.client.stop()
        self.client.close()


def _name(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()


def _kazoo_log() -> logging.Logger:
    found = logging.getLogger("holdfast.coordination.kazoo")
    found.setLevel(logging.ERROR)
    return found
