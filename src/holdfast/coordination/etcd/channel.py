"""Requests to etcd: to one of several members at a time, to the next one when it fails, each with a deadline.

A write whose reply is lost is `ReplyLost`; one that certainly did nothing is `CoordinationLost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio

from holdfast.coordination.etcd import rpc
from holdfast.coordination.interface import CoordinationLost, StoreFull, StoreFullInDoubt
from holdfast.coordination.urls import Location
from holdfast.errors import BadValue, HoldfastError, NotAuthorized, ReplyLost

log = logging.getLogger("holdfast.coordination")

OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1500),  # This is also the timeout of one attempt to connect.
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]
NOT_SENT = ("failed to connect", "connection refused", "name resolution", "dns resolution", "too many requests")
LEAST_TRY_S = 0.5
WATCH_AGAIN_S = 0.2


class Stubs(NamedTuple):
    channel: Any
    kv: Any
    lease: Any
    watch: Any
    auth: Any


def stubs_on(channel: Any) -> Stubs:
    return Stubs(channel, *(rpc.stub(channel, service) for service in ("KV", "Lease", "Watch", "Auth")))


def credentials_of(place: Location) -> Any:
    """TLS credentials from the URL, or None."""
    options = place.options
    if not place.is_encrypted:
        return None

    def content(name: str) -> bytes | None:
        if not options.get(name):
            return None
        try:
            return Path(options[name]).read_bytes()
        except OSError as error:
            raise BadValue(f"cannot read {name}={options[name]}: {error.strerror}") from error

    return grpc.ssl_channel_credentials(content("ca"), content("key"), content("cert"))


def told(error: Any, place: Location, writes: bool) -> HoldfastError:
    """Translate an error of gRPC for the caller."""
    code, details = error.code(), error.details() or ""
    where = f"etcd at {','.join(place.hosts)}"
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return NotAuthorized(f"{where} refuses: {details}; nothing was changed")
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
        if "auth" in details or "user name" in details:
            return NotAuthorized(f"{where} refuses: {details}; check user= in its URL, and its password")
        return BadValue(f"{where} refuses: {details}; nothing was changed")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" in details:
        # etcd performs the write that exceeds its quota, and still answers with this error; later writes are not done.
        return (StoreFullInDoubt if writes else StoreFull)(
            f"{where} has filled its quota and takes no writes; the last one may have been written; "
            "compact and defragment it, then disarm the NOSPACE alarm"
        )
    text = f"{where} does not answer: {details or code.name}"
    if writes and not any(sign in details.lower() for sign in NOT_SENT):
        return ReplyLost(f"{text}; it may have been written")
    return CoordinationLost(f"{text}; nothing was changed")


def is_stale_token(error: Any) -> bool:
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or "auth store is old" in (error.details() or "")


def range_end_of(prefix: bytes) -> bytes:
    """The end of the key range under a prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


