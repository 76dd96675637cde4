"""`holdfast demo --engine`, from its settings to its exit code."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from threading import Event

from holdfast.cli.demo.command import check_own_cluster, wanted_by
from holdfast.cli.demo.screen import Screen
from holdfast.cli.engine_demo.performance import HEAD_WIDTH, QUESTION_TOKENS, EnginePerformance, shape_of
from holdfast.cli.engine_demo.picture import drawing_of
from holdfast.cli.engine_demo.report import report
from holdfast.cli.exit_codes import FAILED, INTERRUPTED, OK
from holdfast.cli.output import Output
from holdfast.cli.processes.up import on_signals
from holdfast.errors import Refused
from holdfast.node.host_capacity import available_memory, check_memory
from holdfast.settings import BadSetting, DemoSettings

HEADROOM = 1.4
SPARE_BYTES = 96 << 20
STORED_TIMES = 2
"""Under two salts."""


def check(settings: DemoSettings) -> None:
    """BadSetting or Refused for what cannot be run, before anything is started."""
    if settings.width % HEAD_WIDTH:
        raise BadSetting(f"--width must be a multiple of {HEAD_WIDTH}, the width of a head; it is {settings.width}")
    if settings.prefix_tokens < settings.block_tokens:
        raise BadSetting(
            f"--prefix-tokens must be at least one block (--block-tokens {settings.block_tokens}); "
            f"it is {settings.prefix_tokens}"
        )
    if importlib.util.find_spec("torch") is None:
        raise Refused(
            "demo --engine needs PyTorch, which is not installed: pip install torch (its CPU build is enough); "
            "nothing was started. `holdfast demo` runs without it"
        )


def memory_for(settings: DemoSettings) -> int:
    """So that nothing is evicted: an evicted block would look like a lost one."""
    stored = STORED_TIMES * shape_of(settings).kv_bytes(settings.prefix_tokens + QUESTION_TOKENS)
    return int(stored * HEADROOM) + SPARE_BYTES


def run(settings: DemoSettings, out: Output) -> int:
    check(settings)
    check_own_cluster(settings.coordination)
    size_bytes = memory_for(settings)
    check_memory(size_bytes, available_memory())
    stop = Event()
    with on_signals(stop), tempfile.TemporaryDirectory(prefix="holdfast-demo-") as directory:
        screen = Screen(out.as_json)
        performance = EnginePerformance(settings, wanted_by(settings, Path(directory), size_bytes), stop, screen)
        try:
            with screen:
                facts = performance.run()
            report(out, facts)
            if settings.picture is not None:
                settings.picture.write_text(drawing_of(facts), encoding="utf-8")
                out.note(f"drawn: {settings.picture}")
            if settings.keep:
                out.note(f"the cluster stays up at {performance.cluster.address} until Ctrl-C")
                performance.cluster.fleet.watch()
            return OK if facts["ok"] else FAILED
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            performance.end()
