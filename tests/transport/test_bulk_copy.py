"""Copies that two threads share: right bytes and checksums, whoever does the work, and nobody writes afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import xxhash

from holdfast.transport import bulk_copy
from holdfast.transport.bulk_copy import (
    CHUNK,
    SHARED_FROM,
    SHARED_HASHED_CHUNK,
    Hand,
    SharedCopy,
    SharedHash,
    copy_bulk,
)
from tests.waiting import wait_until

SIZE = SHARED_FROM + 3 * SHARED_HASHED_CHUNK + 12_345


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hand]:
    """One that is not asked, so that a test can be it."""
    hand = Hand()
    monkeypatch.setattr(bulk_copy, "_hand", hand)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    return hand


def test_the_second_thread_takes_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    by: dict[int, set[str]] = {}

    def noted(copy: SharedCopy, start: int) -> None:
        by.setdefault(start, set()).add(threading.current_thread().name)
        if threading.current_thread().name != "holdfast-copy":
            wait_until(lambda: any("holdfast-copy" in names for names in by.values()), 30, "the other one helps")
        copied(copy, start)

    copied = SharedCopy._copy
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(SharedCopy, "_copy", noted)
    source, target = os.urandom(SIZE), bytearray(SIZE)
    assert copy_bulk(memoryview(target), memoryview(source), True) == xxhash.xxh3_64_intdigest(source)
    assert target == source
    assert sorted(by) == list(range(0, SIZE, SHARED_HASHED_CHUNK)), "every chunk once"
    assert all(len(names) == 1 for names in by.values())


@pytest.mark.parametrize("checksum", [True, False])
def test_a_copy_that_nobody_helps_with_is_whole(hand: Hand, checksum: bool) -> None:
    source, target = os.urandom(SIZE), bytearray(SIZE)
    expected = xxhash.xxh3_64_intdigest(source) if checksum else 0
    assert copy_bulk(memoryview(target), memoryview(source), checksum) == expected
    assert target == source


def test_a_process_that_gets_no_thread_copies_alone_and_asks_again_later(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        asked.append(None)
        raise RuntimeError("can't start new thread")

    asked: list[None] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    source, target = os.urandom(SIZE), bytearray(SIZE)
    for _ in range(2):
        assert copy_bulk(memoryview(target), memoryview(source), True) == xxhash.xxh3_64_intdigest(source)
    assert target == source
    assert len(asked) == 2


def test_help_that_comes_when_all_is_done_writes_nothing(hand: Hand) -> None:
    """I11: the range may be somebody else's by then."""
    source, target = os.urandom(SIZE), bytearray(SIZE)
    copy = SharedCopy(memoryview(target), memoryview(source), True)
    copy.run()
    target[:] = bytes(SIZE)
    copy.help()
    assert target == bytes(SIZE)


def test_a_chunk_that_the_other_one_took_and_failed_at_is_copied_all_the_same(hand: Hand) -> None:
    source, target = os.urandom(SIZE), bytearray(SIZE)
    copy = SharedCopy(memoryview(target), memoryview(source), True)
    assert next(copy._starts) == 0
    assert copy.run() == xxhash.xxh3_64_intdigest(source)
    assert target == source


@pytest.mark.parametrize("number", range(5))
def test_the_checksum_is_of_all_bytes_in_order_however_the_two_take_turns(number: int) -> None:
    size = SIZE + number * 1_000_003
    source, target = os.urandom(size), bytearray(size)
    for _ in range(20):
        assert copy_bulk(memoryview(target), memoryview(source), True) == xxhash.xxh3_64_intdigest(source)
    assert target == source


def test_an_interrupted_copy_raises_only_when_the_other_thread_writes_no_more(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: the caller gives its grant back as soon as this raises."""
    inside, interrupted = threading.Event(), threading.Event()
    order: list[str] = []

    def slowly(copy: SharedCopy, start: int) -> None:
        if threading.current_thread() is helper:
            inside.set()
            assert interrupted.wait(30)
            copied(copy, start)
            order.append("the other one has written")
        else:
            assert inside.wait(30)
            interrupted.set()
            raise KeyboardInterrupt

    copied = SharedCopy._copy
    monkeypatch.setattr(SharedCopy, "_copy", slowly)
    source, target = os.urandom(SIZE), bytearray(SIZE)
    copy = SharedCopy(memoryview(target), memoryview(source), True)
    helper = threading.Thread(target=copy.help)
    helper.start()
    assert inside.wait(30)
    with pytest.raises(KeyboardInterrupt):
        copy.run()
    order.append("raised")
    helper.join(30)
    assert order == ["the other one has written", "raised"]
    assert bytes(target).count(0) > SIZE - 2 * SHARED_HASHED_CHUNK, "nothing further was taken"


def test_however_often_it_is_interrupted_it_waits_for_the_other_thread(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: somebody presses Ctrl-C again while the first one is waited for."""
    copy = SharedCopy(memoryview(bytearray(SIZE)), memoryview(bytes(SIZE)), True)
    copy._helping.acquire()
    pressed: list[None] = []

    def press_again() -> None:
        pressed.append(None)
        if len(pressed) > 3:
            copy._helping.release()
            monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "sched_yield", press_again)
    with pytest.raises(KeyboardInterrupt):
        copy._wait_for_the_other()
    assert len(pressed) == 4
    assert next(copy._starts, None) is None


def test_a_forked_child_copies_without_the_parents_thread() -> None:
    source, target = os.urandom(SIZE), bytearray(SIZE)
    copy_bulk(memoryview(target), memoryview(source), True)
    child = os.fork()
    if child == 0:
        again = bytearray(SIZE)
        right = copy_bulk(memoryview(again), memoryview(source), True) == xxhash.xxh3_64_intdigest(source)
        os._exit(0 if right and again == source else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_second_thread_hashes_what_the_first_is_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    by: list[str] = []

    def noted(shared: SharedHash) -> None:
        by.append(threading.current_thread().name)
        go_on(shared)

    go_on = SharedHash._go_on
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(SharedHash, "_go_on", noted)
    data = os.urandom(SIZE)
    digest = xxhash.xxh3_64()
    shared = SharedHash(memoryview(data), digest)
    wait_until(shared.begin, what="the second thread is idle")
    wait_until(lambda: by, what="it begins")
    shared.finish()
    assert by[0] == "holdfast-copy"
    assert digest.intdigest() == xxhash.xxh3_64_intdigest(data)


def test_a_hash_that_nobody_helps_with_is_whole(hand: Hand) -> None:
    data = os.urandom(SIZE)
    digest = xxhash.xxh3_64()
    shared = SharedHash(memoryview(data), digest)
    assert not shared.begin()
    shared.finish()
    assert digest.intdigest() == xxhash.xxh3_64_intdigest(data)
    shared.help()
    assert digest.intdigest() == xxhash.xxh3_64_intdigest(data), "help that comes late changes nothing"


def test_a_hash_that_is_not_wanted_any_more_is_left_by_the_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    data = bytearray(64 * CHUNK)
    view = memoryview(data)
    shared = SharedHash(view, xxhash.xxh3_64())
    wait_until(shared.begin, what="the second thread is idle")
    shared.leave()
    assert not list(shared._starts), "nothing is left to be taken"
    shared.help()
    view.release()
