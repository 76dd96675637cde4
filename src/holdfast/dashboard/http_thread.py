"""An HTTP server in a thread and a loop of its own, so that nothing done to it costs the primary its term (ADR 47).

The thread shares the interpreter's lock with the master's loop. It therefore has a share of a processor: when it has
used more than a fifth of the time that passed, it sleeps until it has not. A flood of connections, of single bytes or
of requests slows down HTTP, and nothing else.

The socket is bound before the thread starts: a port in use is an error at once, and with port 0 the real port is known.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from holdfast.addresses import join_address
from holdfast.dashboard.connections import Acceptor, BoundedConnection, ConnectionPlace, bound
from holdfast.instant import now_seconds
from holdfast.supervisor import Supervisor
from holdfast.transport.certificate_files import ContextSource

STOP_WITHIN_S = 5.0
START_WITHIN_S = 10.0
PROCESSOR_SHARE = 0.2
LEAST_SLEEP_SECONDS = 0.01


class _OwnServer(uvicorn.Server):
    """A server whose connections are bounded, and its use of the processor."""

    def __init__(self, config: uvicorn.Config, tls: ContextSource | None, sleep: Callable[[float], object]) -> None:
        super().__init__(config)
        self._tls = tls
        self._sleep = sleep
        self._used = time.thread_time()
        self._at = now_seconds()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def connect(place: ConnectionPlace) -> BoundedConnection:
            return BoundedConnection(self.config, self.server_state, place)

        assert sockets, "its listener is bound before"
        self.servers = [Acceptor(listener, self._tls, connect, self._end) for listener in sockets]  # type: ignore[misc]
        self.started = True

    def _end(self) -> None:
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: sleep, if more than its share was used since the last time. It blocks this loop, on
        purpose, and gives the interpreter's lock away meanwhile."""
        over = (time.thread_time() - self._used) / PROCESSOR_SHARE - (now_seconds() - self._at)
        if over > LEAST_SLEEP_SECONDS:
            self._sleep(over)
        self._used, self._at = time.thread_time(), now_seconds()
        return await super().on_tick(counter)


class HttpThread:
    """An HTTP server, from `start` until `stop`; if it ends earlier, it is restarted."""

    def __init__(self, app: ASGIApp, host: str, port: int, tls: ContextSource | None = None) -> None:
        """Bind the port; OSError at once if it is not available."""
        self._app = app
        self._tls = tls
        self._listener = bound(host, port)
        self._at: tuple[str, int] = self._listener.getsockname()[:2]
        self.address: str = join_address(*self._at)
        self._stopping = threading.Event()
        self._server = self._made()
        self._thread: threading.Thread | None = None

    def _made(self) -> _OwnServer:
        # A line for each stranger that sends garbage would be a flood of its own.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            loop="none",
            server_header=False,
            timeout_graceful_shutdown=int(STOP_WITHIN_S),
        )
        return _OwnServer(config, self._tls, self._stopping.wait)

    async def start(self, supervisor: Supervisor, name: str) -> None:
        """Return when it answers."""

        def keep() -> None:
            supervisor.keep_thread(name, self._run, self._stopping.wait)

        self._thread = threading.Thread(target=keep, name=name, daemon=True)
        self._thread.start()
        async with asyncio.timeout(START_WITHIN_S):
            while not self._server.started:  # noqa: ASYNC110 - uvicorn tells it by this attribute only.
                await asyncio.sleep(0.005)

    def _run(self) -> None:
        # Not uvloop: nothing here is hot, and the two loops shall have nothing in common.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        if self._stopping.is_set():
            return
        if self._listener.fileno() < 0:  # An earlier server has ended, and closed it.
            self._listener = bound(*self._at)
            self._server = self._made()
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            self._listener.close()
        if not self._stopping.is_set():
            raise OSError(f"the HTTP server on {self.address} ended by itself")

    async def stop(self) -> None:
        """Give replies a moment to finish, then close."""
        self._stopping.set()
        self._server.should_exit = True
        try:
            async with asyncio.timeout(STOP_WITHIN_S + 1):
                while self._thread is not None and self._thread.is_alive():  # noqa: ASYNC110 - a thread sets no event.
                    await asyncio.sleep(0.01)
        finally:
            self._listener.close()


async def serve_http(
    app: ASGIApp,
    host: str,
    port: int,
    supervisor: Supervisor | None = None,
    name: str = "HTTP server",
    tls: ContextSource | None = None,
) -> HttpThread:
    """Serve from a thread of its own, which the supervisor knows by `name`. OSError at once if the port is not
    available."""
    server = HttpThread(app, host, port, tls)
    try:
        await server.start(supervisor if supervisor is not None else Supervisor(), name)
    except BaseException:
        await server.stop()
        raise
    return server
