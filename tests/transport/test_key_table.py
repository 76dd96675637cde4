"""What a client reads of the keys that a master shows: the truth of one moment, or no answer."""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from holdfast.core.catalogue.catalogue import Catalogue
from holdfast.core.catalogue.key_table import KeyTable as Table
from holdfast.errors import Unreachable
from holdfast.ids import namespace_of
from holdfast.messages.requests import Welcome
from holdfast.transport.key_table import LOOK_SECONDS, KeyTableReader, key_table_of
from holdfast.wire.key_table_layout import (
    FIRST_PLACES,
    GONE,
    KIND,
    MASK,
    MOST_BYTES,
    SEQUENCE,
    fingerprint,
    fingerprints,
)

PLACES_BYTES = 1 << 20
LEADS_MS = 5_000


@dataclass
class Line:
    address: str
    descriptor: int
    welcome: Welcome
    closed: bool = False


class Shown:
    """A table in memory as a master has it, and a reader whose clock the test turns."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.memory = mmap.mmap(-1, PLACES_BYTES)
        self.words = np.frombuffer(self.memory, np.uint64)
        self.catalogue = Catalogue()
        self.table = self.catalogue.key_table = Table(self.catalogue, self.words)
        self.now = 100.0
        self.line = Line("local:", self.near.fileno(), Welcome(1, 1, "", 0, 0, 0, 0, 0))
        self.put("there")
        self.settle()
        self.reader = KeyTableReader(self.memory, self.line, lambda: self.now)
        self.confirm()

    def put(self, key: str) -> None:
        self.catalogue.insert(key, 1 + self.catalogue.count, 64, 0, 1, 0, 0, 0)

    def settle(self) -> None:
        while self.table.catch_up():
            pass
        self.table.mark_right()

    def confirm(self) -> None:
        """Long enough for the reader to know that the master leads."""
        for _ in range(3):
            self.table.beat(LEADS_MS)
            self.now += 1.1 * LOOK_SECONDS
            self.reader.has("there")


@pytest.fixture
def shown() -> Iterator[Shown]:
    made = Shown()
    try:
        yield made
    finally:
        made.near.close()
        made.far.close()


def test_it_tells_what_is_there_and_what_is_not(shown: Shown) -> None:
    many = [f"key-{number}" for number in range(3_000)]
    for key in many:
        shown.put(key)
    shown.settle()
    assert shown.reader.has("there") is True
    assert shown.reader.has("not there") is False
    assert shown.reader.has_each([*many, "no", "né"]) == [True] * len(many) + [False, False]
    assert shown.reader.has_each([]) == []


def test_a_tenants_client_sees_its_own_keys_one_by_one_as_many_at_once(shown: Shown) -> None:
    """I20: neither another tenant's nor the default one's."""
    shown.put(namespace_of(1) + "mine")
    shown.put(namespace_of(2) + "theirs")
    shown.settle()
    line = Line("local:", shown.near.fileno(), Welcome(1, 1, "", 0, 0, 0, 0, 0, namespace=namespace_of(1)))
    shown.reader = KeyTableReader(shown.memory, line, lambda: shown.now)
    shown.confirm()
    asked = ["mine", "theirs", "there", "né", ""]
    assert shown.reader.has_each(asked) == [True, False, False, False, False]
    assert [shown.reader.has(key) for key in asked] == shown.reader.has_each(asked)
    assert fingerprints(asked, b"before") == [fingerprint(b"before" + key.encode()) for key in asked]


def test_a_fingerprint_is_never_what_marks_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for digest in (0, 1):
        monkeypatch.setattr("holdfast.wire.key_table_layout._digest", lambda key, digest=digest: digest)
        assert fingerprint(b"key") == GONE + 1
        assert fingerprints(["key", "other"]) == [GONE + 1, GONE + 1]


def test_a_change_that_may_not_be_told_yet_is_no_answer(shown: Shown) -> None:
    """What is not durable is told to nobody: neither that it is there, nor that it is not."""
    shown.put("new")
    assert shown.reader.has("new") is None
    assert shown.reader.has("there") is None
    assert shown.reader.has_each(["new"]) is None
    shown.table.catch_up()
    assert shown.reader.has("new") is None
    shown.settle()
    assert shown.reader.has("new") is True


def test_a_look_during_which_something_changed_is_no_answer(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(key: bytes) -> int:
        shown.put(f"meanwhile-{shown.catalogue.count}")
        shown.settle()
        return fingerprint(key)

    monkeypatch.setattr("holdfast.transport.key_table.fingerprint", slow)
    assert shown.reader.has("there") is None
    monkeypatch.undo()
    assert shown.reader.has("there") is True


def test_a_master_that_has_hung_up_answers_nothing(shown: Shown) -> None:
    """I12: it may be dead, and another one the primary."""
    shown.far.close()
    assert shown.reader.has("there") is None
    assert shown.reader.has_each(["there"]) is None


def test_a_line_that_was_closed_here_answers_nothing(shown: Shown) -> None:
    """Its descriptor may be another file's by now."""
    shown.line.closed = True
    assert shown.reader.has("there") is None


