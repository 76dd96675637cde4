"""Which of a client's reads and removals wait for each other."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from holdfast.client.state.own_removals import OwnRemovals, guarded_read
from holdfast.errors import DeadlineExceeded
from holdfast.operations.effects import Sleep


def read() -> Generator[str, None, str]:
    yield "reads"
    return "bytes"


def test_a_removal_sees_a_read_that_began_before_it() -> None:
    """I2, I8."""
    own = OwnRemovals()
    reading = guarded_read(own, ("key",), read(), lambda: 0.0, 10.0)  # type: ignore[arg-type]
    assert next(reading) == "reads"
    assert own.announce(["key"])[1] is False
    assert own.announce(None)[1] is False
    assert own.announce(["other"])[1] is True
    with pytest.raises(StopIteration):
        reading.send(None)
    assert own.announce(["key"])[1] is True


@pytest.mark.parametrize("announced", [["key"], None])
def test_a_read_waits_for_the_removals_that_were_announced_before_it_and_for_no_others(
    announced: list[str] | None,
) -> None:
    """I2, I8, I10."""
    own = OwnRemovals()
    removal, nobody_reads = own.announce(announced)
    assert nobody_reads
    reading = guarded_read(own, ("key",), read(), lambda: 0.0, 10.0)  # type: ignore[arg-type]
    assert isinstance(next(reading), Sleep)
    assert own.announce(["key"])[1] is False, "a later one sees the read, though it waits itself"
    own.end_removal(removal)
    assert reading.send(None) == "reads"


def test_a_read_of_another_key_waits_for_nobody() -> None:
    own = OwnRemovals()
    own.announce(["other"])
    assert next(guarded_read(own, ("key",), read(), lambda: 0.0, 10.0)) == "reads"  # type: ignore[arg-type]


def test_a_read_that_waits_for_a_removal_ends_at_its_deadline() -> None:
    """I10."""
    own = OwnRemovals()
    own.announce(["key"])
    now = [0.0]
    reading = guarded_read(own, ("key",), read(), lambda: now[0], 1.0)  # type: ignore[arg-type]
    next(reading)
    now[0] = 1.0
    with pytest.raises(DeadlineExceeded):
        reading.send(None)
    own.end_removal(object())
    assert own.announce(["key"])[1] is True, "it has left nothing behind"
