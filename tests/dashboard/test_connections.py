"""A server that is told nothing, little, or too much: how many connections it keeps, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse

from holdfast.addresses import split_address
from holdfast.dashboard import connections
from holdfast.dashboard.access import Doorkeeper, GuardedApp, Shares, open_to_all
from holdfast.dashboard.http import build_app
from holdfast.dashboard.http_thread import HttpThread, serve_http
from holdfast.dashboard.probes import new_app
from holdfast.identity.identities import Entry, Identities, Identity
from holdfast.identity.roles import Role, with_included
from holdfast.instant import now_seconds
from holdfast.transport.certificate_files import ContextSource
from holdfast.transport.tls import http_context
from tests.certificates import HALF_HELLO
from tests.dashboard.fake_view import EVERYBODYS, FakeView, SameLoop
from tests.e2e.test_tls import make_authority, sign
from tests.waiting import closed_by_peer

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PARTIAL = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


async def connect(server: HttpThread) -> Connected:
    host, port = split_address(server.address)
    return await asyncio.open_connection(host, port)


@contextlib.asynccontextmanager
async def crowd(server: HttpThread, said: bytes) -> AsyncIterator[None]:
    """Twenty connections that say no more than this; all but the last four are closed by the end of the block."""
    connected: list[Connected] = []
    try:
        for _ in range(20):
            connected.append(await connect(server))
            connected[-1][1].write(said)
        yield
        for pushed in connected[:16]:
            assert await closed_by_peer(*pushed)
    finally:
        for _, writer in connected:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[HttpThread]:
    served = await serve_http(GuardedApp(build_app(FakeView(), SameLoop()), EVERYBODYS), "127.0.0.1", 0)
    yield served
    await served.stop()


async def healthy(server: HttpThread) -> bool:
    async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60) as http:
        return (await http.get("/healthz")).status_code == 200


async def test_a_header_that_does_not_come_in_time_ends_the_connection(
    server: HttpThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WAIT_SECONDS", 0.3)
    silent, slow, again = [await connect(server) for _ in range(3)]
    slow[1].write(PARTIAL)
    # Its first request is answered; the header of its second one does not come.
    again[1].write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + PARTIAL)
    assert await closed_by_peer(*silent)
    assert await closed_by_peer(*slow)
    assert await closed_by_peer(*again)


async def test_a_header_that_comes_byte_by_byte_has_no_more_time(
    server: HttpThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WAIT_SECONDS", 0.3)
    reader, writer = await connect(server)

    async def trickle() -> None:
        writer.write(PARTIAL)
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    slow = asyncio.create_task(trickle())
    assert await closed_by_peer(reader, writer)
    slow.cancel()


async def test_a_header_without_end_is_refused(server: HttpThread) -> None:
    reader, writer = await connect(server)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000)
    async with asyncio.timeout(60):
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_who_has_waited_longest_gives_its_place_to_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a crowd of half-open connections cannot keep a probe out."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(connections, "WAIT_SECONDS", 600)
    server = await serve_http(GuardedApp(build_app(FakeView(), SameLoop()), EVERYBODYS), "127.0.0.1", 0)
    try:
        async with crowd(server, PARTIAL):
            assert await healthy(server)
    finally:
        await server.stop()


async def test_who_does_not_take_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_WITHIN_SECONDS", 0.5)
    app, given_up = FastAPI(), asyncio.Event()
    here = asyncio.get_running_loop()

    @app.get("/endless")
    @open_to_all
    async def endless() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65_536
                    await asyncio.sleep(0)
            finally:
                here.call_soon_threadsafe(given_up.set)

        return StreamingResponse(pieces())

    server = await serve_http(GuardedApp(app, EVERYBODYS), "127.0.0.1", 0)
    _, writer = await connect(server)
    try:
        writer.write(b"GET /endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(60):
            await given_up.wait()
    finally:
        writer.close()
        await server.stop()


def deaf(server: HttpThread, requests: bytes, takes_bytes: int = 2_048) -> socket.socket:
    """A client that asks for much, and reads nothing; its machine takes so much for it."""
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes_bytes)
    stream.connect(split_address(server.address))
    stream.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        stream.send(requests)
    return stream


@pytest.mark.parametrize(
    ("path", "takes_bytes"),
    [(b"/page/dashboard.js", 2_048), (b"/nothing", 2_048), (b"/nothing", 4 << 20)],
    ids=["what is open", "what is refused", "so much that the server is never done"],
)
async def test_strangers_who_take_no_answers_keep_no_probe_out(
    path: bytes, takes_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are more than there are places, and more than may be under way."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(connections, "ANSWER_WITHIN_SECONDS", 600)
    view, identities = FakeView(), Identities([Entry(Identity("reader", with_included([Role.READER])), ("sha256:",))])
    app = GuardedApp(build_app(view, SameLoop()), Doorkeeper(identities), Shares(of_all=4, of_others=4, of_one=4))
    server = await serve_http(app, "127.0.0.1", 0)
    requests = (b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path) * 4_000
    crowd = [deaf(server, requests, takes_bytes) for _ in range(24)]
    try:
        for _ in range(3):
            assert await healthy(server)
    finally:
        for stream in crowd:
            stream.close()
        await server.stop()


async def test_an_answer_may_be_taken_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as an answer may take, not as long as a header: the last of it waits in the connection's memory when
    the application has given it away."""
    app, content = new_app(), b"x" * 8_000_000

    @app.get("/large")
    @open_to_all
    async def large() -> Response:
        monkeypatch.setattr(connections, "WAIT_SECONDS", 0.02)  # Not before: the request had time to come.
        return Response(content)

    server = await serve_http(GuardedApp(app, EVERYBODYS), "127.0.0.1", 0)
    stream = deaf(server, b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    try:
        began, taken = time.monotonic(), b""
        async with asyncio.timeout(60):
            while piece := await asyncio.get_running_loop().sock_recv(stream, 65_536):
                taken += piece
                if time.monotonic() - began < 1.0:  # Much longer than a header may take.
                    await asyncio.sleep(0.05)
    finally:
        stream.close()
        await server.stop()
    assert taken.endswith(b"\r\n\r\n" + content)


GARBAGE = b"zz\r\nno chunk\r\n\r\n"
CHUNKED = b" /held HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("begins", [False, True], ids=["before the answer", "in the middle of the answer"])
@pytest.mark.parametrize("request_line", [b"GET", b"POST"])
async def test_garbage_in_the_middle_of_a_request_is_not_worth_a_line_in_the_log(
    begins: bool, request_line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Any stranger can send it, as fast as it likes."""
    app, has_begun, goes_on, ended = new_app(), threading.Event(), asyncio.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def held() -> StreamingResponse | str:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            has_begun.set()
            await goes_on.wait()
            yield b"second"

        loops.append(asyncio.get_running_loop())
        try:
            if begins:
                return StreamingResponse(pieces())
            has_begun.set()
            await goes_on.wait()
            return "late"
        finally:
            ended.set()

    app.add_api_route("/held", open_to_all(held), methods=["GET", "POST"], response_model=None)
    server = await serve_http(GuardedApp(app, EVERYBODYS), "127.0.0.1", 0)
    try:
        reader, writer = await connect(server)
        writer.write(request_line + CHUNKED)
        async with asyncio.timeout(60):
            await asyncio.to_thread(has_begun.wait)
            writer.write(GARBAGE)
            answer = await reader.read()
        writer.close()
        loops[0].call_soon_threadsafe(goes_on.set)
        await asyncio.to_thread(ended.wait)
    finally:
        loops[0].call_soon_threadsafe(goes_on.set)
        await server.stop()
    assert answer.startswith(b"HTTP/1.1 200" if begins else b"HTTP/1.1 400")
    assert begins or b"x-content-type-options: nosniff" in answer.lower()
    assert caplog.records == []


async def test_a_server_that_ends_by_itself_is_started_again(server: HttpThread) -> None:
    server._server.should_exit = True
    deadline = time.monotonic() + 60
    while True:
        try:
            assert await healthy(server)
            if server._server.started and not server._server.should_exit:
                return
        except httpx.TransportError:
            assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_connection_that_comes_as_its_server_ends_is_not_left_hanging(turns: int) -> None:
    """The server stops accepting some turns of the loop after the listener was ready."""
    loop = asyncio.get_running_loop()
    listener = connections.bound("127.0.0.1", 0)
    acceptor = connections.Acceptor(listener, None, lambda place: asyncio.Protocol(), lambda: None)
    for _ in range(10):
        await asyncio.sleep(0)  # It waits for connections by then.

    def end() -> None:
        acceptor.close()
        listener.close()

    with socket.create_connection(listener.getsockname(), timeout=60) as late:
        # The next turn runs this and then the listener's callback; `end` comes first in a turn after it.
        step: Callable[[], object] = end
        for _ in range(turns):
            step = functools.partial(loop.call_soon, step)
        step()
        for _ in range(turns + 10):
            await asyncio.sleep(0)
        late.setblocking(False)
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                assert await loop.sock_recv(late, 1) == b""


async def test_a_thread_that_used_more_than_its_share_sleeps(server: HttpThread) -> None:
    slept: list[float] = []
    own = server._made()
    own._sleep = slept.append
    await own.on_tick(1)
    assert slept == []
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    own._at = now_seconds()  # As if no time had passed meanwhile.
    await own.on_tick(2)
    assert slept[0] > 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("https")
    for name in ("ours", "theirs"):
        make_authority(made, name)
    sign(made, "ours", "server", "127.0.0.1")
    for authority, name in (("ours", "reader"), ("ours", "unknown"), ("theirs", "stranger")):
        sign(made, authority, name, "127.0.0.1")
    return made


def serving(folder: Path) -> ContextSource:
    context = http_context(folder / "server.pem", folder / "server.key", folder / "ours.pem")
    return lambda: context


def presenting(folder: Path, name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ours.pem")
    if name:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


@pytest.mark.parametrize(
    ("asks", "shown", "status"),
    [
        (False, "", 401),
        (False, "reader", 200),
        (False, "unknown", 401),
        (True, "", 401),
        (True, "reader", 200),
        (True, "unknown", 401),
    ],
)
async def test_a_certificate_stands_for_an_identity(folder: Path, asks: bool, shown: str, status: int) -> None:
    reader = Entry(Identity("reader", with_included([Role.READER])), certificates=("reader",))
    app = GuardedApp(build_app(FakeView(), SameLoop()), Doorkeeper(Identities([reader]), asks))
    tls = serving(folder)
    server = await serve_http(app, "127.0.0.1", 0, tls=tls)
    try:
        where = f"https://{server.address}"
        async with httpx.AsyncClient(base_url=where, verify=presenting(folder, shown), timeout=60) as http:
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/api/v1/status")).status_code == status
    finally:
        await server.stop()


async def test_strangers_certificates_and_half_handshakes_are_turned_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WAIT_SECONDS", 3.0)
    tls = serving(folder)
    app = GuardedApp(build_app(FakeView(), SameLoop()), EVERYBODYS)
    server = await serve_http(app, "127.0.0.1", 0, tls=tls)
    try:
        half, garbage = await connect(server), await connect(server)
        half[1].write(b"\x16\x03\x01")
        garbage[1].write(b"GET /healthz HTTP/1.1\r\n\r\n")
        where = f"https://{server.address}"
        async with httpx.AsyncClient(base_url=where, verify=presenting(folder, "stranger"), timeout=60) as http:
            with pytest.raises(httpx.TransportError):
                await http.get("/healthz")
        assert await closed_by_peer(*half)
        assert await closed_by_peer(*garbage)
        async with httpx.AsyncClient(base_url=where, verify=presenting(folder), timeout=60) as http:
            assert (await http.get("/healthz")).status_code == 200
    finally:
        await server.stop()


@pytest.mark.parametrize("said", [b"", HALF_HELLO], ids=["nothing", "half a hello"])
async def test_handshakes_have_places_as_headers_do(folder: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    """I17: who is in a handshake is pushed out by the next, and a probe is answered."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(connections, "WAIT_SECONDS", 600)
    tls = serving(folder)
    server = await serve_http(GuardedApp(build_app(FakeView(), SameLoop()), EVERYBODYS), "127.0.0.1", 0, tls=tls)
    try:
        async with crowd(server, said):
            where = f"https://{server.address}"
            async with httpx.AsyncClient(base_url=where, verify=presenting(folder), timeout=60) as http:
                assert (await http.get("/healthz")).status_code == 200
    finally:
        await server.stop()
