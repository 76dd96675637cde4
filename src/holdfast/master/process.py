"""`holdfast master`: the RPC server and HTTP in one loop, until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import signal
import sys

import structlog

from holdfast.core.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state import State
from holdfast.dashboard.http import build_app, serve_http
from holdfast.instant import now_ms
from holdfast.master.engine import Engine
from holdfast.master.server import RpcServer
from holdfast.master.view import MasterView
from holdfast.settings import MasterSettings, join_address, split_address

log = structlog.get_logger("holdfast.master")


def rules_of(settings: MasterSettings) -> Rules:
    return Rules(**{name: getattr(settings, name) for name in Rules.__dataclass_fields__})


def serve(settings: MasterSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    if settings.coordination != "memory://":
        log.error("only the in-memory log is there in this version", coordination=settings.coordination)
        return 2
    try:
        import uvloop
    except ImportError:  # asyncio's own loop serves as well, only slower.
        return asyncio.run(_serve(settings))
    return uvloop.run(_serve(settings))


async def _serve(settings: MasterSettings) -> int:
    engine = Engine(Primary(State(), rules_of(settings)))
    engine.start_log(secrets.randbits(63) | 1, settings.cluster, secrets.token_bytes(32), now_ms())
    engine.start_epoch(1, now_ms())
    server = RpcServer(engine, settings.name, settings.token)
    try:
        host, port = await server.start(*split_address(settings.listen))
    except OSError as error:
        print(f"holdfast: cannot listen on {settings.listen}: {error.strerror or error}", file=sys.stderr)
        return 1
    view = MasterView(server, join_address(host, port))
    try:
        http = await serve_http(build_app(view), *split_address(settings.http))
    except OSError as error:
        print(f"holdfast: cannot listen on {settings.http}: {error.strerror or error}", file=sys.stderr)
        await server.stop()
        return 1
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    # What is alive now stays; the columns are no business of the collector's, and its pauses are the requests'.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    log.info("serving", name=settings.name, address=join_address(host, port), http=http.address)
    if settings.ready_file is not None:
        _write_ready(settings, join_address(host, port), http.address)
    await stopped.wait()
    log.info("stopping", name=settings.name)
    await server.stop()
    await http.stop()
    return 0


def _write_ready(settings: MasterSettings, address: str, http: str) -> None:
    assert settings.ready_file is not None
    content = {"name": settings.name, "address": address, "http": http, "pid": os.getpid()}
    partial = settings.ready_file.with_name(settings.ready_file.name + ".partial")
    partial.write_text(json.dumps(content))
    partial.replace(settings.ready_file)