class EtcdChannel:
    def __init__(self, place: Location, answer_s: float) -> None:
        self.place = place
        self.answer_s = answer_s
        self._credentials = credentials_of(place)
        self._at = 0
        self._open: dict[int, Stubs] = {}
        self._token = ""
        self._logging_in = asyncio.Lock()
        self._watching: dict[Any, None] = {}

    def _stubs(self) -> Stubs:
        if self._at not in self._open:
            host = self.place.hosts[self._at]
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(host, options=OPTIONS)
            else:
                channel = grpc.aio.secure_channel(host, self._credentials, options=OPTIONS)
            self._open[self._at] = stubs_on(channel)
        return self._open[self._at]

    def _next_member(self, failed: int) -> None:
        if failed == self._at and len(self.place.hosts) > 1:
            self._at = (self._at + 1) % len(self.place.hosts)
            for call in self._watching:
                call.cancel()

    def _metadata(self, token: str) -> list[tuple[str, str]]:
        # A member that is cut off from the others must fail instead of waiting for them.
        found = [("hasleader", "true")]
        if token:
            found.append(("token", token))
        return found

    async def authenticate(self, stale: str = "") -> None:
        try:
            await self._replace_token(stale)
        except grpc.aio.AioRpcError as error:
            raise told(error, self.place, writes=False) from error

    async def _replace_token(self, stale: str) -> None:
        """Log in again. Many requests find a token expired at once: the first one logs in, the others use its token."""
        async with self._logging_in:
            # Read again each time: a password that was changed in its file counts from the next login on.
            login = self.place.login() if self._token == stale else None
            if login is not None:
                request = rpc.AuthenticateRequest(name=login[0], password=login[1])
                # etcd refuses even this request if it carries an expired token.
                answer = await self._try(lambda stubs: stubs.auth.Authenticate, request, self.answer_s, token="")
                self._token = answer.token

    async def read(self, method: Callable[[Stubs], Any], request: Any) -> Any:
        """Send a read. It is harmless to repeat, so every member is tried."""
        try_s = max(LEAST_TRY_S, self.answer_s / len(self.place.hosts))
        for left in reversed(range(len(self.place.hosts))):
            try:
                return await self._with_token(method, request, try_s)
            except grpc.aio.AioRpcError as error:
                failure = told(error, self.place, writes=False)
                if left == 0 or not isinstance(failure, CoordinationLost):
                    raise failure from error
        raise AssertionError("an etcd location without hosts")

    async def write(self, method: Callable[[Stubs], Any], request: Any) -> Any:
        """Send a write, once."""
        try:
            return await self._with_token(method, request, self.answer_s)
        except grpc.aio.AioRpcError as error:
            raise told(error, self.place, writes=True) from error

    async def _with_token(self, method: Callable[[Stubs], Any], request: Any, try_s: float) -> Any:
        used = self._token
        try:
            return await self._try(method, request, try_s, used)
        except grpc.aio.AioRpcError as error:
            # A token expires, and dies with the member that gave it; a request refused for it was not done.
            if not used or not is_stale_token(error):
                raise
        await self._replace_token(used)
        return await self._try(method, request, try_s, self._token)

    async def _try(self, method: Callable[[Stubs], Any], request: Any, try_s: float, token: str) -> Any:
        at = self._at
        try:
            return await method(self._stubs())(request, timeout=try_s, metadata=self._metadata(token))
        except grpc.aio.AioRpcError as error:
            if error.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.UNKNOWN,
                grpc.StatusCode.INTERNAL,
            ):
                self._next_member(at)
            raise

    async def keep_alive(self, lease: int) -> int:
        """Renew the lease; return its seconds, 0 if it is gone."""
        at, used = self._at, self._token
        call = self._stubs().lease.LeaseKeepAlive(timeout=self.answer_s, metadata=self._metadata(used))
        try:
            await call.write(rpc.LeaseKeepAliveRequest(ID=lease))
            answer = await call.read()
            if answer is grpc.aio.EOF:
                raise CoordinationLost(f"etcd at {self.place.hosts[at]} closed the lease's stream; it is tried again")
            return int(answer.TTL)
        except grpc.aio.AioRpcError as error:
            self._next_member(at)
            if used and is_stale_token(error):
                await self.authenticate(used)
            raise told(error, self.place, writes=False) from error
        finally:
            call.cancel()

    async def watch(self, wanted: list[Any]) -> AsyncIterator[Any]:
        """Watch at one member; ends when that fails. Nobody may rely on it alone."""
        over = asyncio.Event()

        async def asked() -> AsyncIterator[Any]:
            # An iterator for the call, instead of writes: a write waits for ever on a call that ended before it.
            for one in wanted:
                yield rpc.WatchRequest(create_request=one)
            await over.wait()  # The end of the requests would be the end of the watch.

        call = self._stubs().watch.Watch(asked(), metadata=self._metadata(self._token))
        self._watching[call] = None
        try:
            async for answer in call:
                if answer.canceled:
                    return
                yield answer
        finally:
            del self._watching[call]
            over.set()
            call.cancel()

    async def keep_watching(self, wanted: list[Any], told: Callable[[list[Any]], None]) -> None:
        """Watch until cancelled, at one member after another. `told` gets the events, and an empty list when some may
        be missing."""
        while True:
            try:
                async for answer in self.watch(wanted):
                    told(answer.events)
            except grpc.aio.AioRpcError as error:
                log.debug("the watch of etcd broke: %s", error.details())
            except asyncio.CancelledError:
                # `_next_member` cancels the call, not this task.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
            told([])
            await asyncio.sleep(WATCH_AGAIN_S)

    async def close(self) -> None:
        for stubs in self._open.values():
            await stubs.channel.close(None)
        self._open.clear()
