"""An outage is said at once, every 30 s while it lasts, and when it is over; not at each try (I17)."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from holdfast.errors import Unreachable
from holdfast.outage import SAID_EVERY_SECONDS, Outage
from tests.process_clock import ProcessClock

log = logging.getLogger("holdfast.test")


def test_an_outage_is_said_again_every_30_seconds_and_its_end_once(
    clock: ProcessClock, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(log, "etcd does not answer")
    for tenth in range(650):
        clock.now_ns = tenth * 100_000_000
        outage.seen("connection refused")
    assert outage.failures == 650
    outage.over()
    outage.over()
    assert [record.getMessage() for record in caplog.records] == [
        "etcd does not answer: connection refused",
        f"etcd does not answer (for {SAID_EVERY_SECONDS:.0f} s now): connection refused",
        f"etcd does not answer (for {2 * SAID_EVERY_SECONDS:.0f} s now): connection refused",
        "etcd does not answer: it works again, after 64.9 s",
    ]
    assert (outage.failures, outage.why) == (0, "")


def test_the_next_outage_is_said_at_once(clock: ProcessClock, caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(log, "etcd does not answer")
    for _ in range(3):
        outage.seen("timed out")
        outage.over()
    assert sum("timed out" in record.getMessage() for record in caplog.records) == 3


def test_a_try_that_fails_is_noted_and_counted_and_one_that_does_not_ends_the_outage(clock: ProcessClock) -> None:
    outage, failed = Outage(log, "etcd does not answer"), Counter[str]()
    for _ in range(2):
        with outage.one_try(failed, "follow"):
            raise Unreachable("timed out")
    assert (failed, outage.failures, outage.why) == ({"follow": 2}, 2, "timed out")
    with outage.one_try(failed, "follow"):
        pass
    assert (failed, outage.failures) == ({"follow": 2}, 0)


def test_a_defect_in_a_try_goes_on(clock: ProcessClock) -> None:
    outage, failed = Outage(log, "etcd does not answer"), Counter[str]()
    with pytest.raises(KeyError), outage.one_try(failed, "follow"):
        raise KeyError("a defect")
    assert (failed, outage.failures) == ({}, 0)
