"""What all suites share. Tests are imported below `tests`: `from tests.waiting import wait_until`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast import instant
from tests import prefork
from tests.process_clock import ProcessClock

# The same examples on every run and no limit on the time of one: a slow machine is not a failure.
settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun by a shell in the background. Programs that the tests start would inherit that, and be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

COMPUTES = Path(__file__).parent / "simulation"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that compute all the time among those that mostly wait, which keeps both cores busy to the end.

    Sorted by name the simulator would come last, when nothing is left to run beside it. The order of the tests in a
    file, and of the other files, stays.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    computing = [path for path in files if COMPUTES in path.parents]
    waiting = [path for path in files if COMPUTES not in path.parents]
    step = len(waiting) / (len(computing) + 1)
    places = {path: number * step for number, path in enumerate(computing)}
    places |= {path: float(number) for number, path in enumerate(waiting)}
    items[:] = [item for path in sorted(files, key=places.__getitem__) for item in files[path]]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the developer's shell must not change what a test sees."""
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="session")
def _processes_start_at_once() -> Iterator[None]:
    with prefork.allowed():
        yield


@pytest.fixture
def clock() -> Iterator[ProcessClock]:
    """The clock of the whole process, turned by the test."""
    made = ProcessClock()
    instant.read_from(lambda: made.now_ns)
    try:
        yield made
    finally:
        instant.read_from(instant.SYSTEM_CLOCK)
