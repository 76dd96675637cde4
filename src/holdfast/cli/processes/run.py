"""`master` and `node`: run one process of the cluster in the foreground.

A process that `holdfast up` started dies with it. The kernel is asked for that by the child itself, at its start:
between fork and exec it could not be asked safely.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
from collections.abc import Callable

from holdfast.cli.exit_codes import FAILED, exit_code_of
from holdfast.cli.options import takes
from holdfast.errors import HoldfastError, Stopping
from holdfast.private_files import keep_private
from holdfast.settings import MasterSettings, NodeSettings

PARENT = "HOLDFAST_PARENT_PID"
PR_SET_PDEATHSIG = 1


@takes(MasterSettings)
def master(settings: MasterSettings) -> int:
    """Run a master until SIGTERM or Ctrl-C. It keeps the catalogue; the bytes are in the nodes."""
    from holdfast.cli.processes.logs import configure_logs

    die_with_parent()
    keep_private()
    cluster = cluster_in(settings.coordination, settings.cluster)
    as_json = configure_logs(settings.log_level, settings.log_format, settings.name, cluster)
    if "cluster" in settings.model_fields_set and cluster not in ("", settings.cluster):
        text = "cluster is %s, and the URL of coordination says %s, which counts"
        logging.getLogger("holdfast.master").warning(text, settings.cluster, cluster)
    from holdfast.master.process import serve

    return _served(lambda: serve(settings), as_json)


@takes(NodeSettings)
def node(settings: NodeSettings) -> int:
    """Run a node until SIGTERM or Ctrl-C. It lends memory to the cluster and serves its bytes."""
    from holdfast.cli.processes.logs import configure_logs

    die_with_parent()
    keep_private()
    as_json = configure_logs(settings.log_level, settings.log_format, settings.name, cluster_in(settings.address))
    from holdfast.node.process import serve

    return _served(lambda: serve(settings), as_json)


def cluster_in(address: str, setting: str = "") -> str:
    """The cluster that an address names. `setting`: its name where the address has none, as that of a master has."""
    if "://" not in address:
        return setting
    from holdfast.coordination.urls import parse_location

    try:
        return parse_location(address, setting or "holdfast").cluster
    except HoldfastError:
        return ""  # Connecting with it reports what is wrong with it.


def _served(serve: Callable[[], int], as_json: bool) -> int:
    """The exit code. In a JSON log the reason why it ended is JSON as well, not a line for people."""
    try:
        return serve()
    except Exception as error:
        if not as_json:
            raise
        foreseen = isinstance(error, HoldfastError | OSError)
        log = logging.getLogger("holdfast")
        log.critical("the process cannot go on: %s", error, exc_info=None if foreseen else error)
        return exit_code_of(error) if isinstance(error, HoldfastError) else FAILED


def die_with_parent() -> None:
    """Where a parent is named: be sent SIGTERM when it ends, or stop now if it already has."""
    parent = os.environ.pop(PARENT, "")
    if not parent:
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused to tie this process to its parent")
    if os.getppid() != int(parent):
        raise Stopping("the process that started this one has ended; nothing was started")
