"""`holdfast node`: one node as a process, from its settings until SIGTERM or SIGINT."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
from pathlib import Path

from holdfast.errors import HoldfastError, NameTaken
from holdfast.exposure import PlannedListener, check_exposure
from holdfast.node.node import Node, NodePlan
from holdfast.settings import NodeSettings
from holdfast.transport.certificate_files import take_identity

ENDED = 0
FAILED = 1
NAME_TAKEN = 4

LOOK_SECONDS = 0.2
"""How often to look whether it failed, and whether its certificate changed, which takes some microseconds."""
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
    node = Node(plan, lambda it: write_ready_file(ready_file, it) if ready_file is not None else None)
    try:
        node.start()
        while (caught := signal.sigtimedwait(SIGNALS, LOOK_SECONDS)) is None or caught.si_signo not in SIGNALS:
            # After a stop and continue the wait returns without a signal: it was only interrupted.
            if node.failure is not None:
                raise node.failure
            if certificates is not None:
                certificates.look()
    finally:
        node.stop()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    return ENDED


def _exposed(settings: NodeSettings) -> int:
    """How many listeners strangers can reach. Whom clients must be is the masters' to ask: they hand out what a read or
    a write needs. So it is enough that the node itself shows who it is: by a token, or by a certificate of tls_ca's."""
    shows = bool(settings.token or settings.tls_ca or settings.tls_ask_clients)
    data_port = PlannedListener("--listen", settings.listen, asks=shows, encrypts=settings.tls_cert is not None)
    found = check_exposure([data_port], settings.insecure, "--token-file or HOLDFAST_TOKEN")
    for text in found:
        log.warning("open to strangers, as --insecure insists: %s", text)
    return len(found)


def write_ready_file(path: Path, node: Node) -> None:
    """Write the ready file atomically: a process that waits for it may read it as soon as it exists."""
    card = node.card
    content = {
        "name": card.name,
        "data_address": card.data_address,
        "socket_path": card.socket_path,
        "pid": os.getpid(),
    }
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps(content) + "\n", encoding="utf-8")
    draft.replace(path)
