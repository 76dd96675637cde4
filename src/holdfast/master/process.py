"""`holdfast master`: the RPC server in one loop, HTTP in a thread beside it, until a signal ends both."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from holdfast.addresses import join_address, split_address
from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import Coordination, CoordinationLost
from holdfast.coordination.urls import parse_location
from holdfast.core.rules import Rules
from holdfast.dashboard.access import Doorkeeper, GuardedApp, names_of
from holdfast.dashboard.http import build_app
from holdfast.dashboard.http_thread import HttpThread, serve_http
from holdfast.dashboard.loop_calls import LoopCalls
from holdfast.dashboard.mooncake_http import build_mooncake_app
from holdfast.exposure import PlannedListener, check_exposure
from holdfast.identity.identities_file import IdentitiesFile
from holdfast.master.access.identity_upkeep import IdentityUpkeep
from holdfast.master.object_events.events import ObjectEvents
from holdfast.master.object_events.publisher import EventPublisher
from holdfast.master.plan import Plan
from holdfast.master.roles.master import Master
from holdfast.master.server import RpcServer
from holdfast.master.status.standings import url_of
from holdfast.master.status.view import MasterView
from holdfast.master.traffic.admission import Caps
from holdfast.outage import Outage
from holdfast.private_files import private_directory
from holdfast.replication.depots import open_depot
from holdfast.replication.shared_snapshots import SharedSnapshotStore
from holdfast.replication.snapshot_store import SnapshotStore
from holdfast.settings import PRESETS, BadSetting, MasterSettings
from holdfast.supervisor import Supervisor
from holdfast.transport.certificate_files import CertificateFiles, take_identity

if TYPE_CHECKING:
    from holdfast.master.traces import Traces

log = structlog.get_logger("holdfast.master")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_FREE_BYTES = 1 << 20
"""Smaller arrays come from the heap, and as much stays free at its end: batches need no system calls for memory."""
WAYS = "--identities, --token-file or HOLDFAST_TOKEN"


def rules_of(settings: MasterSettings) -> Rules:
    """The rules. Settings given explicitly override those of the preset."""
    preset = PRESETS[settings.preset]
    grace_ms = settings.lease_ttl_ms if preset.grace_ms is None else preset.grace_ms
    named = {
        "lease_sync": preset.lease_sync,
        "standby_eviction": preset.standby_eviction,
        "standby_eviction_grace_ms": grace_ms,
    }
    given = {name: getattr(settings, name) for name in Rules.__dataclass_fields__}
    return Rules(**{**given, **{name: value for name, value in named.items() if given[name] is None}})


def allow_many_connections() -> None:
    """Raise the limit of descriptors: each client and each session takes one, and the usual limit is a twentieth of the
    connections that are served."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def spare_the_collector() -> None:
    """Keep the garbage collector off the objects that are alive now: they stay, the columns need no collecting, and its
    pauses delay requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def give_freed_memory_back() -> None:
    """Have the C library return large arrays to the system when they are freed, and the free end of its heap. By itself
    it keeps more and more for later: some 6 bytes an object of a million."""
    with contextlib.suppress(AttributeError):  # Another C library than glibc.
        set_option = ctypes.CDLL(None).mallopt
        set_option(M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
        set_option(M_MMAP_THRESHOLD, KEPT_FREE_BYTES)


def serve(settings: MasterSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    allow_many_connections()
    give_freed_memory_back()
    try:
        import uvloop
    except ImportError:  # asyncio's own loop works too, only slower.
        return asyncio.run(_serve(settings))
    return uvloop.run(_serve(settings))


async def _serve(settings: MasterSettings) -> int:
    exposed = _exposed(settings)
    listed = settings.identities is not None
    tls = take_identity(settings.tls_cert, settings.tls_key, settings.tls_ca, settings.tls_ask_clients, listed)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    supervisor = Supervisor()
    publisher = _publisher(settings, supervisor)
    coordination = await _coordination(settings, stopped, supervisor)
    if stopped.is_set():
        return 0
    server, upkeep = _server(settings, supervisor)
    traces = _traces(settings, server)
    try:
        listen = settings.listen
        host, port = await server.start(*split_address(listen), tls.server if tls is not None else None)
        events = ObjectEvents(publisher) if publisher is not None else None
        master = _master(settings, server, coordination, join_address(host, port), events, exposed)
        view = MasterView(master)
        if publisher is not None:
            view.registry.register(publisher)
        listen = f"{settings.http} {settings.mooncake_http}".strip()
        served = await _serve_http(settings, server, view, supervisor, tls)
    except OSError as error:
        log.critical("cannot listen on %s: %s", listen, error.strerror or error)
        await server.stop()
        return 1
    spare_the_collector()
    running = asyncio.create_task(supervisor.keep("roles", master.run))
    url = url_of(served[0].address, master.plan.address, settings.tls_cert is not None)
    keeping = _keep(supervisor, view, url, upkeep, tls)
    log.info("serving", address=master.plan.address, http=served[0].address)
    if settings.ready_file is not None:
        _write_ready(settings, master.plan.address, [http.address for http in served], publisher)
    await asyncio.wait([running, asyncio.create_task(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping")
    await master.settle()
    for task in (*keeping, running):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await server.stop()
    for http in served:
        await http.stop()
    await _close(coordination, publisher, traces)
    return 0


def _keep(
    supervisor: Supervisor, view: MasterView, url: str, upkeep: list[IdentityUpkeep], tls: CertificateFiles | None
) -> list[asyncio.Task[None]]:
    """Start what runs beside the roles. `url`: of the dashboard."""
    work: list[tuple[str, Callable[[], Awaitable[object]]]] = [("identities", one.run) for one in upkeep]
    if tls is not None:
        work.append(("certificates", tls.follow))
    work += [("standings", lambda: view.standings.run(url)), ("events", view.timeline.run)]
    return [asyncio.create_task(supervisor.keep(name, run)) for name, run in work]


async def _close(coordination: Coordination | None, publisher: EventPublisher | None, traces: Traces | None) -> None:
    if coordination is not None:
        await coordination.close()
    if publisher is not None:
        publisher.close()
    if traces is not None:
        await asyncio.to_thread(traces.close)


def _server(settings: MasterSettings, supervisor: Supervisor) -> tuple[RpcServer, list[IdentityUpkeep]]:
    """The server, and what keeps its identities as their file says, if there is one."""
    listed = IdentitiesFile(settings.identities) if settings.identities is not None else None
    identities = listed.identities if listed is not None else None
    server = RpcServer(
        settings.name, settings.token, settings.busy_poll_us, True, supervisor, identities, _caps(settings)
    )
    return server, [IdentityUpkeep(listed, server)] if listed is not None else []


def _traces(settings: MasterSettings, server: RpcServer) -> Traces | None:
    if not settings.traces:
        return None
    try:
        from holdfast.master.traces import Traces
    except ImportError as error:
        text = f"--traces needs a package that is not installed ({error.name}): pip install 'holdfast[otel]'"
        raise BadSetting(text) from error
    traces = Traces(settings.name)
    traces.connect(server)
    return traces


async def _serve_http(
    settings: MasterSettings,
    server: RpcServer,
    view: MasterView,
    supervisor: Supervisor,
    certificates: CertificateFiles | None,
) -> list[HttpThread]:
    """The dashboard's server, and Mooncake's if that is wanted."""
    here = asyncio.get_running_loop()
    tls = certificates.http if certificates is not None else None
    own = names_of([settings.http, settings.mooncake_http, settings.advertise], settings.http_hosts)
    doorkeeper = Doorkeeper(server.identities, settings.tls_ask_clients, own)
    app = GuardedApp(build_app(view, LoopCalls(here)), doorkeeper)
    served = [await serve_http(app, *split_address(settings.http), supervisor, tls=tls)]
    if settings.mooncake_http:
        app, name = GuardedApp(build_mooncake_app(view, LoopCalls(here)), doorkeeper), "Mooncake's HTTP server"
        served.append(await serve_http(app, *split_address(settings.mooncake_http), supervisor, name, tls))
    return served


def _caps(settings: MasterSettings) -> Caps:
    """The most connections. What the process may open limits them: a master without descriptors could neither write its
    log nor let a node in."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = Caps(settings.max_connections, settings.max_connections_per_address, settings.max_connections_per_identity)
    caps = wanted.within(descriptors)
    if caps.total < wanted.total:
        log.info("fewer connections than max_connections: the limit of descriptors is lower", connections=caps.total)
    return caps