def test_a_master_that_does_not_say_that_it_leads_answers_nothing(shown: Shown) -> None:
    """I12: one that is stopped keeps its table and its connections, and another one may lead."""
    assert shown.reader.has("there") is True
    shown.now += LEADS_MS / 1000
    assert shown.reader.has("there") is None
    shown.confirm()
    assert shown.reader.has("there") is True


def test_how_long_a_master_leads_counts_from_before_it_was_asked(shown: Shown) -> None:
    """I12, I16: no clock is compared with another. A master that reads its clock, is stopped, and writes down what it
    reckoned when it goes on, has said nothing about the time since."""
    reckoned = LEADS_MS  # Now; and the word about it comes ten seconds later.
    for _ in range(20):
        shown.now += 0.5
        shown.reader.has("there")
    shown.table.beat(reckoned)
    shown.now += 2 * LOOK_SECONDS
    assert shown.reader.has("there") is None
    # The next number was seen to come: what is confirmed for it is true from then on.
    shown.table.beat(LEADS_MS)
    shown.now += 2 * LOOK_SECONDS
    assert shown.reader.has("there") is True


def test_a_reader_that_looks_seldom_believes_nothing_old(shown: Shown) -> None:
    for _ in range(100):  # Nobody looks for a minute, while the master goes on.
        shown.now += 0.6
        shown.table.beat(LEADS_MS)
    assert shown.reader.has("there") is None
    shown.confirm()
    assert shown.reader.has("there") is True


def test_another_layout_is_not_read(shown: Shown) -> None:
    shown.words[KIND] += 1
    with pytest.raises(Unreachable, match="another way"):
        KeyTableReader(shown.memory, shown.line)
    with pytest.raises(Unreachable, match="another way"):
        KeyTableReader(mmap.mmap(-1, mmap.PAGESIZE), shown.line)


def test_where_nothing_is_shown_the_master_is_asked(shown: Shown) -> None:
    def line(address: str, name: str) -> Line:
        return Line(
            address, shown.near.fileno(), Welcome(1, 1, "", 0, 0, 0, 0, 0, key_table=name, key_table_secret=b"x" * 16)
        )

    assert key_table_of(line("127.0.0.1:1", "somewhere")) is None
    assert key_table_of(line("local:here", "")) is None
    assert key_table_of(line("local:here", f"nobody-listens-{os.getpid()}")) is None


def test_any_number_of_threads_look_at_once(shown: Shown) -> None:
    """A put of each looks first: one that another thread disturbs would fail."""
    together = threading.Barrier(4)

    def look(_: int) -> bool:
        together.wait(30)
        return all(shown.reader.has("there") and shown.reader.has_each(["there", "no"]) for _ in range(5_000))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(look, range(4)))


def test_waiting_for_a_hang_up_takes_no_bytes_from_the_line(shown: Shown) -> None:
    shown.far.send(b"a reply")
    assert shown.reader.has("there") is True
    assert select.select([shown.near], [], [], 0)[0], "the bytes are still there"
    assert not shown.words[SEQUENCE] & 1


def test_a_table_without_a_free_place_is_no_answer(shown: Shown) -> None:
    """A look ends, whatever is in the memory."""
    shown.words[FIRST_PLACES:] = 7
    assert shown.reader.has("anything") is None
    assert shown.reader.has_each(["anything", "there"]) is None
    assert shown.reader.has_each([]) == []


@pytest.mark.parametrize("mask", [PLACES_BYTES // 8 - FIRST_PLACES, MOST_BYTES, (1 << 63) - 1, (1 << 64) - 1])
def test_a_table_said_to_be_larger_than_its_memory_is_no_answer(shown: Shown, mask: int) -> None:
    shown.words[MASK] = mask
    assert shown.reader.has("there") is None
    assert shown.reader.has_each(["there"]) is None


def test_a_size_that_no_table_has_still_ends_inside_the_memory(shown: Shown) -> None:
    for mask in (0, 1, 5, 8190, PLACES_BYTES // 8 - FIRST_PLACES - 1):
        shown.words[MASK] = mask
        shown.reader.has("there")
        shown.reader.has_each(["there", "not there"])
