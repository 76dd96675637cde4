"""`holdfast node`: one node as a process, from its settings until SIGTERM or SIGINT, and its HTTP if asked for."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.addresses import split_address
from holdfast.errors import BadValue, HoldfastError, NameTaken, Refused
from holdfast.exposure import PlannedListener, check_exposure
from holdfast.identity.identities import Identities
from holdfast.identity.identities_file import IdentitiesFile
from holdfast.node.node import Node, NodePlan
from holdfast.settings import NodeSettings
from holdfast.transport.certificate_files import CertificateFiles, take_identity

if TYPE_CHECKING:
    from holdfast.dashboard.http_thread import HttpThread

ENDED = 0
FAILED = 1
NAME_TAKEN = 4

LOOK_SECONDS = 0.2
"""How often to look whether it failed, and whether its certificate or its identities changed, which takes some
microseconds."""
log = logging.getLogger("holdfast.node")
SIGNALS = {signal.SIGTERM, signal.SIGINT}


def serve(settings: NodeSettings) -> int:
    """Lend memory until a signal ends it. Returns the exit code."""
    # Signals are waited for, not handled: a handler would run in the middle of anything.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return _serve(settings)
    except HoldfastError as error:
        log.critical("%s", error)
        return NAME_TAKEN if isinstance(error, NameTaken) else FAILED
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def _serve(settings: NodeSettings) -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    certificates = take_identity(settings.tls_cert, settings.tls_key, settings.tls_ca, settings.tls_ask_clients)
    listed = IdentitiesFile(settings.identities) if settings.identities is not None else None
    plan = NodePlan(
        address=settings.address,
        name=settings.name,
        size_bytes=settings.size,
        listen=settings.listen,
        advertise=settings.advertise,
        segments=settings.segments,
        socket_dir=settings.socket_dir,
        token=settings.token,
        max_connections=settings.max_connections,
        disk=settings.disk,
        disk_size_bytes=settings.disk_size,
        max_size_bytes=settings.max_size,
        force=settings.force,
        insecure=_exposed(settings),
        tls=certificates.server if certificates is not None else None,
    )
    ready_file = settings.ready_file
    served: list[HttpThread] = []

    def registered(it: Node) -> None:
        if ready_file is not None:
            write_ready_file(ready_file, it, served[0].address if served else "")

    node = Node(plan, registered)
    try:
        if settings.http:
            served.append(_serve_http(settings, node, certificates, listed))
        node.start()
        while (caught := signal.sigtimedwait(SIGNALS, LOOK_SECONDS)) is None or caught.si_signo not in SIGNALS:
            # After a stop and continue the wait returns without a signal: it was only interrupted.
            if node.failure is not None:
                raise node.failure
            if certificates is not None:
                certificates.look()
            if listed is not None:
                _look_at(listed)
    finally:
        node.stop()
        for http in served:
            asyncio.run(http.stop())
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    return ENDED


def _serve_http(
    settings: NodeSettings, node: Node, certificates: CertificateFiles | None, listed: IdentitiesFile | None
) -> HttpThread:
    """Serve probes and metrics, in a thread of its own. It answers before the node has a session."""
    # Imported only where it is wanted: it takes 0.2 s and 12 MiB.
    from holdfast.dashboard.access import Doorkeeper, GuardedApp, names_of
    from holdfast.dashboard.http_thread import serve_http
    from holdfast.dashboard.probes import add_metrics, add_probes, new_app
    from holdfast.node.metrics import DirectCalls, NodeView

    view, calls, app = NodeView(node), DirectCalls(), new_app()
    add_probes(app, view, calls)
    add_metrics(app, view, calls)
    of_token = Identities.of_one_token(settings.token) if settings.token else Identities.of_everybody()
    identities = listed.identities if listed is not None else of_token
    names = names_of([settings.http, settings.advertise], settings.http_hosts)
    guarded = GuardedApp(app, Doorkeeper(identities, settings.tls_ask_clients, names))
    tls = certificates.http if certificates is not None else None
    try:
        return asyncio.run(serve_http(guarded, *split_address(settings.http), node.supervisor, tls=tls))
    except OSError as error:
        reason = error.strerror or error
        raise Refused(f"the node cannot serve HTTP at {settings.http} ({reason}); choose another address") from None


def _look_at(listed: IdentitiesFile) -> None:
    if not listed.is_changed():
        return
    try:
        listed.read_again()
    except BadValue as error:
        log.error("the new file of identities cannot be used; the former identities stay in force: %s", error)
    else:
        log.info("the identities were read again: %s", listed.path)


def _exposed(settings: NodeSettings) -> int:
    """How many listeners strangers can reach. Whom clients must be is the masters' to ask: they hand out what a read or
    a write needs. So it is enough that the node itself shows who it is: by a token, or by a certificate of tls_ca's."""
    shows = bool(settings.token or settings.tls_ca or settings.tls_ask_clients)
    encrypts = settings.tls_cert is not None
    listeners = [PlannedListener("--listen", settings.listen, shows, encrypts)]
    if settings.http:
        # Here the node itself asks.
        asks = bool(settings.token or settings.identities or settings.tls_ask_clients)
        listeners.append(PlannedListener("--http", settings.http, asks, encrypts))
    found = check_exposure(listeners, settings.insecure, "--token-file or HOLDFAST_TOKEN")
    for text in found:
        log.warning("open to strangers, as --insecure insists: %s", text)
    return len(found)


def write_ready_file(path: Path, node: Node, http: str = "") -> None:
    """Write the ready file atomically: a process that waits for it may read it as soon as it exists. `http`: where it
    serves HTTP, if it does."""
    card = node.card
    content = {
        "name": card.name,
        "data_address": card.data_address,
        "socket_path": card.socket_path,
        "pid": os.getpid(),
        **({"http": http} if http else {}),
    }
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps(content) + "\n", encoding="utf-8")
    draft.replace(path)