def _exposed(settings: MasterSettings) -> list[str]:
    """The listeners that strangers can reach, with what each lacks; `Exposed` unless the operator insists."""
    asks = bool(settings.token or settings.identities or settings.tls_ask_clients)
    encrypts = settings.tls_cert is not None
    listeners = [
        PlannedListener("--listen", settings.listen, asks, encrypts),
        PlannedListener("--http", settings.http, asks, encrypts),
        PlannedListener("--mooncake-http", settings.mooncake_http, asks, encrypts),
        PlannedListener("--events", settings.events, False, False, "ZeroMQ has neither: let subscribers use a tunnel"),
        PlannedListener("--events-replay", settings.events_replay, False, False, "ZeroMQ has neither"),
    ]
    found = check_exposure([one for one in listeners if one.address], settings.insecure, WAYS)
    for text in found:
        log.warning("open to strangers, as --insecure insists", listener=text)
    return found


def _publisher(settings: MasterSettings, supervisor: Supervisor) -> EventPublisher | None:
    if not settings.events:
        if settings.events_replay:
            raise BadSetting("events_replay is for masters that publish object events: give events too")
        return None
    publisher = EventPublisher(cluster_of(settings), settings.events_topic, supervisor)
    publisher.open(settings.events, settings.events_replay)
    return publisher


