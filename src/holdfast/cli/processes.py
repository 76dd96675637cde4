"""`master` and `node`: run one process of the cluster in the foreground.

A process that `holdfast up` started dies with it. The kernel is asked for that by the child itself, at its start:
between fork and exec it could not be asked safely.
"""

from __future__ import annotations

import ctypes
import os
import signal

from holdfast.cli.options import takes
from holdfast.errors import Stopping
from holdfast.settings import MasterSettings, NodeSettings

PARENT = "HOLDFAST_PARENT_PID"
PR_SET_PDEATHSIG = 1


@takes(MasterSettings)
def master(settings: MasterSettings) -> int:
    """Run a master until SIGTERM or Ctrl-C. It keeps the catalogue; the bytes are in the nodes."""
    from holdfast.cli.logs import configure_logs
    from holdfast.master.process import serve

    die_with_parent()
    configure_logs(settings.log_level, settings.log_format)
    return serve(settings)


@takes(NodeSettings)
def node(settings: NodeSettings) -> int:
    """Run a node until SIGTERM or Ctrl-C. It lends memory to the cluster and serves its bytes."""
    from holdfast.cli.logs import configure_logs
    from holdfast.node.process import serve

    die_with_parent()
    configure_logs(settings.log_level, settings.log_format)
    return serve(settings)


def die_with_parent() -> None:
    """Where a parent is named: be sent SIGTERM when it ends, or stop now if it already has."""
    parent = os.environ.pop(PARENT, "")
    if not parent:
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused to tie this process to its parent")
    if os.getppid() != int(parent):
        raise Stopping("the process that started this one has ended; nothing was started")