def _master(
    settings: MasterSettings,
    server: RpcServer,
    coordination: Coordination | None,
    listening: str,
    events: ObjectEvents | None,
    exposed: list[str],
) -> Master:
    plan = Plan(
        rules=rules_of(settings),
        cluster=cluster_of(settings),
        address=settings.advertise or listening,
        leader_ttl_ms=settings.leader_ttl_ms,
        durability=settings.durability,
        # On one machine the embedded backend has proof of a death at once, and needs no guess.
        early_takeover=settings.early_takeover and not settings.coordination.startswith("sqlite"),
        snapshot_bytes=settings.snapshot_bytes,
        new_history=settings.new_history,
        insecure=tuple(exposed),
    )
    return Master(server, coordination, plan, _store(settings), events)


def _store(settings: MasterSettings) -> SnapshotStore:
    directory = private_directory(settings.data_dir) / "snapshots" if settings.data_dir is not None else None
    if not settings.snapshots:
        return SnapshotStore(directory)
    if directory is None:
        raise BadSetting("snapshots that are shared are kept on this master's disk first: give data_dir too")
    cluster = cluster_of(settings)
    earlier = open_depot(settings.snapshots, settings.cluster) if cluster != settings.cluster else None
    return SharedSnapshotStore(directory, open_depot(settings.snapshots, cluster), earlier)


def cluster_of(settings: MasterSettings) -> str:
    """The cluster's name: that in the URL of coordination, or the setting where the URL has none."""
    return parse_location(settings.coordination, settings.cluster).cluster


async def _coordination(
    settings: MasterSettings, stopped: asyncio.Event, supervisor: Supervisor
) -> Coordination | None:
    """Connect, trying until it answers; None for a single master with its log in memory."""
    if settings.coordination.startswith("memory:"):
        return None
    outage = Outage(logging.getLogger("holdfast.master"), "coordination does not answer; it is tried until it does")
    while not stopped.is_set():
        try:
            return await open_coordination(settings.coordination, settings.cluster, settings.leader_ttl_ms, supervisor)
        except CoordinationLost as error:
            outage.seen(error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await stopped.wait()
    return None


def _write_ready(settings: MasterSettings, address: str, https: list[str], publisher: EventPublisher | None) -> None:
    """Write the ready file. `https`: the dashboard's address, and Mooncake's if that is served."""
    assert settings.ready_file is not None
    content: dict[str, object] = {"name": settings.name, "address": address, "http": https[0], "pid": os.getpid()}
    if len(https) > 1:
        content["mooncake_http"] = https[1]
    if publisher is not None:
        content |= {"events": publisher.address, "events_replay": publisher.replay_address}
    partial = settings.ready_file.with_name(settings.ready_file.name + ".partial")
    partial.write_text(json.dumps(content))
    partial.replace(settings.ready_file)
